"""Checks of form fields of the dashboard before anything is sent."""

from __future__ import annotations

import pytest

from highwater.api.dashboard.letter_dialog import change_text, parsed_event
from highwater.api.dashboard.mount import is_page
from highwater.api.dashboard.pages.match import goals_of
from highwater.schemas.errors import InvalidEventError


@pytest.mark.parametrize(
    ("value", "goals"),
    [(0, 0), (2.0, 2), (999, 999), (1_000, None), (-1, None), (1.5, None), (None, None), ("2", None)],
)
def test_goals_are_whole_numbers(value, goals):
    """From 0 to 999, as the API takes them."""
    assert goals_of(value) == goals


@pytest.mark.parametrize("words", ["", "{", "[]", '"x"', "null"])
def test_an_edited_event_is_an_object(words):
    """Other JSON is refused with a message."""
    with pytest.raises(InvalidEventError):
        parsed_event(words)


def test_an_edit_is_told_in_a_line():
    """Bytes as text, long values cut."""
    assert change_text("key", b"ann", "bob") == 'key: "ann" → "bob"'
    assert len(change_text("text", "x" * 1_000, None)) < 120


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/jobs", True),
        ("/jobs/7", True),
        ("/jobs/7/events", False),
        ("/jobs/", False),
        ("/queries/7", True),
        ("/insight", True),
        ("/healthz", False),
        ("/api/jobs/7", False),
    ],
)
def test_only_pages_are_the_dashboards(path, found):
    """Every other path is the API's."""
    assert is_page(path) is found

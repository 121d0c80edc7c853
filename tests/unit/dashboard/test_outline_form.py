"""The fields of an outline become the outline that the API accepts; the list of jobs marks those that wait for approval."""

from __future__ import annotations

from highwater.api.dashboard.outline_form import SlideFields, outline_of_fields
from highwater.api.dashboard.pages.jobs import status_html


def test_fields_become_an_outline() -> None:
    """A point a line, without empty ones; a slide without text is left out, one without a title is not: the API says so."""
    fields = [SlideFields(" One ", "a\n\n b \n"), SlideFields(" ", "\n"), SlideFields("", "c"), SlideFields("Two", "")]
    assert outline_of_fields(" KRaft ", fields) == {
        "title": "KRaft",
        "slides": [
            {"title": "One", "points": ["a", "b"]},
            {"title": "", "points": ["c"]},
            {"title": "Two", "points": []},
        ],
    }


def test_the_list_says_which_jobs_wait_for_approval() -> None:
    """Running jobs with a deadline for it; one that ended keeps its status."""
    assert "waits for approval" in status_html({"status": "running", "approval_until_ms": 1})
    assert "running" in status_html({"status": "running", "approval_until_ms": None})
    assert "failed" in status_html({"status": "failed", "approval_until_ms": 1})

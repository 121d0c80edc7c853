"""The fields of an outline become the outline that the API takes."""

from __future__ import annotations

from highwater.api.dashboard.outline_form import SlideFields, outline_of_fields


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

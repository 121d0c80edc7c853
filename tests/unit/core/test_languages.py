"""The language of a page by `Accept-Language` (RFC 9110, section 12.5.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.core.languages import negotiate_language

AVAILABLE = ("en", "ru", "pt-BR")


@pytest.mark.parametrize(
    ("field", "language"),
    [
        (None, "en"),
        ("", "en"),
        ("ru", "ru"),
        ("RU-ru", "ru"),
        ("ru-RU,ru;q=0.9,en-US;q=0.8,en;q=0.7", "ru"),
        ("en-US,en;q=0.9,ru;q=0.8", "en"),
        ("en-GB, ru;q=0.8, en;q=0.5", "en"),  # British English is English
        ("de, ru;q=0.5, en;q=0.4", "ru"),
        ("de-DE, fr;q=0.5", "en"),  # none of them: the first
        ("ru, en", "ru"),  # equal: the one that is named first
        ("en, ru", "en"),
        ("pt", "pt-BR"),
        ("pt-br;q=0.3, ru;q=0.2", "pt-BR"),
        ("pt-PT", "en"),  # another form of it
        ("rum", "en"),  # another language whose name begins so
        ("*", "en"),
        ("ru;q=0.5, *", "en"),
        ("ru;q=0.5, *;q=0.1", "ru"),
        ("en;q=0, *", "ru"),
        ("ru-RU, ru;q=0", "en"),  # refused
        ("en;q=0, ru;q=0, pt;q=0", "en"),
        ("ru;q=2, en;q=x, ru;q=0.1234, \u0440\u0443, ;;;", "en"),  # malformed elements are ignored
        (" ru ;\tq=1.000 ", "ru"),
    ],
)
def test_a_language_is_chosen(field: str | None, language: str):
    """By the largest weight; a range names its forms, and a form its language."""
    assert negotiate_language(field, AVAILABLE) == language


@given(st.text(st.sampled_from("enrupt-BR*;q=0.15, \t"), max_size=60))
def test_any_field_chooses_an_available_language(field: str):
    """A page has as many forms as there are languages."""
    assert negotiate_language(field, AVAILABLE) in AVAILABLE

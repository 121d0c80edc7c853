"""Accept-Encoding: which coding of a body a client gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.core.encodings import ALL, Encoding, negotiate


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip, deflate, br, zstd", "br"),
        ("gzip, deflate", "gzip"),
        ("x-gzip", "gzip"),
        ("GZip;Q=0.5", "gzip"),
        ("deflate", "identity"),
        ("*", "br"),
        ("br;q=0, *", "gzip"),
        ("gzip;q=1.0, br;q=0.9", "gzip"),
        ("br;q=0.5, gzip;q=0.5, identity;q=0.5", "br"),
        ("identity, br;q=0.8", "identity"),
        ("br;q=0.001", "br"),
        ("gzip;q=0", "identity"),
        ("identity;q=0", None),
        ("identity;q=0, deflate", None),
        ("*;q=0", None),
        ("*;q=0, gzip", "gzip"),
        ("*;q=0, identity;q=0.1", "identity"),
        ("identity;q=0, *", "br"),
        (" , br ; q=1 ,,", "br"),
        ("br;q=2", "identity"),
        ("br;q=0.0001", "identity"),
        ("br;level=5", "identity"),
        ("br gzip", "identity"),
        ("gzip" + " " * 200, "gzip"),
    ],
)
def test_the_field_is_read_as_rfc_9110_says(field: str | None, expected: Encoding | None) -> None:
    """Weights decide, then our order; zero refuses; identity is there unless refused; a malformed element counts as not sent."""
    assert negotiate(field) == expected


def test_only_what_there_is_is_chosen() -> None:
    """A coding that the document does not come in is passed over."""
    assert negotiate("br, gzip;q=0.1", ("gzip", "identity")) == "gzip"
    assert negotiate("br", ("gzip", "identity")) == "identity"


_CODINGS = st.sampled_from(["br", "gzip", "identity", "*", "deflate", "zstd"])
_WEIGHTS = st.integers(0, 1000)


@given(st.dictionaries(_CODINGS, _WEIGHTS))
def test_the_choice_is_taken_by_the_client_and_none_is_taken_more(told: dict[str, int]) -> None:
    """The chosen coding has a weight above zero, and no available one has a higher weight; None only if all are refused."""
    field = ", ".join(f"{coding};q={weight / 1000:.3f}" for coding, weight in told.items())
    smallest = 0.0001  # the weight of identity if the client does not name it: used as the last resort

    def weight(coding: str) -> float:
        unsaid = smallest if coding == "identity" else 0
        return told.get(coding, told.get("*", unsaid))

    chosen = negotiate(field)
    best = max(ALL, key=weight)
    assert (weight(chosen) if chosen is not None else 0) == weight(best)
    assert (chosen is None) == (weight(best) == 0)


@given(st.text(max_size=200))
def test_any_field_is_answered(field: str) -> None:
    """No text breaks it, and the chosen coding is available."""
    assert negotiate(field) in (*ALL, None)

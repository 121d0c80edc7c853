"""Which words of a question are used to find chunks."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.retrieval.words import _NAMED_READ_MAX, AskedWords, _counts_of_names, names_in

WORDS = AskedWords(
    any_word="'a' | 'b' | 'c'",
    all_words="'a' & 'b' & 'c'",
    queries=["'a'", "'b'", "'c'"],
    stems=[1, 1, 1],
    counts=[3, 50, 400],
    weights=[0.5, 0.3, 0.2],
    saturation=0.3,
    saturation_per_octet=0.01,
    rare=1,
)


def test_a_chunk_without_a_rare_word_scores_what_the_others_weigh():
    """Where no word is rare nothing is known: it may score all."""
    assert (WORDS.rare_words, WORDS.candidates, WORDS.rest) == ("'a'", 3, pytest.approx(0.5))
    none = WORDS._replace(rare=0)
    assert (none.rare_words, none.candidates, none.rest) == ("'a'", 0, 1.0)


@pytest.mark.parametrize(
    ("bound", "more_max", "rare"),
    [(0.2, 100, 2), (0.0, 450, 3), (0.0, 449, None), (0.2, 49, None), (-1.0, 1_000, None)],
)
def test_as_few_more_words_as_settle_a_search(bound: float, more_max: int, rare: int | None):
    """None where too many chunks have them, or where all words together do not settle it."""
    more = WORDS.settling(lambda rest: rest <= bound + 1e-9, more_max)
    assert (more and more.rare) == rare


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What changed in man-db 2.11.0, and in v2.11.2?", ["2.11.0", "v2.11.2"]),
        (
            "hosts 192.168.0.1 and fe80::1, since 2024-05-01 (KIP-500).",
            ["192.168.0.1", "fe80::1", "2024-05-01", "KIP-500"],
        ),
        ("python3.11 or conf_2? python3.11! os.path.join, max_poll_records", ["python3.11", "conf_2"]),
        ("A sentence ends. Another -- with dashes -- e.g. this: C++, 5, (x).", []),
        ("a low-level read/write of x86-64 and ISO-8859-1, at 10:30 a.m.", ["x86-64", "ISO-8859-1", "10:30"]),
        ("where is /etc/ssl/certs, `~/.ssh/config` or (/usr/lib)? and/or, https://a/b", ["etc/ssl/certs", "usr/lib"]),
        ("/".join("abcdefgh1") + " " + "1-" * 40 + "y", []),
    ],
)
def test_a_name_with_punctuation_inside_is_one_word_more(question: str, names: list[str]):
    """Versions, addresses, dates and other names with a number, each once; no word beside punctuation, no plain words,
    and no address of many parts.
    """
    assert names_in(question) == names


@pytest.mark.parametrize(
    ("name", "parts", "read", "found", "count"),
    [
        ("2.11.0", ["0", "11", "2"], 72, 3, 3),
        ("2.11.0", ["0", "11", "2"], 72, 0, None),
        ("2.11.0", ["0", "11", "2"], _NAMED_READ_MAX, 3, 5_000),  # "2" may stand there as "v2"
        ("V2.11", ["11", "v2"], _NAMED_READ_MAX, 3, 5_000),
        ("2.2", ["2"], _NAMED_READ_MAX, 3, 4_000),
        ("1.2-beta", ["1", "2", "beta"], _NAMED_READ_MAX, 3, 4_000),  # another language has another stem of "beta"
    ],
)
def test_no_more_chunks_have_a_name_than_are_counted(
    name: str, parts: list[str], read: int, found: int, count: int | None
):
    """Where more chunks have its parts than are read, the rarest part but the first is the bound."""
    row: Any = {"name": name, "query": "q", "parts": parts, "read": read, "found": found}
    counts = {"2": 4_000, "v2": 10, "11": 5_000, "0": 9_000, "beta": 1}
    assert _counts_of_names([row], counts) == ({} if count is None else {"q": count})

"""Whether two clusters are about the same, by the texts of their members."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from highwater.streams.feeds.phrases import Reading
from highwater.streams.feeds.roots import Roots
from highwater.streams.feeds.subjects import Subjects

NAMES = ("apple", "pear", "plum", "cherry")


def alike(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether clusters of these texts are, in a window that has others too."""
    texts = [*before, *now, *(f"zebra {name}" for name in NAMES)]
    ids = [f"id{place}" for place in range(len(texts))]
    found = Subjects(Roots(Reading(texts)), texts, ids)
    return found.are_alike([*ids[: len(before)], "gone"], ids[len(before) : len(before) + len(now)])


def about(*subjects: str) -> list[str]:
    """Texts with each of these subjects."""
    return [f"{subject} {name}" for subject in subjects for name in NAMES]


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (about("kafka topic"), about("Topics"), True),
        (about("kafka topic"), about("broker"), False),
        (about("update dependency"), about("update documentation"), False),
        (about("bump"), about("bump"), True),
        (about("bump"), about("update"), False),
        (about("bump dependency"), about("bump"), False),
        (about("cache", "tests", "docs"), about("cache", "tests", "docs"), False),
        ([], about("cache"), False),
    ],
    ids=[
        "one contains the other",
        "others",
        "a verb is shared",
        "a verb alone",
        "another verb",
        "a verb of something",
        "mixed",
        "no texts",
    ],
)
def test_clusters_of_one_subject_are_alike(before: list[str], now: list[str], same: bool) -> None:
    """By the words that tell, in any form; a verb only where it is all that both say, and mixed clusters never."""
    assert alike(before, now) == same
    assert alike(now, before) == same

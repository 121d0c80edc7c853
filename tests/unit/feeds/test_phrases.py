"""Remembered readings of earlier texts save time and do not change the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from highwater.streams.feeds import phrases
from highwater.streams.feeds.phrases import Reading, _Lexicon

WINDOW = (
    "feat(api): split topicId from topic_id in 99fooACLs",
    "ACLs of the KafkaConsumer",
    "Fix @types/node and pre-commit; reviewed by A",
    "topic id, topicId and the consumers",
    "\u65e5\u672c\u8a9e topic 2026",
    "123 456",
    "",
    None,
)
# Words of the window, cut otherwise by what stands around them, and others.
BEFORE = ("ACLs and 99fooACLs", "node types", "Topic IDs", "the id of a consumer (topic)", "pre commit", "x " * 300)


def _held(reading: Reading) -> Any:
    terms = range(reading.holds.shape[1])
    return (
        reading.texts,
        reading.holds.toarray().tolist(),
        [(reading.stems_of(term), reading.shown(term)) for term in terms if np.any(reading.holds[:, [term]].toarray())],
        reading.is_telling.tolist(),
        [(reading.written(at, at), reading.capitals(at)) for at in range(len(reading.parts.text))],
        reading.is_filing.tolist(),
    )


@pytest.fixture(autouse=True)
def _nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "_lexicon", _Lexicon())


@pytest.mark.parametrize("before", [BEFORE, WINDOW, tuple(reversed(WINDOW)), BEFORE + WINDOW])
def test_a_window_is_read_alike_whatever_was_read_before(
    before: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that has read nothing, and by one that has read other windows."""
    expected = _held(Reading(WINDOW))
    monkeypatch.setattr(phrases, "_lexicon", _Lexicon())
    Reading(before)
    assert _held(Reading(WINDOW)) == expected


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full memory is replaced by a new one, and texts that were read by it stay valid."""
    monkeypatch.setattr(phrases, "LEXICON_CHARACTERS_MAX", 40)
    first = Reading(WINDOW)
    expected, lexicon = _held(first), phrases._lexicon
    second = Reading(BEFORE)
    assert phrases._lexicon is not lexicon
    assert len(phrases._lexicon._lines) == len(BEFORE)
    assert _held(first) == expected
    assert second.texts == tuple(sorted(BEFORE))


def test_nothing_is_read_of_no_texts() -> None:
    """A window of empty texts has no terms."""
    reading = Reading(("", None))
    assert (reading.texts, reading.holds.shape[0], len(reading.is_filing)) == ((), 0, 0)

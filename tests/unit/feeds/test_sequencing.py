"""Numbers of insights: dense per channel, in the order given, once per insight."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.feeds.sequencing import Fate, number_insights

IDS = st.sampled_from([f"i{n}" for n in range(12)])
CHANNELS = st.sampled_from(["a", "b", "c"])
BATCH = st.lists(st.tuples(IDS, CHANNELS), max_size=30)


class Naive:
    """The obvious model: one insight at a time against everything stored."""

    def __init__(self) -> None:
        self.home: dict[str, str] = {}
        self.seq: dict[str, int] = {}
        self.heads: dict[str, int] = defaultdict(int)

    def take(self, insight_id: str, channel_id: str) -> int | Fate:
        """Number one insight, or say why not."""
        if insight_id in self.home:
            return Fate.KNOWN if self.home[insight_id] == channel_id else Fate.OTHER_CHANNEL
        self.home[insight_id] = channel_id
        self.heads[channel_id] += 1
        self.seq[insight_id] = self.heads[channel_id]
        return self.heads[channel_id]


@given(st.lists(BATCH, max_size=6))
def test_batches_number_as_one_at_a_time(batches: list[list[tuple[str, str]]]):
    """However a log is cut into batches, every insight gets the number that it would get alone."""
    model = Naive()
    for batch in batches:
        known = {i: model.home[i] for i, _ in batch if i in model.home}
        heads = {c: model.heads[c] for _, c in batch}
        numbered = number_insights(batch, known=known, heads=heads)
        assert tuple(model.take(*pair) for pair in batch) == numbered.seqs
        assert {c: model.heads[c] for c in heads if model.heads[c] != heads[c]} == numbered.heads


@pytest.mark.requirement("R0.11")
@given(BATCH, st.integers(0, 2**60))
def test_numbers_are_dense(batch: list[tuple[str, str]], head: int):
    """The numbers of a channel follow its head without a gap, and the new head is the last of them."""
    numbered = number_insights(batch, known={}, heads=dict.fromkeys("abc", head))
    by_channel: dict[str, list[int]] = defaultdict(list)
    for (_, channel), seq in zip(batch, numbered.seqs, strict=True):
        if isinstance(seq, int):
            by_channel[channel].append(seq)
    assert {c: list(range(head + 1, head + 1 + len(seqs))) for c, seqs in by_channel.items()} == by_channel
    assert {c: seqs[-1] for c, seqs in by_channel.items()} == numbered.heads


@given(BATCH)
def test_a_repeat_of_a_batch_changes_nothing(batch: list[tuple[str, str]]):
    """Redelivered after it was stored, a batch gets no number and moves no head."""
    first = number_insights(batch, known={}, heads=dict.fromkeys("abc", 0))
    stored = {i: c for (i, c), seq in zip(batch, first.seqs, strict=True) if isinstance(seq, int)}
    again = number_insights(batch, known=stored, heads={**dict.fromkeys("abc", 0), **first.heads})
    assert again.heads == {}
    assert [seq for seq in again.seqs if isinstance(seq, int)] == []


def test_an_id_belongs_to_its_first_channel():
    """An id that comes again in another channel of the same batch is refused there, and leaves no gap."""
    numbered = number_insights([("i", "a"), ("i", "b"), ("j", "b")], known={}, heads={"a": 7, "b": 0})
    assert numbered.seqs == (8, Fate.OTHER_CHANNEL, 1)

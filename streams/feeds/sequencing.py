"""Assigns numbers to insights: dense per channel, in the order of the log, once per insight (R0.11 to R0.14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """Why an insight does not get a number."""

    KNOWN = "known"
    OTHER_CHANNEL = "insight_id_in_other_channel"


@dataclass(frozen=True, slots=True)
class Numbered:
    """The result for a batch: `seqs[i]` is the number of insight i or its fate; `heads` the new head of each advanced channel."""

    seqs: tuple[int | Fate, ...]
    heads: Mapping[str, int]


def number_insights(
    incoming: Iterable[tuple[str, str]], *, known: Mapping[str, str], heads: Mapping[str, int]
) -> Numbered:
    """Number a batch of (insight_id, channel_id) in log order.

    Args:
        incoming: the batch, in the order of (partition, offset) within each channel.
        known: channel of each insight of the batch that is stored already.
        heads: current_seq of each channel of the batch.

    Returns:
        A known id gets no number and leaves no gap; an id known in another channel is refused.
    """
    seen = dict(known)
    moved: dict[str, int] = {}
    seqs: list[int | Fate] = []
    for insight_id, channel_id in incoming:
        home = seen.get(insight_id)
        if home is not None:
            seqs.append(Fate.KNOWN if home == channel_id else Fate.OTHER_CHANNEL)
            continue
        seen[insight_id] = channel_id
        moved[channel_id] = moved.get(channel_id, heads[channel_id]) + 1
        seqs.append(moved[channel_id])
    return Numbered(tuple(seqs), moved)

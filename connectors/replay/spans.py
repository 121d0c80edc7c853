"""Asks the broker which offsets of a topic a beginning and an end select."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing

from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.replay.consumer import offsets_at, open_reader
from highwater.connectors.replay.selection import Bound, Ranges, select
from highwater.streams.wording import counted


def fetch_ranges(client: Mapping[str, str], topic: str) -> dict[int, LogRange]:
    """Return what a reader of committed records finds in each partition of a topic; empty if the broker has no such topic.

    Raises:
        UnavailableError: the broker does not answer.
    """
    return asyncio.run(_ranges(Admin(dict(client)), topic))


def open_transactions(topic: str, ranges: Ranges) -> list[str]:
    """Return a sentence about each partition of which a part cannot be read yet."""
    return [
        f"{topic}/{partition} has an open transaction at offset {held.high}: {counted(held.open, 'offset')} from there on"
        " cannot be read until it ends"
        for partition, held in sorted(ranges.items())
        if held.open
    ]


async def _ranges(admin: Admin, topic: str) -> dict[int, LogRange]:
    places = [(topic, partition) for partition in range((await admin.partition_counts()).get(topic, 0))]
    found = await admin.readable_ranges(places) if places else {}
    return {partition: held for (_, partition), held in found.items()}


def fetch_spans(
    client: Mapping[str, str], topic: str, ranges: Ranges, begin: Bound | None, end: Bound | None
) -> Ranges:
    """Return the offsets between two bounds, in each partition.

    Raises:
        InvalidSelectionError: an offset is not in the topic.
        UnavailableError: the broker does not answer.
    """
    with closing(open_reader(client)) as reader:
        return select(begin, end, ranges, lambda ms: offsets_at(reader, topic, list(ranges), ms), topic=topic)

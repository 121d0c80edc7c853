"""(a) What a table keeps of decisions made at ticks, compared with the events of those decisions.

Invariant: the shadow run cannot produce these values, since the log does not record in which order an agent read a tick
and another topic's event (`rows.py`). But a decision is published before its row is written; so everything that a row
keeps of one must be in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.notes import Noting
from highwater.connectors.verify.report import Difference
from highwater.schemas.chunks import INGEST_DECIDED
from highwater.schemas.feeds import CHANNEL_ADVANCED, CHANNEL_DIRTY, REBUILD_FINISHED, REBUILD_REQUESTED
from highwater.schemas.jobs import USAGE_FLUSHED
from highwater.schemas.positions import parse_position
from highwater.schemas.topic_names import event_of
from highwater.streams.chunks import completion
from highwater.streams.feeds.dirty import decode_channel
from highwater.streams.feeds.rules import DELAYED
from highwater.streams.feeds.state import decode_user
from highwater.streams.jobs import usage

Event = Mapping[str, Any]


def note_decisions(notes: Noting, record: Record, event: Event) -> None:
    """Note a decision, or an advance of a channel; those of a key come in order."""
    position = str(record.position)
    topic = record.topic
    if advanced := event_of(CHANNEL_ADVANCED, topic, event):
        since = "advanced", advanced["channel_id"], advanced["arrived_at"]
        head, at = notes.get(since) or (advanced["head"], position)
        notes[since] = (min(head, advanced["head"]), at)
        notes["advanced", advanced["channel_id"]] = advanced["arrived_at"]
    elif dirty := event_of(CHANNEL_DIRTY, topic, event):
        told = notes.get(("dirty", dirty["channel_id"])) or (0, None)
        notes["dirty", dirty["channel_id"]] = max(told, (dirty["head"], position))
    elif request := event_of(REBUILD_REQUESTED, topic, event):
        notes["request", request["user_id"], record.offset] = (request["planned_at"], position)
        notes["requested", request["user_id"]] = position
    elif finished := event_of(REBUILD_FINISHED, topic, event):
        if finished["outcome"] == DELAYED:
            offset = parse_position(finished["request_position"]).offset
            notes["delayed", finished["user_id"], offset] = (finished["last_enqueued_at"], position)
    elif decided := event_of(INGEST_DECIDED, topic, event):
        ingest = "decided", completion.source_key(decided), decided["ingest_id"]
        notes[(*ingest, decided["decided_at"])] = position
        notes[ingest] = position
    elif flushed := event_of(USAGE_FLUSHED, topic, event):
        period = "flushed", flushed["organization_id"], flushed["period"]
        told = notes.get(period) or (0, None)
        notes[period] = max(told, (flushed["upto_seq"], position))


def kept_differences(notes: Noting, table: str, key: bytes, row: bytes) -> Iterator[Difference]:
    """Yield what a row contains but no event reported. An unreadable row is a difference of its own (`tables.compare`)."""
    try:
        found = KEPT[table].judge(notes, key, row)
    except (ValueError, TypeError, KeyError):
        return
    if found is not None:
        name, expected, kept, position = found
        yield Difference(key.decode("utf-8", "backslashreplace"), name, expected, kept, position)


Judged = tuple[str, Any, Any, str | None] | None


def _channel(notes: Noting, key: bytes, row: bytes) -> Judged:
    """Clean: its head was published as dirty. Dirty: since one of the advances up to its head."""
    channel = decode_channel(row)
    if channel.dirty_since is None:
        head, position = notes.get(("dirty", key.decode())) or (0, None)
        if head < channel.head:
            return "dirty_since", f"a channel-dirty with head {channel.head}; the last has {head}", None, position
        return None
    head, position = notes.get(("advanced", key.decode(), channel.dirty_since)) or (None, None)
    if head is None or head > channel.head:
        return "dirty_since", f"when one of the heads up to {channel.head} arrived", channel.dirty_since, position
    return None


def _user(notes: Noting, key: bytes, row: bytes) -> Judged:
    """Check that the request it names was made for the user, at the time that it keeps; a delayed one keeps the time of
    the request before it.
    """
    user = decode_user(row)
    if user.requested_offset < 0:
        return None
    planned_at, position = notes.get(("request", key.decode(), user.requested_offset)) or (None, None)
    if planned_at is None:
        last = notes.get(("requested", key.decode()))
        return "requested_offset", f"that of a request of the user; the last is {last}", user.requested_offset, last
    enqueued_at, position = notes.get(("delayed", key.decode(), user.requested_offset)) or (planned_at, position)
    if user.last_enqueued_at != enqueued_at:
        return "last_enqueued_at", enqueued_at, user.last_enqueued_at, position
    return None


def _ingest(notes: Noting, _key: bytes, row: bytes) -> Judged:
    """Ended: a decision was published at that time."""
    found = completion.decode_row(row)
    if (
        found is None
        or found.decided_ms is None
        or notes.get(("decided", found.key, found.ingest_id, found.decided_ms))
    ):
        return None
    last = notes.get(("decided", found.key, found.ingest_id))
    return "decided_ms", "when a chunks.ingest-decided reports it", found.decided_ms, last


def _usage(notes: Noting, _key: bytes, row: bytes) -> Judged:
    """Nothing left to publish: totals up to its number were published."""
    found = usage.decode_row(row)
    if found is None or found.since_ms is not None:
        return None
    upto, position = notes.get(("flushed", found.organization_id, found.period)) or (0, None)
    if upto < found.upto_seq:
        return "since_ms", f"a time: totals were published up to {upto} of {found.upto_seq}", None, position
    return None


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The events behind what a table keeps, and how a row is judged by them."""

    topics: tuple[str, ...]
    judge: Callable[[Noting, bytes, bytes], Judged]


KEPT: Mapping[str, TableCheck] = {
    "channel_heads": TableCheck((CHANNEL_ADVANCED, CHANNEL_DIRTY), _channel),
    "users": TableCheck((REBUILD_REQUESTED, REBUILD_FINISHED), _user),
    "ingest_manifest": TableCheck((INGEST_DECIDED,), _ingest),
    "usage": TableCheck((USAGE_FLUSHED,), _usage),
}

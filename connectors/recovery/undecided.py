"""Fields of a recovered row that depend on the order in which an agent read two topics, taken from its published
decisions.

Invariant: where the log is ambiguous, the row makes the agent repeat a decision rather than omit it. A repeated
decision carries the inputs of its own time, and its consumers find nothing new; an omitted one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from highwater.connectors.verify.notes import Noting
from highwater.schemas.positions import parse_position
from highwater.streams.chunks import completion
from highwater.streams.feeds.dirty import decode_channel, encode_channel
from highwater.streams.feeds.state import decode_user, encode_user
from highwater.streams.jobs import usage


def _channel(notes: Noting, key: bytes, row: bytes) -> bytes:
    """Clean only if a channel-dirty published its head, and nothing was retracted: no event says how much of that was
    published. A channel that is published again is dirty since its last advance, as if that had just arrived.
    """
    channel = decode_channel(row)
    told, _ = notes.get(("dirty", key.decode())) or (0, None)
    if told >= channel.head and not channel.retractions:
        channel.dirty_since = None
    elif channel.dirty_since is None:
        channel.dirty_since = notes.get(("advanced", key.decode()))
    return encode_channel(channel)


def _user(notes: Noting, key: bytes, row: bytes) -> bytes:
    """Its last request is that of the log; a demand is served only if that request is as late as the agent's."""
    user = decode_user(row)
    last = notes.get(("requested", key.decode()))
    if last is None:
        user.requested_offset, user.last_enqueued_at, user.requested_until, user.served_revision = -1, None, 0, 0
        return encode_user(user)
    offset = parse_position(last).offset
    planned_at, _ = notes.get(("request", key.decode(), offset))
    if user.last_enqueued_at is None or planned_at < user.last_enqueued_at:
        user.served_revision = 0
    lasting = 0 if user.last_enqueued_at is None else max(0, user.requested_until - user.last_enqueued_at)
    user.requested_offset, user.last_enqueued_at, user.requested_until = offset, planned_at, planned_at + lasting
    delayed = notes.get(("delayed", key.decode(), offset))
    if delayed is not None:
        user.last_enqueued_at, user.served_revision = delayed[0], 0
    return encode_user(user)


def _ingest(notes: Noting, _key: bytes, row: bytes) -> bytes:
    """Ended only if a decision says so."""
    found = completion.decode_row(row)
    if found is None or found.decided_ms is None or notes.get(("decided", found.key, found.ingest_id)):
        return row
    return completion.encode_row(replace(found, decided_ms=None))


def _usage(notes: Noting, _key: bytes, row: bytes) -> bytes:
    """Published only if a total says so."""
    found = usage.decode_row(row)
    if found is None:
        return row
    upto, _ = notes.get(("flushed", found.organization_id, found.period)) or (-1, None)
    if upto >= found.upto_seq:
        return usage.encode_row(replace(found, since_ms=None))
    return usage.encode_row(replace(found, since_ms=found.since_ms or 0))


UNDECIDED: Mapping[str, Callable[[Noting, bytes, bytes], bytes]] = {
    "channel_heads": _channel,
    "users": _user,
    "ingest_manifest": _ingest,
    "usage": _usage,
}


def settled(notes: Noting, table: str, key: bytes, row: bytes) -> bytes:
    """Return a row as it is to be recovered; `notes`: from the events of decisions (`kept.note_decisions`)."""
    settle = UNDECIDED.get(table)
    return row if settle is None else settle(notes, key, row)

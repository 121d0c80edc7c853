"""What of a recovered row depends on the order in which an agent read two topics, taken from the events that told its decisions.

Invariant: where the log leaves it open, the row is such that a decision is made again rather than never. A decision that is made
again carries the inputs of its own moment, and whoever deals with it finds nothing new; one that is never made is lost.
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
    """Clean only if a channel-dirty told its head, and nothing was retracted: how much of that was told is in no event."""
    channel = decode_channel(row)
    told, _ = notes.get(("dirty", key.decode())) or (0, None)
    if told >= channel.head and not channel.retractions:
        channel.dirty_since = None
    elif channel.dirty_since is None:
        channel.dirty_since = 0
    return encode_channel(channel)


def _user(notes: Noting, key: bytes, row: bytes) -> bytes:
    """Its last request is that of the log; a demand is served only if that request is as late as the one the agent made."""
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
    return encode_user(user)


def _ingest(notes: Noting, _key: bytes, row: bytes) -> bytes:
    """Ended only if a decision told it."""
    found = completion.decode_row(row)
    if found is None or found.decided_ms is None or notes.get(("decided", found.key, found.ingest_id)):
        return row
    return completion.encode_row(replace(found, decided_ms=None))


def _usage(notes: Noting, _key: bytes, row: bytes) -> bytes:
    """All told only if a total told it."""
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
    """A row as it is to be recovered; `notes`: of the events that told decisions (`kept.note_decisions`)."""
    settle = UNDECIDED.get(table)
    return row if settle is None else settle(notes, key, row)

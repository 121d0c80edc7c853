"""Which parts of a table's row the shadow run produces, table by table, and which it does not and why.

Invariant: two rows are compared by their bytes after everything listed here is removed from both. An agent reads
several topics of a partition, and the log does not record their order; so fields that depend on it are left out. Of
those, `kept.py` compares these with the events of the decision: `dirty_since` of channels, `requested_offset` and
`last_enqueued_at` of users, `decided_ms` of ingests, `since_ms` of usage (that there is one). `excluded` lists the
rest, which nothing compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from highwater.streams.chunks import completion, temperature
from highwater.streams.feeds.dirty import decode_channel, encode_channel
from highwater.streams.feeds.state import User, decode_user, encode_user
from highwater.streams.jobs import usage
from highwater.streams.league import state as league
from highwater.streams.queries.orders import decode_order

_TICK_ORDER = "set when a tick is dealt with; which came first, the tick or another topic's event, is not in the log"
_FOLDED_ORDER = "after an erasure: the order of reading separates what other topics reported before and after it"


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of a table are compared.

    Attributes:
        comparable: the compared bytes of a row.
        excluded: field -> why nothing compares it.
        may_be_gone: whether a row of the log may be missing, and the other way round: ticks delete rows.
    """

    comparable: Callable[[bytes, bytes], bytes]
    excluded: Mapping[str, str]
    may_be_gone: Callable[[bytes, bytes], bool] = lambda _key, _row: False


def _channel(_key: bytes, row: bytes) -> bytes:
    channel = decode_channel(row)
    channel.dirty_since = None
    return encode_channel(channel)


def _user(_key: bytes, row: bytes) -> bytes:
    user = decode_user(row)
    fresh = User()
    for name in _USER_AT_TICKS:
        setattr(user, name, getattr(fresh, name))
    if user.erased_revision:
        for view in user.channels.values():
            view.head = view.hwm = view.retractions = view.retractions_hwm = 0
            view.shown_offset = -1
        user.channels = {key: view for key, view in user.channels.items() if view.is_subscribed}
        user.finished_offset, user.last_clustered_at, user.last_checked_at = -1, None, None
        user.shown_offset = -1
    user.channels = dict(sorted(user.channels.items()))
    return encode_user(user)


_USER_AT_TICKS = ("served_revision", "last_enqueued_at", "requested_offset", "requested_until", "forget_at")


def _match(key: bytes, row: bytes) -> bytes:
    if not league.is_match_key(key):
        return b""
    found = league.decode_row(row)
    return row if found is None else league.encode_row(replace(found, over_told_ms=None))


def _order(_key: bytes, row: bytes) -> bytes:
    order = decode_order(row)
    held = [order.active, *order.queue] if order.active is not None else list(order.queue)
    return orjson.dumps([[run.ordinal, run.request_id] for run in held], default=list)


def _usage(_key: bytes, row: bytes) -> bytes:
    found = usage.decode_row(row)
    return row if found is None else usage.encode_row(replace(found, since_ms=None))


def _ingest(_key: bytes, row: bytes) -> bytes:
    found = completion.decode_row(row)
    return row if found is None else completion.encode_row(replace(found, decided_ms=None))


def _namespace(_key: bytes, row: bytes) -> bytes:
    found = temperature.decode_row(row)
    if found is None:
        return row
    newest = found.days[-1][0] if found.days else 0
    days = [day for day in found.days if day[0] > newest - temperature.WINDOW_DAYS]
    return orjson.dumps([found.ns, days, found.partition, found.offset])


def _tick(key: bytes, row: bytes) -> bytes:
    if key.startswith(b"epochs\0"):  # of relays; which were read before a restart does not depend on the log's order
        return b""
    return orjson.dumps(orjson.loads(row)[:2])


def _is_no_user(_key: bytes, row: bytes) -> bool:
    return not decode_user(row).is_known


# Table -> how its rows are compared.
ROWS: Mapping[str, Rows] = {
    "channel_heads": Rows(_channel, {}),
    "users": Rows(
        _user,
        {
            "served_revision, forget_at": _TICK_ORDER,
            "requested_until": "`last_enqueued_at` and a setting of that moment",
            "head, hwm, retractions, finished_offset, shown_offset, last_clustered_at, last_checked_at of users once "
            "erased": _FOLDED_ORDER,
            "rows of users without an event of their own": "forgotten at a tick after a day",
        },
        _is_no_user,
    ),
    "matches": Rows(
        _match,
        {"over_told_ms": _TICK_ORDER, "rows of seasons (the window prewarmed last)": _TICK_ORDER},
        lambda key, _row: not league.is_match_key(key),
    ),
    "active_runs": Rows(
        _order,
        {
            "released": "of two topics of runs; the one that is read first decides whether a failed run was in progress",
            "status and revision of a run that is in progress": "as requested last, between two topics",
        },
    ),
    "usage": Rows(_usage, {"which time since_ms is": _TICK_ORDER}),
    "ingest_manifest": Rows(
        _ingest,
        {"rows of ingests that ended": "forgotten at a tick after a day"},
        lambda _key, row: (found := completion.decode_row(row)) is None or found.decided_ms is not None,
    ),
    "namespaces": Rows(
        _namespace,
        {
            "looked_ms, is_hot, queries_per_day, told_ms": _TICK_ORDER,
            "days older than a week": "dropped at a tick",
            "rows of namespaces without searches": "forgotten at a tick after a week",
        },
        lambda _key, row: (found := temperature.decode_row(row)) is None or found.looked_ms > 0,
    ),
    "ticks": Rows(
        _tick,
        {
            "offset": "a tick that is repeated after a rebalance has two",
            "rows of ticks that the log no longer has": "ticks are kept for a week",
            "epochs of the outbox's relays": "which relay published a record changes nothing in it",
        },
        lambda _key, _row: True,
    ),
}


def fields_that_differ(table: str, expected: bytes | None, found: bytes | None) -> tuple[str, Any, Any]:
    """Return what to show of two rows: the whole rows if one is missing, else the differing field."""
    if expected is None or found is None:
        return "row", expected, found
    try:
        return _facts_that_differ(table, expected, found)
    except (ValueError, TypeError, KeyError):
        return "row", expected, found


def _facts_that_differ(table: str, expected: bytes, found: bytes) -> tuple[str, Any, Any]:
    if table == "users":
        return _first_difference(_facts_of(decode_user(expected)), _facts_of(decode_user(found)))
    one, other = orjson.loads(expected), orjson.loads(found)
    places = {str(number): value for number, value in enumerate(one)}
    return _first_difference(places, {str(number): value for number, value in enumerate(other)})


def _facts_of(user: User) -> dict[str, Any]:
    facts = {name: getattr(user, name) for name in User.__dataclass_fields__ if name != "channels"}
    channels = {
        f"channels.{key}.{name}": getattr(view, name)
        for key, view in user.channels.items()
        for name in ("head", "hwm", "revision", "is_subscribed")
    }
    return {**facts, **channels}


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any]:
    for name in [*one, *other]:
        if one.get(name) != other.get(name):
            return name, one.get(name), other.get(name)
    return "row", one, other

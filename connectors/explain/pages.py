"""The trace of a league page, and of anything else with a version: its bump, the request for it, the change, the event.

Invariant: that of `connectors/explain/explaining.py`. The text of an event is not shown: a page may contain users'
texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from highwater.connectors.explain.explanations import Step, position_of, with_causes
from highwater.connectors.kafka.finding import Finder
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.records import Event, Record
from highwater.schemas.cache import VERSION_BUMPED, VersionBumped
from highwater.schemas.envelope import caused_by
from highwater.schemas.league import (
    MATCH_CHANGED,
    MATCH_FINALIZED,
    MATCH_SCHEDULED,
    MATCH_UPDATED,
    REFRESH_REQUESTED,
    MatchChanged,
    RefreshRequested,
)
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from highwater.streams.wording import counted

_MATCH_EVENTS: frozenset[str] = frozenset({MATCH_SCHEDULED, MATCH_UPDATED, MATCH_FINALIZED})
# A request follows its change within a batch or a tick; the rest of this is for a worker that was down.
REFRESH_MS_MAX = 600_000
# How far the product's clock may lag the broker's before a bump is searched from its cause on instead.
_CLOCK_MS = 60_000

# A page names its event by position: it may be of any topic.
AnyEvent: TypeAlias = "Event[Mapping[str, Any]]"


def trace_page(finder: Finder, key: str, version: int, position: str, changed_ms: int) -> Step:
    """Return the tree of a page: served, its bump, the request for it, the change of a match, the event behind it."""
    cause = position_of(position)
    event = None if cause is None else finder.at(cause)
    bump = _bump(finder, key, version, changed_ms, event)
    source = _source_step(cause, event)
    requested = () if event is None or bump is None else _requested(finder, key, event, bump, source)
    causes = requested or ((source,) if source is not None else ())
    served = Step(
        "served",
        f"version {version} of {key}",
        position="" if bump is None else str(bump.record.position),
        at_ms=None if bump is None else bump.record.arrived_ms,
        numbers={"version": version},
        missing="" if bump is not None else "the event that reported this version is not in the log any more",
    )
    if bump is None:
        return with_causes(served, causes)
    told = bump_step(bump, key)
    return with_causes(served, (with_causes(told, causes),))


def bump_step(bump: Event[VersionBumped], key: str) -> Step:
    """Return the step of a `version-bumped`."""
    record, value = bump
    reason = value.get("reason") or ""
    about = f"version {value['version']} of {key} published" + (f" ({reason})" if reason else "")
    numbers = {"version": value["version"], "etag": value["etag"], **({"reason": reason} if reason else {})}
    return Step("bump", about, str(record.position), record.arrived_ms, numbers)


def bumped(finder: Finder, key: str, version: int, from_ms: int) -> Event[VersionBumped] | None:
    """Return the event that published a version."""
    place = (VERSION_BUMPED, murmur2_partition(key.encode(), TOPICS[VERSION_BUMPED].partitions))
    found = finder.first(
        place,
        from_ms,
        lambda record: record.key == key.encode(),
        {key: lambda event: event.value["version"] == version},
    )
    return found.get(key)


def _bump(
    finder: Finder, key: str, version: int, changed_ms: int, event: AnyEvent | None
) -> Event[VersionBumped] | None:
    """Find the bump by the time of its row; since the product's clock may have moved, then from its event on."""
    found = bumped(finder, key, version, changed_ms - _CLOCK_MS)
    if found is None:
        found = bumped(finder, key, version, 0 if event is None else event.record.arrived_ms)
    return found


def _requested(
    finder: Finder, key: str, event: AnyEvent, bump: Event[VersionBumped], source: Step | None
) -> tuple[Step, ...]:
    """Return the request that had the page built, with its causes; empty if none is known (it was built when it was read)."""
    changed = _match_changed(finder, event)
    ends = bump.record.arrived_ms
    origins = {str(event.record.position), "" if changed is None else str(changed.record.position)}

    def is_for(found: Event[RefreshRequested]) -> bool:
        cause = str(caused_by(found.record.headers) or "")
        return cause in origins and key in [*found.value["keys"], *found.value["dropped"]]

    until_ms = min(ends, event.record.arrived_ms + REFRESH_MS_MAX)
    needle = key.encode()
    for partition in range(TOPICS[REFRESH_REQUESTED].partitions):
        found = finder.first(
            (REFRESH_REQUESTED, partition),
            event.record.arrived_ms,
            lambda r: needle in (r.value or b""),
            {key: is_for},
            until_ms,
        ).get(key)
        if found is None:
            continue
        through = (source,) if source is not None else ()
        if changed is not None:
            through = (with_causes(_changed_step(changed), through),)
        record, value = found
        about = f"{counted(len(value['keys']), 'page')} may be old ({value['reason']})"
        numbers = {"reason": value["reason"], "pages": len(value["keys"])}
        return (Step("request", about, str(record.position), record.arrived_ms, numbers, causes=through),)
    return ()


def _match_changed(finder: Finder, event: AnyEvent) -> Event[MatchChanged] | None:
    season = event.value.get("season")
    if event.record.topic not in _MATCH_EVENTS or not season:
        return None
    place = (MATCH_CHANGED, murmur2_partition(season.encode(), TOPICS[MATCH_CHANGED].partitions))
    from_ms = event.record.arrived_ms

    def is_key(record: Record) -> bool:
        return record.key == season.encode() and caused_by(record.headers) == event.record.position

    found = finder.first(place, from_ms, is_key, {season: lambda _: True}, from_ms + REFRESH_MS_MAX)
    return found.get(season)


def _changed_step(changed: Event[MatchChanged]) -> Step:
    record, value = changed
    goals = "" if value["home_goals"] is None else f" {value['home_goals']}:{value['away_goals']}"
    about = f"{value['home']} - {value['away']}{goals}: {', '.join(value['changed'])} changed"
    numbers = {"match_id": value["match_id"], "state": value["state"], "revision": value["revision"]}
    return Step("change", about, str(record.position), record.arrived_ms, numbers)


def _source_step(cause: Position | None, event: AnyEvent | None) -> Step | None:
    """Return the event behind a page."""
    if cause is None:
        return None
    if event is None:
        return Step("event", cause.topic, str(cause), missing="the log does not hold this event any more")
    value = event.value
    kept = (
        "match_id",
        "season",
        "round",
        "home",
        "away",
        "home_goals",
        "away_goals",
        "minute",
        "ns",
        "slot",
        "source_id",
    )
    numbers = {name: value[name] for name in kept if value.get(name) is not None}
    return Step("event", TOPICS[cause.topic].about, str(cause), event.record.arrived_ms, numbers)

"""(c) Effects: what is stored of work is held against the events that reported it.

The law: rows are one snapshot, events are read afterwards to an end fixed then, so an effect without its event shows. A row
whose event is still on its way, or that moved meanwhile, is looked at once more; what differs both times in the same way is a
difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from connectors.kafka.handler import Surroundings
from connectors.kafka.records import Record
from connectors.stores.postgres import QUERIES, STATEMENT_SECONDS_MAX, unavailable_when_away
from connectors.verify.decisions import decoded, spans_of
from connectors.verify.log import read_all
from connectors.verify.report import Checked, Difference
from schemas.errors import ConfigurationError
from streams.clock import to_datetime
from streams.settings import Settings

PART = "effects"
# The relay publishes within a quarter of a second; a worker stores and tells in one transaction.
_SETTLE_SECONDS = 2.0
_ROWS_AT_ONCE = 1_000

Event = Mapping[str, Any]
Values = tuple[Any, ...]


@dataclass(slots=True)
class Found:
    """What events say of one key: the values that its row must have, the position of the event, and whether it is void."""

    values: dict[str, Any] = field(default_factory=dict)
    position: str | None = None


Reports = dict[Values, Found]


@dataclass(frozen=True, slots=True)
class Effect:
    """A table, the topics that report it, and how their events say what its rows hold.

    `is_silent` says of a row without any event whether that is in order: nothing was done to it that is told.
    """

    name: str
    query: str
    columns: tuple[str, ...]
    topics: tuple[str, ...]
    note: Callable[[Reports, Record, Any], None]
    key: int = 1
    excluded: Mapping[str, str] = field(default_factory=dict)
    is_silent: Callable[[Mapping[str, Any]], bool] = lambda _row: False
    read: Callable[[str, Any], Any] = lambda _name, value: value


def _at(reports: Reports, key: Values, record: Record, **values: Any) -> None:
    found = reports.setdefault(key, Found())
    found.values.update(values)
    found.position = str(record.position)


def _moment(ms: int | None) -> Any:
    return None if ms is None else to_datetime(ms)


def _note_version(reports: Reports, record: Record, event: Event) -> None:
    _at(
        reports, (event["user_id"], event["cluster_version"]), record,
        caused_by=event["request_position"], dataset_size=event["dataset_size"], omitted=event["omitted"],
        noise=event["noise"], left_out=event["left_out"], basis_id=event["basis_id"], updated_at=_moment(event["rebuilt_at"]),
        hwm=dict(event["hwm"]), clusters=event["clusters"],
    )  # fmt: skip


def _note_user(reports: Reports, record: Record, event: Event) -> None:
    key = (event["user_id"],)
    if record.topic == "feeds.user-changed":
        held = reports.get(key, Found()).values.get("revision", 0)
        _at(reports, key, record, revision=max(held, event["revision"]))
        if event["erased"]:
            _at(reports, key, record, is_erased=True)
        return
    held = reports.get(key, Found()).values
    if record.topic == "feeds.clusters-rebuilt":
        if event["cluster_version"] >= held.get("cluster_version", 0):
            version, at = event["cluster_version"], _moment(event["rebuilt_at"])
            _at(reports, key, record, cluster_version=version, last_clustered_at=at)
    elif event["last_checked_at"] is not None:
        at, before = _moment(event["last_checked_at"]), held.get("last_checked_at")
        _at(reports, key, record, last_checked_at=at if before is None else max(before, at))


def _note_marks(reports: Reports, record: Record, event: Event) -> None:
    if record.topic == "feeds.user-changed":
        if event["erased"]:
            _at(reports, (event["user_id"], ""), record, is_erased=True)
    elif event["outcome"] == "rebuilt":
        for channel_id, seq in event["hwm"].items():
            key = event["user_id"], channel_id
            _at(reports, key, record, last_seq=max(seq, reports.get(key, Found()).values.get("last_seq", 0)))


def _note_bump(reports: Reports, record: Record, event: Event) -> None:
    if event["version"] >= reports.get((event["key"],), Found()).values.get("version", 0):
        _at(
            reports, (event["key"],), record,
            version=event["version"], etag=event["etag"], position=event["caused_by"],
            changed_at=_moment(event["bumped_at"]),
        )  # fmt: skip


def _note_status(reports: Reports, record: Record, event: Event) -> None:
    key = (event["id"],)
    if event["revision"] >= reports.get(key, Found()).values.get("revision", 0):
        _at(reports, key, record, revision=event["revision"], status=event["status"])


def _note_step(reports: Reports, record: Record, event: Event) -> None:
    if record.topic == "queries.run-archived":
        told = {
            "run_id": event["request_id"],
            "status": "COMPLETED",
            "operation": "ARCHIVE",
            "attempt": 0,
            "revision": None,
        }
    else:
        told = {name: event[name] for name in ("status", "operation", "attempt", "revision")} | {"run_id": event["id"]}
    _at(reports, (str(record.position),), record, **told)


def _note_match(reports: Reports, record: Record, event: Event) -> None:
    key = (event["match_id"],)
    if event["revision"] >= reports.get(key, Found()).values.get("revision", 0):
        told = {
            name: event[name] for name in ("season", "status", "home", "away", "home_goals", "away_goals", "revision")
        }
        moments = {"kickoff": _moment(event["kickoff"]), "finalized_at": _moment(event["finalized_at"])}
        _at(reports, key, record, **told, **moments)


def _note_ingest(reports: Reports, record: Record, event: Event) -> None:
    key = event["ingest_id"], event["ns"], event["slot"], event["source_id"]
    if event["revision"] >= reports.get(key, Found()).values.get("revision", 0):
        told = {name: event[name] for name in ("revision", "inserted", "updated", "unchanged")}
        _at(reports, key, record, **told, failures=event["failed"])


def _json(name: str, value: Any) -> Any:
    return orjson.loads(value) if name == "hwm" else value


_ERASED = "of a user who was erased: rows begin anew, events stay"

EFFECTS: tuple[Effect, ...] = (
    Effect(
        "user_clusters", "verify_cluster_versions",
        ("user_id", "cluster_version", "caused_by", "dataset_size", "omitted", "noise", "left_out", "basis_id", "updated_at",
         "hwm", "clusters"),
        ("feeds.clusters-rebuilt",), _note_version, key=2, read=_json,
        excluded={"the clusters themselves, cluster_history": "titles may come from a model; their number is compared"},
    ),
    Effect(
        "user_stats", "verify_user_versions",
        ("user_id", "cluster_version", "last_clustered_at", "last_checked_at", "revision"),
        ("feeds.clusters-rebuilt", "feeds.rebuild-finished", "feeds.user-changed"), _note_user,
        is_silent=lambda row: not row["cluster_version"] and row["last_checked_at"] is None and not row["revision"],
        excluded={"users once erased": _ERASED, "last_enqueued_at, in_flight": "taken while a rebuild is under way"},
    ),
    Effect(
        "user_cluster_hwm", "verify_marks", ("user_id", "channel_id", "last_seq"),
        ("feeds.rebuild-finished", "feeds.user-changed"), _note_marks, key=2, excluded={"users once erased": _ERASED},
    ),
    Effect(
        "resource_versions", "verify_versions", ("key", "version", "etag", "position", "changed_at"),
        ("cache.version-bumped",), _note_bump,
    ),
    Effect("pipeline_runs", "verify_statuses", ("id", "status"), ("queries.pipeline-stage",), _note_status),
    Effect(
        "run_events", "verify_timeline", ("position", "run_id", "status", "operation", "attempt", "revision"),
        ("queries.pipeline-stage", "queries.run-archived"), _note_step,
    ),
    Effect(
        "league_matches", "verify_match_states",
        ("match_id", "season", "kickoff", "status", "home", "away", "home_goals", "away_goals", "finalized_at"),
        ("league.match-changed",), _note_match,
    ),
    Effect(
        "chunk_ingests", "verify_ingests",
        ("ingest_id", "ns", "slot", "source_id", "revision", "inserted", "updated", "unchanged", "failures"),
        ("chunks.ingest-progressed",), _note_ingest, key=4, is_silent=lambda row: not row["revision"],
    ),
)  # fmt: skip


async def verify_effects(around: Surroundings, settings: Settings) -> list[Checked]:
    """Compare what is stored with what was reported."""
    checked = await _look(around, settings)
    if not any(one.differences_count for one in checked):
        return checked
    await asyncio.sleep(_SETTLE_SECONDS)
    again = await _look(around, settings)
    for first, second in zip(checked, again, strict=True):
        # What differs otherwise than before, or only now, is moving.
        seen = {(one.key, one.field, str(one.found)) for one in first.differences}
        stays = [one for one in second.differences if (one.key, one.field, str(one.found)) in seen]
        is_listed_whole = len(second.differences) == second.differences_count
        if is_listed_whole and len(first.differences) == first.differences_count:
            second.moved += len(second.differences) - len(stays)
            second.differences, second.differences_count = stays, len(stays)
    return again


async def _look(around: Surroundings, settings: Settings) -> list[Checked]:
    rows = await _snapshot(settings)
    reports: dict[str, Reports] = {effect.name: {} for effect in EFFECTS}
    readers: dict[str, list[Effect]] = {}
    for effect in EFFECTS:
        for topic in effect.topics:
            readers.setdefault(topic, []).append(effect)
    spans = await spans_of(around, sorted(readers))
    for record in read_all(around.client, spans):
        event = await decoded(around, record)
        if event is not None:
            for effect in readers[record.topic]:
                effect.note(reports[effect.name], record, event)
    truncated = {topic for (topic, _), span in spans.items() if span.low > 0}
    return [_compared(effect, rows[effect.name], reports[effect.name], truncated) for effect in EFFECTS]


async def _snapshot(settings: Settings) -> dict[str, list[Values]]:
    """The rows of all effects as they are at one moment."""
    if settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    with unavailable_when_away():
        connection: Any = await asyncpg.connect(
            settings.database,
            timeout=5.0,
            command_timeout=STATEMENT_SECONDS_MAX,
            server_settings={"timezone": "UTC"},
        )
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return {
                effect.name: [
                    tuple(row) async for row in connection.cursor(QUERIES[effect.query], prefetch=_ROWS_AT_ONCE)
                ]
                for effect in EFFECTS
            }
    finally:
        await connection.close()


def _compared(effect: Effect, rows: list[Values], reports: Reports, truncated: set[str]) -> Checked:
    checked = Checked(PART, effect.name)
    if missing := sorted(truncated & set(effect.topics)):
        checked.skipped = f"the log of {', '.join(missing)} no longer has its beginning"
        return checked
    for row in rows:
        named = {name: effect.read(name, value) for name, value in zip(effect.columns, row, strict=False)}
        key = row[: effect.key]
        found = reports.get(key)
        if _is_erased(reports, key):
            checked.leave_out(_ERASED)
        elif found is None:
            checked.compared += 1
            if not effect.is_silent(named):
                shown = "|".join(map(str, key))
                checked.differs(Difference(shown, "row", f"an event of {', '.join(effect.topics)}", named, row[-1]))
        else:
            checked.compared += 1
            _compare(checked, effect, named, found, key)
    return checked


def _is_erased(reports: Reports, key: Values) -> bool:
    places = (key, (key[0], "")) if len(key) > 1 else (key,)
    return any("is_erased" in found.values for place in places if (found := reports.get(place)) is not None)


def _compare(checked: Checked, effect: Effect, row: Mapping[str, Any], found: Found, key: Values) -> None:
    # A value that no event told was never set.
    for name in effect.columns[effect.key :]:
        expected = found.values.get(name, 0 if isinstance(row[name], int) else None)
        if expected != row[name]:
            shown = "|".join(map(str, key))
            checked.differs(Difference(shown, name, expected, row[name], found.position))

"""(c) Effects: compares the stored state of work with the events that reported it.

Invariant: rows are one snapshot, events are read afterwards to an end fixed then, so an effect without its event is
detected. A row whose event is not published yet, or that changed meanwhile, is checked once more; what differs both
times in the same way is a difference. The contents of events are stored on disk and rows come a few at a time, so
memory grows with neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.decisions import spans_of
from highwater.connectors.verify.holes import by_topic, holes_of
from highwater.connectors.verify.live import Row, Rows, live_snapshot
from highwater.connectors.verify.log import decoded, read_all
from highwater.connectors.verify.notes import Named, notes_on_disk
from highwater.connectors.verify.report import Checked, Difference
from highwater.connectors.verify.statements import QUERIES
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.streams.clock import to_datetime
from highwater.streams.settings import Settings

PART = "effects"
# The relay publishes within a quarter of a second; a worker stores and publishes in one transaction.
_SETTLE_SECONDS = 2.0

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """What events say about one key: the values that its row must have, the position of the event, and whether it is void."""

    values: Mapping[str, Any]
    position: str


# What was noted, by key.
Reports = Named


@dataclass(frozen=True, slots=True)
class Effect:
    """A table, the topics that report it, and how their events determine its rows.

    `is_silent` decides whether a row without any event is correct: nothing happened to it that is reported.
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


def _at(reports: Reports, key: Row, record: Record, **values: Any) -> None:
    found = reports.get(key)
    reports[key] = ExpectedRow({**({} if found is None else found.values), **values}, str(record.position))


def _told(reports: Reports, key: Row) -> Mapping[str, Any]:
    found = reports.get(key)
    return {} if found is None else found.values


def _moment(ms: int | None) -> Any:
    return None if ms is None else to_datetime(ms)


def _later(before: Any, ms: int | None) -> Any:
    at = _moment(ms)
    return at if before is None else max(before, at)


def _note_version(reports: Reports, record: Record, event: Event) -> None:
    _at(
        reports, (event["user_id"], event["cluster_version"]), record,
        caused_by=event["request_position"], dataset_size=event["dataset_size"], omitted=event["omitted"],
        noise=event["noise"], left_out=event["left_out"], basis_id=event["basis_id"], updated_at=_moment(event["rebuilt_at"]),
        hwm=dict(event["hwm"]), clusters=event["clusters"], curations=list(event["curations"]),
    )  # fmt: skip


def _note_user(reports: Reports, record: Record, event: Event) -> None:
    key = (event["user_id"],)
    if record.topic == "feeds.user-changed":
        held = _told(reports, key).get("revision", 0)
        _at(reports, key, record, revision=max(held, event["revision"]))
        if event["erased"]:
            _at(reports, key, record, is_erased=True)
        return
    held = _told(reports, key)
    if record.topic == "feeds.clusters-rebuilt":
        if event["cluster_version"] >= held.get("cluster_version", 0):
            clustered_at = _later(held.get("last_clustered_at"), event["rebuilt_at"])
            _at(reports, key, record, cluster_version=event["cluster_version"], last_clustered_at=clustered_at)
        return
    if event["outcome"] == "rebuilt":
        # Also if the clusters were unchanged, which no clusters-rebuilt reports.
        clustered_at = _later(held.get("last_clustered_at"), event["last_clustered_at"])
        _at(reports, key, record, last_clustered_at=clustered_at)
    if event["last_checked_at"] is not None:
        _at(reports, key, record, last_checked_at=_later(held.get("last_checked_at"), event["last_checked_at"]))


def _note_marks(reports: Reports, record: Record, event: Event) -> None:
    if record.topic == "feeds.user-changed":
        if event["erased"]:
            _at(reports, (event["user_id"], ""), record, is_erased=True)
    elif event["outcome"] == "rebuilt" or event["retractions"] is not None:
        for channel_id, seq in event["hwm"].items():
            key = event["user_id"], channel_id
            _at(reports, key, record, last_seq=max(seq, _told(reports, key).get("last_seq", 0)))


def _note_bump(reports: Reports, record: Record, event: Event) -> None:
    if event["version"] >= _told(reports, (event["key"],)).get("version", 0):
        _at(
            reports, (event["key"],), record,
            version=event["version"], etag=event["etag"], position=event["caused_by"],
            changed_at=_moment(event["bumped_at"]),
        )  # fmt: skip


def _note_status(reports: Reports, record: Record, event: Event) -> None:
    key = (event["id"],)
    if event["revision"] >= _told(reports, key).get("revision", 0):
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


_MATCH = (
    *("season", "status", "home", "away", "home_goals", "away_goals"),
    *("home_goals_extra_time", "away_goals_extra_time", "home_penalties", "away_penalties"),
)


def _note_match(reports: Reports, record: Record, event: Event) -> None:
    key = (event["match_id"],)
    if event["revision"] >= _told(reports, key).get("revision", 0):
        told = {name: event[name] for name in (*_MATCH, "revision")}
        moments = {"kickoff": _moment(event["kickoff"]), "finalized_at": _moment(event["finalized_at"])}
        _at(reports, key, record, **told, **moments)


def _note_ingest(reports: Reports, record: Record, event: Event) -> None:
    key = event["ingest_id"], event["ns"], event["slot"], event["source_id"]
    if event["revision"] >= _told(reports, key).get("revision", 0):
        told = {name: event[name] for name in ("revision", "inserted", "updated", "unchanged")}
        _at(reports, key, record, **told, failures=event["failed"])


def _json(name: str, value: Any) -> Any:
    return orjson.loads(value) if name == "hwm" else value


_ERASED = "of a user who was erased: rows begin again, events stay"

EFFECTS: tuple[Effect, ...] = (
    Effect(
        "user_clusters", QUERIES["verify_cluster_versions"],
        ("user_id", "cluster_version", "caused_by", "dataset_size", "omitted", "noise", "left_out", "basis_id", "updated_at",
         "hwm", "clusters", "curations"),
        ("feeds.clusters-rebuilt",), _note_version, key=2, read=_json,
        excluded={"the clusters themselves, cluster_history": "titles may come from a model; their number is compared"},
    ),
    Effect(
        "user_stats", QUERIES["verify_user_versions"],
        ("user_id", "cluster_version", "last_clustered_at", "last_checked_at", "revision"),
        ("feeds.clusters-rebuilt", "feeds.rebuild-finished", "feeds.user-changed"), _note_user,
        is_silent=lambda row: not row["cluster_version"] and row["last_checked_at"] is None and not row["revision"],
        excluded={"users once erased": _ERASED, "last_enqueued_at, in_flight": "taken while a rebuild is in progress"},
    ),
    Effect(
        "user_cluster_hwm", QUERIES["verify_marks"], ("user_id", "channel_id", "last_seq"),
        ("feeds.rebuild-finished", "feeds.user-changed"), _note_marks, key=2, excluded={"users once erased": _ERASED},
    ),
    Effect(
        "resource_versions", QUERIES["verify_versions"], ("key", "version", "etag", "position", "changed_at"),
        ("cache.version-bumped",), _note_bump,
    ),
    Effect("pipeline_runs", QUERIES["verify_statuses"], ("id", "status"), ("queries.pipeline-stage",), _note_status),
    Effect(
        "run_events", QUERIES["verify_timeline"], ("position", "run_id", "status", "operation", "attempt", "revision"),
        ("queries.pipeline-stage", "queries.run-archived"), _note_step,
    ),
    Effect(
        "league_matches", QUERIES["verify_match_states"],
        ("match_id", "season", "kickoff", *_MATCH[1:], "finalized_at"),
        ("league.match-changed",), _note_match,
    ),
    Effect(
        "chunk_ingests", QUERIES["verify_ingests"],
        ("ingest_id", "ns", "slot", "source_id", "revision", "inserted", "updated", "unchanged", "failures"),
        ("chunks.ingest-progressed",), _note_ingest, key=4, is_silent=lambda row: not row["revision"],
    ),
)  # fmt: skip
# What no comparison of effects detects.
NOT_LOOKED_FOR: Mapping[str, str] = {
    "rows that are gone": "rows are forgotten by erasures and by retention; rows that stand are held against their events",
}


async def verify_effects(context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> list[Checked]:
    """Compare what is stored with what was reported."""
    checked = await _look(context, settings, time_limit)
    if not any(one.differences_count for one in checked):
        return checked
    await asyncio.sleep(_SETTLE_SECONDS)
    again = await _look(context, settings, time_limit)
    for first, second in zip(checked, again, strict=True):
        # What differs in another way than before, or only now, is changing.
        seen = {(one.key, one.field, str(one.found)) for one in first.differences}
        stays = [one for one in second.differences if (one.key, one.field, str(one.found)) in seen]
        is_listed_whole = len(second.differences) == second.differences_count
        if is_listed_whole and len(first.differences) == first.differences_count:
            second.moved += len(second.differences) - len(stays)
            second.differences, second.differences_count = stays, len(stays)
    return again


async def _look(context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> list[Checked]:
    readers: dict[str, list[Effect]] = {}
    for effect in EFFECTS:
        for topic in effect.topics:
            readers.setdefault(topic, []).append(effect)
    time_limit.at("a snapshot of the database, and the ends of the log")
    async with live_snapshot(settings) as live:
        spans = await spans_of(context, sorted(readers))
        with notes_on_disk() as notes:
            reports = {effect.name: Named(notes, effect.name) for effect in EFFECTS}
            async for record in read_all(context.client, spans, time_limit):
                event = await decoded(context, record)
                if event is not None:
                    for effect in readers[record.topic]:
                        effect.note(reports[effect.name], record, event)
            gone = {
                topic: f"the log of {topic} no longer has its beginning"
                for (topic, _), span in spans.items()
                if span.low > 0
            } | by_topic(await holes_of(context))
            return [await _compared(effect, live, reports[effect.name], gone, time_limit) for effect in EFFECTS]


async def _compared(
    effect: Effect, live: Any, reports: Reports, gone: Mapping[str, str], time_limit: TimeLimit
) -> Checked:
    checked = Checked(PART, effect.name)
    if missing := sorted(gone.keys() & set(effect.topics)):
        checked.skipped = "; ".join(gone[topic] for topic in missing)
        return checked
    rows = Rows(live, effect.query)
    time_limit.at(f"rows of {effect.name}")
    while (row := await rows.next()) is not None:
        time_limit.check()
        compare_row(checked, effect, row, reports)
    return checked


def compare_row(checked: Checked, effect: Effect, row: Row, reports: Reports) -> None:
    """Compare a row with the events about its key."""
    named = {name: effect.read(name, value) for name, value in zip(effect.columns, row, strict=False)}
    key = row[: effect.key]
    found = reports.get(key)
    if _is_erased(reports, key):
        checked.leave_out(_ERASED)
        return
    checked.compared += 1
    if found is not None:
        _compare(checked, effect, named, found, key)
    elif not effect.is_silent(named):
        shown = "|".join(map(str, key))
        checked.differs(Difference(shown, "row", f"an event of {', '.join(effect.topics)}", named, row[-1]))


def _is_erased(reports: Reports, key: Row) -> bool:
    places = (key, (key[0], "")) if len(key) > 1 else (key,)
    return any("is_erased" in found.values for place in places if (found := reports.get(place)) is not None)


def _compare(checked: Checked, effect: Effect, row: Mapping[str, Any], found: ExpectedRow, key: Row) -> None:
    # A value that no event contains was never set.
    for name in effect.columns[effect.key :]:
        expected = found.values.get(name, 0 if isinstance(row[name], int) else None)
        if expected != row[name]:
            shown = "|".join(map(str, key))
            checked.differs(Difference(shown, name, expected, row[name], found.position))

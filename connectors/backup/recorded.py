"""The results that the log already holds after the backup's ends: none of them is decided, paid, sent or numbered
again.

Invariant: it is read to ends that were fixed before, in the order of the broker's time, while no role publishes. For an
event that a replay produces again it is known whether the log has it, or a later one of its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.log import decoded, read_in_order
from highwater.connectors.verify.notes import Named, Noting
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.envelope import caused_by, header
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topics import DEAD_LETTER_SUFFIX
from highwater.streams import relay_epochs

Event = Mapping[str, Any]


class Version(NamedTuple):
    """A published version of a resource; `bumped_ms` in ms since 1970."""

    version: int
    etag: str
    position: str
    bumped_ms: int


@dataclass(slots=True)
class Rebuilt:
    """A user's rebuilds since the backup, according to the log; times in ms since 1970."""

    last_request: Position | None = None
    cluster_version: int = 0
    clustered_ms: int | None = None
    checked_ms: int | None = None
    hwm: dict[str, int] = field(default_factory=dict)
    retractions: dict[str, int] = field(default_factory=dict)


class RecordedResults:
    """Results by their subject. `notes` stores what has one entry per key and source, so that memory does not grow with
    the log.
    """

    def __init__(self, notes: Noting) -> None:
        self._covered = Named(notes, "covered")
        self._letters = Named(notes, "letters")
        self.reached: dict[Place, int] = {}  # the last offset of a source that any result names
        self.outbox_id = 0
        self.relay_epochs: dict[int, int] = {}
        self.versions: dict[str, Version] = {}
        self.revisions: dict[str, int] = {}
        self.seasons: dict[str, int] = {}
        self.rebuilt: dict[str, Rebuilt] = {}
        self.runs: dict[str, Event] = {}
        self.archived: dict[str, Event] = {}
        self.memory_id = 0
        self.alerts: list[str] = []
        self.progress: dict[str, Event] = {}
        self.checkpoints: dict[str, Event | None] = {}
        self.requested: set[str] = set()
        self.usage: dict[tuple[str, str, int], Event] = {}
        self.ingests: dict[tuple[str, str, str, str], Event] = {}

    def covers(self, topic: str, key: bytes | None, cause: Position | None) -> bool:
        """Return whether the log has what this event caused for this key, or what came after it.

        For one key a sink publishes in the order of causes, so a later cause implies the earlier ones.
        """
        if cause is None:
            return False
        held = self._covered.get((topic, (key or b"").hex(), cause.topic, cause.partition))
        return held is not None and cause.offset <= held

    def has_letter(self, origin: str, group: str) -> bool:
        """Return whether a group dead-lettered an event."""
        return self._letters.get((origin, group)) is not None

    def note(self, record: Record) -> None:
        """Note the headers of a record."""
        headers = record.headers
        self.outbox_id = max(self.outbox_id, outbox.id_of(headers) or 0)
        found = relay_epochs.stamp_of(record.topic, headers)
        if found is not None:
            shard, epoch = found
            self.relay_epochs[shard] = max(epoch, self.relay_epochs.get(shard, 0))
        if record.topic.endswith(DEAD_LETTER_SUFFIX):
            self._letters[header(headers, "dlq_origin") or "", header(headers, "dlq_group") or ""] = 1
            return
        cause = caused_by(headers)
        if cause is not None:
            key = (record.topic, (record.key or b"").hex(), cause.topic, cause.partition)
            self._covered[key] = max(cause.offset, self._covered.get(key) or 0)
            place = cause.topic, cause.partition
            self.reached[place] = max(cause.offset, self.reached.get(place, 0))

    def note_event(self, record: Record, event: Event) -> None:
        """Note the contents of an event."""
        match record.topic:
            case "cache.version-bumped":
                held = self.versions.get(event["key"])
                if held is None or event["version"] >= held.version:
                    self.versions[event["key"]] = Version(
                        event["version"], event["etag"], event["caused_by"], event["bumped_at"]
                    )
            case "feeds.user-changed":
                user_id = event["user_id"]
                self.revisions[user_id] = max(event["revision"], self.revisions.get(user_id, 0))
                if event["erased"]:
                    self.rebuilt.pop(user_id, None)
            case "feeds.rebuild-finished":
                self._note_rebuild(event)
            case "feeds.clusters-rebuilt":
                rebuilt = self.rebuilt.setdefault(event["user_id"], Rebuilt())
                rebuilt.cluster_version = max(rebuilt.cluster_version, event["cluster_version"])
            case "league.match-changed":
                self.seasons[event["season"]] = max(event["revision"], self.seasons.get(event["season"], 0))
            case "chunks.ingest-progressed":
                key = event["ingest_id"], event["ns"], event["slot"], event["source_id"]
                if key not in self.ingests or event["revision"] >= self.ingests[key]["revision"]:
                    self.ingests[key] = event
            case _:
                self._note_work(record, event)

    def _note_rebuild(self, event: Event) -> None:
        rebuilt = self.rebuilt.setdefault(event["user_id"], Rebuilt())
        if event["reason"] != "locked":
            rebuilt.last_request = _later(rebuilt.last_request, event["request_position"])
        if event["last_checked_at"] is not None:
            rebuilt.checked_ms = max(event["last_checked_at"], rebuilt.checked_ms or 0)
        if event["outcome"] == "rebuilt":
            rebuilt.cluster_version = max(rebuilt.cluster_version, event["cluster_version"])
            rebuilt.clustered_ms = max(event["last_clustered_at"] or 0, rebuilt.clustered_ms or 0)
        if event["outcome"] == "rebuilt" or event["retractions"] is not None:
            for channel_id, seq in event["hwm"].items():
                rebuilt.hwm[channel_id] = max(seq, rebuilt.hwm.get(channel_id, 0))
            for channel_id, number in (event["retractions"] or {}).items():
                rebuilt.retractions[channel_id] = max(number, rebuilt.retractions.get(channel_id, 0))

    def _note_work(self, record: Record, event: Event) -> None:
        match record.topic:
            case "queries.pipeline-stage":
                if event["revision"] >= self.runs.get(event["id"], {"revision": 0})["revision"]:
                    self.runs[event["id"]] = event
            case "queries.run-archived":
                self.archived[event["request_id"]] = event
                self.memory_id = max(self.memory_id, event["memory_id"] or 0)
            case "queries.run-failed":
                if event["is_alert"]:
                    self.alerts.append(str(record.position))
            case _:
                self._note_job(record, event)

    def _note_job(self, record: Record, event: Event) -> None:
        match record.topic:
            case "jobs.progress":
                if event["seq"] >= self.progress.get(event["job_id"], {"seq": 0})["seq"]:
                    self.progress[event["job_id"]] = event
            case "jobs.checkpoint-saved":
                self.checkpoints[event["job_id"]] = event
            case "jobs.generation-requested" | "jobs.ingestion-requested" | "jobs.export-requested":
                self.requested.add(event["job_id"])
            case "jobs.usage-recorded":
                self.usage[event["organization_id"], event["period"], event["seq"]] = event


def _later(position: Position | None, text: str) -> Position | None:
    try:
        found = parse_position(text)
    except InvalidEventError:
        return position
    return found if position is None or position[:2] != found[:2] or found.offset > position.offset else position


async def read_results(
    context: ProcessContext, spans: Mapping[Place, LogRange], notes: Noting, time_limit: TimeLimit
) -> RecordedResults:
    """Read results from their topics, within the spans."""
    told = RecordedResults(notes)
    async for record in read_in_order(context.client, spans, time_limit):
        told.note(record)
        if record.topic.endswith(DEAD_LETTER_SUFFIX):
            continue
        if record.topic == "jobs.checkpoint-saved" and record.value is None:
            told.checkpoints[(record.key or b"").decode()] = None
            continue
        event = await decoded(context, record)
        if event is not None:
            told.note_event(record, event)
    return told

"""Loads results from the log into the restored rows: runs, jobs, charges, alerts, rebuilds, numbers.

Invariant: what was paid, charged or sent according to the log is not paid, charged or sent again. A run that had begun,
and whose work was lost with the database, fails with that reason; a job continues from its checkpoint in the log;
alerts up to the log's end count as sent. Published numbers are never assigned to anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from highwater.connectors.backup.recorded import Event, Rebuilt, RecordedResults
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.chunks.sink_chunks import progress_of
from highwater.connectors.chunks.store import SourceKey, ingests_of
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxFactory, OutboxRow
from highwater.connectors.postgres.leases import LeaseKind
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.chunks import INGEST_PROGRESSED
from highwater.schemas.codec import Codec
from highwater.schemas.feeds import REBUILD_DEMANDED
from highwater.schemas.positions import Position
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, RUN_FAILED
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.progress import ERROR, GENERATION_DONE, JOB_DONE
from highwater.streams.jobs.states import JobStatus
from highwater.streams.queries.states import ArchiveStatus, Status, stage_at
from highwater.streams.queries.users import user_key

SOURCE = "/restore"
LOST_RUN = "its work was lost with the database, and is not repeated because it was paid for; submit it again"
LOST_ANSWER = "its answer was lost with the database after the last backup"
LOST_RESULT = "its result was lost with the database after the last backup; it was counted, submit it again"
LOST = (LOST_RUN, LOST_ANSWER, LOST_RESULT)
_CANCELLED = "cancelled by the user"
_EXPIRED = "it expired before it was begun"
RESTORED = "restored"


@dataclass(slots=True)
class Loaded:
    """What was loaded, as counts, and which users need a rebuild."""

    counts: dict[str, int] = field(default_factory=dict)
    rebuilds: list[str] = field(default_factory=list)

    def add(self, what: str, count: int) -> None:
        """Add a count."""
        self.counts[what] = self.counts.get(what, 0) + count


class Results:
    """Loads results, each kind in the caller's transaction."""

    def __init__(self, results: RecordedResults, codec: Codec, now_ms: int) -> None:
        self._told = results
        self._codec = codec
        self._tell = OutboxFactory(codec, SOURCE)
        self._now_ms = now_ms
        self.loaded = Loaded()

    # -- before the sinks are replayed ---------------------------------------------------------------------------------

    async def raise_numbers(self, tx: Connection) -> None:
        """Raise sequences, epochs of relays and revisions of seasons above those of the log."""
        told = self._told
        names = await tx.fetchrow(QUERIES["identity_of_outbox"])
        assert names is not None  # a row without a table
        await tx.execute(QUERIES["raise_sequence_above"], names["outbox"], told.outbox_id)
        await tx.execute(QUERIES["raise_sequence_above"], names["memories"], told.memory_id)
        shards = {str(shard): epoch for shard, epoch in told.relay_epochs.items()}
        await tx.execute(QUERIES["load_lease_epochs"], LeaseKind.OUTBOX, list(shards), list(shards.values()))
        await tx.execute(QUERIES["load_season_revisions"], list(told.seasons), list(told.seasons.values()))

    # -- after the first sinks -------------------------------------------------------------------------------------------

    async def load_charges(self, tx: Connection) -> None:
        """Load charges under their own numbers, and the sums that limits are judged by."""
        events = list(self._told.usage.values())
        if not events:
            return
        names = ("organization_id", "period", "seq", "job_id", "presentations", "slides", "tokens", "cost_cents")
        columns = [[event[name] for event in events] for name in names]
        columns.append([event.get("built_in_tokens", 0) for event in events])
        await tx.execute(QUERIES["load_usage_entries"], *columns, [to_datetime(event["at"]) for event in events])
        touched = sorted({(event["organization_id"], event["period"]) for event in events})
        await tx.execute(QUERIES["load_usage_sums"], [one for one, _ in touched], [period for _, period in touched])
        await tx.execute(QUERIES["load_usage_of_jobs"], sorted({event["job_id"] for event in events}))
        self.loaded.add("charges", len(events))

    async def load_jobs(self, tx: Connection) -> None:
        """Load jobs by their progress and checkpoints."""
        told = self._told
        ids = sorted(told.progress.keys() | told.checkpoints.keys() | told.requested)
        rows = [
            changed for row in await tx.fetch(QUERIES["jobs_to_load"], ids) if (changed := self._job(row)) is not None
        ]
        if rows:
            await tx.execute(QUERIES["load_jobs"], *map(list, zip(*rows, strict=True)))
            self.loaded.add("jobs", len(rows))
        await tx.execute(QUERIES["drop_commands_of_ended_jobs"])

    def _job(self, row: Row) -> tuple[Any, ...] | None:
        """Return the row in the order of `load_jobs`; None if the stored row is as new."""
        job_id, told = row["job_id"], self._told
        last, saved = told.progress.get(job_id), told.checkpoints.get(job_id)
        seq, percent = (last["seq"], last["progress_pct"]) if last else (0, 0)
        if last is not None and last["event_type"] in (GENERATION_DONE, JOB_DONE, ERROR):
            if seq <= row["seq"] and row["status"] not in (JobStatus.PENDING, JobStatus.RUNNING):
                return None
            at = to_datetime(last["at"])
            if last["event_type"] != ERROR:
                return job_id, JobStatus.COMPLETED, seq, 100, LOST_RESULT, at, None, 0, 0, row["epoch"]
            error = last["error_message"] or ""
            status = JobStatus.EXPIRED if error == _EXPIRED else JobStatus.FAILED
            status = JobStatus.REVOKED if row["status"] == JobStatus.REVOKED else status
            done, total, checkpoint = _checkpoint(saved)
            return job_id, status, seq, percent, error, at, checkpoint, done, total, row["epoch"]
        is_refused = row["status"] == JobStatus.FAILED and row["seq"] <= 1
        is_at_work = row["status"] in (JobStatus.PENDING, JobStatus.RUNNING)
        if seq <= row["seq"] and saved is None and not (is_refused and job_id in told.requested):
            return None
        if not is_at_work and not is_refused:
            return None
        done, total, checkpoint = _checkpoint(saved)
        epoch = max(row["epoch"], saved["epoch"] if saved else 0)
        return job_id, JobStatus.PENDING, seq, percent, None, None, checkpoint, done, total, epoch

    async def load_runs(self, tx: Connection) -> None:
        """Load runs by their stages; one that had begun and has not ended fails."""
        told = self._told
        held = {row["id"]: row for row in await tx.fetch(QUERIES["runs_to_load"], sorted(told.runs))}
        rows, events = [], []
        for run_id, row in held.items():
            found = self._run(told.runs[run_id], row)
            if found is not None:
                rows.append(found[0])
                events += found[1]
        if rows:
            await tx.execute(QUERIES["load_runs"], *map(list, zip(*rows, strict=True)))
            await outbox.add(tx, events)
            self.loaded.add("runs", len(rows))
        ordinals: dict[str, int] = {}
        for event in told.runs.values():
            key = user_key(event["user_id"])
            ordinals[key] = max(event["ordinal"], ordinals.get(key, 0))
        await tx.execute(QUERIES["load_ordinals"], list(ordinals), list(ordinals.values()))

    def _run(self, event: Event, row: Row) -> tuple[tuple[Any, ...], list[OutboxRow]] | None:
        """Return the row in the order of `load_runs`, and its events; None if the stored row is as new."""
        status, archived = Status(event["status"]), self._told.archived.get(event["id"])
        is_known = row["revision"] >= event["revision"]
        if is_known and (row["status"] != Status.COMPLETED or archived is None or row["archive_status"] in _ARCHIVED):
            return None
        at, cause = to_datetime(event["at"]), None
        if status is Status.FAILED:
            error = event["error"]
            return (event["id"], status, None, event["revision"], error, at, error == _CANCELLED), []
        if status is Status.COMPLETED:
            told = [] if archived is not None else [self._archived(event)]
            stands = ArchiveStatus.FAILED if archived is None else ArchiveStatus(archived["archive_status"])
            error = None if is_known else LOST_ANSWER
            return (event["id"], status, stands, event["revision"], error, at, False), told
        failed = {
            **event, "status": Status.FAILED, "operation": "UPDATE", "revision": event["revision"] + 1, "waiting": False,
            "error": LOST_RUN, "at": self._now_ms,
        }  # fmt: skip
        alert = {
            "request_id": event["id"], "user_id": event["user_id"], "stage": str(stage_at(status, None) or ""),
            "reason": RESTORED, "error": LOST_RUN, "stack": "", "is_alert": True, "at": self._now_ms,
        }  # fmt: skip
        rows = [self._row(PIPELINE_STAGE, failed, cause), self._row(RUN_FAILED, alert, cause)]
        at = to_datetime(self._now_ms)
        return (event["id"], Status.FAILED, None, failed["revision"], LOST_RUN, at, False), rows

    def _archived(self, event: Event) -> OutboxRow:
        told = {
            "request_id": event["id"], "user_id": event["user_id"], "ordinal": event["ordinal"],
            "archive_status": str(ArchiveStatus.FAILED), "memory_id": None, "error": LOST_ANSWER, "at": self._now_ms,
        }  # fmt: skip
        return self._row(RUN_ARCHIVED, told, None)

    def _row(self, topic: Any, event: Mapping[str, Any], caused_by: Position | None) -> OutboxRow:
        return outbox.event_row(self._codec, topic, event, source=SOURCE, now_ms=self._now_ms, caused_by=caused_by)

    async def load_alerts(self, tx: Connection, channels: Sequence[str]) -> None:
        """Mark the alerts of the log as sent by every channel."""
        alerts = self._told.alerts
        if alerts:
            await tx.execute(QUERIES["load_alerts_sent"], alerts, list(channels), to_datetime(self._now_ms))
            self.loaded.add("alerts", len(alerts))

    async def load_rebuilds(self, tx: Connection) -> None:
        """Load rebuilds with their versions and marks; request clusters again whose content is lost."""
        rebuilt = self._told.rebuilt
        users = sorted(rebuilt)
        versions = [rebuilt[user].cluster_version for user in users]
        self.loaded.rebuilds = [row["user_id"] for row in await tx.fetch(QUERIES["users_to_rebuild"], users, versions)]
        if users:
            found = [rebuilt[user] for user in users]
            requests = [None if one.last_request is None else str(one.last_request) for one in found]
            times = [[_at(one.clustered_ms) for one in found], [_at(one.checked_ms) for one in found]]
            await tx.execute(QUERIES["load_rebuilds"], users, versions, requests, *times)
            marks = [row for user in users for row in _marks(user, rebuilt[user])]
            if marks:
                await tx.execute(QUERIES["load_marks"], *map(list, zip(*marks, strict=True)))
        demands = [
            self._row(REBUILD_DEMANDED, {"user_id": user, "ts": self._now_ms, "force": True, "if_new": False}, None)
            for user in self.loaded.rebuilds
        ]
        await outbox.add(tx, demands)
        self.loaded.add("rebuilds demanded", len(demands))
        revisions = self._told.revisions
        await tx.execute(QUERIES["load_user_revisions"], list(revisions), list(revisions.values()))

    async def load_ingests(self, tx: Connection) -> None:
        """Load ingests with revisions that the log does not have, and report those again that are further than the log says."""
        held = await ingests_of(tx, [(SourceKey(*key[1:]), key[0]) for key in self._told.ingests])
        raised, events = [], []
        for (ingest_id, *source), event in self._told.ingests.items():
            key = SourceKey(*source)
            ingest = held.get(key, {}).get(ingest_id)
            if ingest is None:
                continue
            now = progress_of(key, ingest, self._now_ms)
            is_same = all(now[name] == event[name] for name in _PROGRESS)  # type: ignore[literal-required]
            revision = event["revision"] if is_same else max(event["revision"], ingest.revision) + 1
            raised.append((ingest_id, *key, revision))
            if not is_same:
                events.append(self._row(INGEST_PROGRESSED, {**now, "revision": revision}, None))
        if raised:
            await tx.execute(QUERIES["load_ingest_revisions"], *map(list, zip(*raised, strict=True)))
            await outbox.add(tx, events)


_ARCHIVED = (ArchiveStatus.STORED, ArchiveStatus.FAILED)
_PROGRESS = (
    "seen",
    "failed",
    "inserted",
    "updated",
    "unchanged",
    "expected",
    "full",
    "force",
    "truncated",
    "is_superseded",
)


def _at(ms: int | None) -> Any:
    return None if ms is None else to_datetime(ms)


def _marks(user: str, rebuilt: Rebuilt) -> list[tuple[str, str, int, int]]:
    return [(user, channel, seq, rebuilt.retractions.get(channel, 0)) for channel, seq in sorted(rebuilt.hwm.items())]


def _checkpoint(saved: Event | None) -> tuple[int, int, str | None]:
    """Return steps done, total steps and the checkpoint of an event of `jobs.checkpoint-saved`, as `checkpoint_event`
    splits them.
    """
    if saved is None:
        return 0, 0, None
    held = orjson.loads(saved["state"])
    if saved["outline"]:
        held["outline"] = orjson.loads(saved["outline"])
    if saved["completed_slide_ids"]:
        held["slide_ids"] = saved["completed_slide_ids"]
    return saved["slides_completed"], saved["slides_total"], orjson.dumps(held).decode()

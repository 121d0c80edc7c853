"""The sink of controls: cancels runs, and restarts runs from a stage as new ones.

Invariant: an ended run is unchanged (R1.4); a restart creates a new run, at the end of the user's order. A run that a
control created is known only to later controls in its partition; those of a user share one, since the user is their
key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from highwater.connectors.engines.controls import Controls, ControlsSink, Prepared
from highwater.connectors.identity import erasures
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.known import Origin
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.postgres.pool import Connection, Row
from highwater.connectors.queries import counting
from highwater.connectors.queries.raw_logs import log_queries
from highwater.connectors.queries.rows import Ordinals, run_of
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import USAGE_RECORDED
from highwater.schemas.queries import PIPELINE_STAGE, QUERY_SUBMITTED, RUN_CONTROLLED, RUN_FAILED, RunControlled
from highwater.streams.clock import to_datetime
from highwater.streams.queries.runs import INSERT, UPDATE, Run, failed, failed_event, stage_event
from highwater.streams.queries.states import TERMINAL, Stage, waiting_status
from highwater.streams.queries.validation import CANCEL, RESTART, check_queries_event

# The fields of a control that name runs.
_NAMED: tuple[Literal["request_id", "new_request_id"], ...] = ("request_id", "new_request_id")
CANCELLED = "cancelled by the user"


async def _found(tx: Connection, request_ids: list[str]) -> set[str]:
    return {row["id"] for row in await tx.fetch(QUERIES["known_runs"], request_ids)}


SUBMISSIONS = Origin(QUERY_SUBMITTED, "queries", "a run", "submissions", _found)


class Restart(NamedTuple):
    """A run to be created from another."""

    run: Run
    source_id: str
    event: Event[RunControlled]


class LockedRun(NamedTuple):
    """A run that is locked, and which results it has."""

    run: Run
    restarted_from: str | None
    stages_done: frozenset[Stage]


class RunControlsSink(ControlsSink[RunControlled]):
    """A cancelled run fails under the lock of its row; a restarted one is a copy with a place of its own."""

    group = "controls"
    topics = (RUN_CONTROLLED,)
    controls = Controls(check_queries_event, SUBMISSIONS, "/connectors/sinks/controls")

    def _named(self, events: Sequence[Event[RunControlled]]) -> set[str]:
        made = {event.value["new_request_id"] for event in events}
        return {event.value["request_id"] for event in events} - made

    async def apply(
        self, tx: Connection, events: Sequence[Event[RunControlled]], prepared: Prepared[RunControlled]
    ) -> Sequence[DeadLetter]:
        """Cancel and restart; a run that does not exist now was never requested (or is erased, with everything about it)."""
        await surrogate_keys.share(tx)  # a restarted run reuses sources
        valid = await erasures.valid(tx, prepared.events)
        if not valid:
            return prepared.dead
        restarts = [event.value["user_id"] for event in valid if event.value["action"] == RESTART]
        ordinals = await Ordinals.lock(tx, restarts)
        refused: list[DeadLetter] = []
        made: list[str] = []
        for part in _parts(valid):
            batch = _Batch(await _lock(tx, valid), ordinals, self._clock())
            for event in part:
                batch.take(event)
            await _store(tx, batch)
            await outbox.add(tx, self._told(batch))
            usages = await counting.count(tx, [after for _, after, _ in batch.cancelled], batch.now_ms)
            await outbox.add(
                tx,
                [
                    self._tell.row(USAGE_RECORDED, usages[after.id], batch.now_ms, event.record.position)
                    for _, after, event in batch.cancelled
                    if after.id in usages
                ],
            )
            refused += batch.refused
            made += [restart.run.id for restart in batch.restarts]
        await ordinals.store(tx)
        await log_queries(tx, made)
        return [*prepared.dead, *refused]

    def _told(self, batch: _Batch) -> list[OutboxRow]:
        rows, now_ms = [], batch.now_ms
        for before, after, event in batch.cancelled:
            at = event.record.position
            ended = failed_event(before, before.stage, "cancelled", CANCELLED, "", now_ms, is_alert=False)
            rows.append(self._tell.row(PIPELINE_STAGE, stage_event(after, UPDATE, now_ms, waiting=False), now_ms, at))
            rows.append(self._tell.row(RUN_FAILED, ended, now_ms, at))
        for run, _, event in batch.restarts:
            told = stage_event(run, INSERT, now_ms, waiting=True)
            rows.append(self._tell.row(PIPELINE_STAGE, told, now_ms, event.record.position))
        return rows


class _Batch:
    """The effects of controls on locked runs."""

    def __init__(self, held: Mapping[str, LockedRun], ordinals: Ordinals, now_ms: int) -> None:
        self._held = dict(held)
        self._ordinals = ordinals
        self.now_ms = now_ms
        self.cancelled: list[tuple[Run, Run, Event[RunControlled]]] = []
        self.restarts: list[Restart] = []
        self.refused: list[DeadLetter] = []

    def take(self, event: Event[RunControlled]) -> None:
        """Decide on one control."""
        value = event.value
        held = self._held.get(value["request_id"])
        if held is None:
            self._refuse(event, "unknown_run", f"no run {value['request_id']} was submitted before")
        elif held.run.user_id != value["user_id"]:
            self._refuse(event, "wrong_user", f"{value['request_id']} is another user's")
        elif value["action"] == CANCEL:
            self._cancel(event, held)
        else:
            self._restart(event, held)

    def _refuse(self, event: Event[RunControlled], reason: str, detail: str) -> None:
        self.refused.append(DeadLetter(event.record, reason, detail))

    def _cancel(self, event: Event[RunControlled], held: LockedRun) -> None:
        if held.run.status in TERMINAL:
            return
        after = replace(failed(held.run, CANCELLED, self.now_ms), epoch=held.run.epoch + 1)
        self._held[after.id] = held._replace(run=after)
        self.cancelled.append((held.run, after, event))

    def _restart(self, event: Event[RunControlled], held: LockedRun) -> None:
        new_id, said = event.value["new_request_id"], event.value["stage"]
        assert new_id is not None
        assert said is not None  # a restart has both, or `check_queries_event` refused it
        stage = Stage(said)
        known = self._held.get(new_id)
        if known is not None:
            if known.restarted_from != held.run.id:
                self._refuse(event, "conflicting_repeat", f"{new_id} is another run")
            return
        if stage not in held.stages_done:
            self._refuse(event, "nothing_to_restart_from", f"{held.run.id} has not come to its {stage}")
            return
        run = Run(
            id=new_id,
            user_id=held.run.user_id,
            ordinal=self._ordinals.take(held.run.user_id),
            query="",
            status=waiting_status(stage),
        )
        self._held[new_id] = LockedRun(run, held.run.id, frozenset())
        self.restarts.append(Restart(run, held.run.id, event))


def _parts(events: Sequence[Event[RunControlled]]) -> list[list[Event[RunControlled]]]:
    """Split a batch into consecutive parts, none with a control of a run that is created in it."""
    parts: list[list[Event[RunControlled]]] = [[]]
    made: set[str] = set()
    for event in events:
        if event.value["request_id"] in made:
            parts.append([])
            made = set()
        parts[-1].append(event)
        if event.value["new_request_id"] is not None:
            made.add(event.value["new_request_id"])
    return parts


async def _lock(tx: Connection, events: Sequence[Event[RunControlled]]) -> dict[str, LockedRun]:
    named = (event.value[name] for event in events for name in _NAMED)
    rows = await tx.fetch(QUERIES["lock_runs"], sorted({one for one in named if one is not None}))
    return {row["id"]: LockedRun(run_of(row), row["restarted_from"], _stages_done(row)) for row in rows}


def _stages_done(row: Row) -> frozenset[Stage]:
    """Return the stages that a run can be restarted from, by its results."""
    has = {Stage.ANALYZER: True, Stage.ASSEMBLER: row["has_analysis"], Stage.RESPONDER: row["has_payload"]}
    return frozenset(stage for stage, is_there in has.items() if is_there)


async def _store(tx: Connection, batch: _Batch) -> None:
    at = to_datetime(batch.now_ms)
    if batch.cancelled:
        rows = [
            (
                before.id,
                before.status,
                before.epoch,
                after.status,
                after.error,
                after.revision,
                str(event.record.position),
            )
            for before, after, event in batch.cancelled
        ]
        status = await tx.execute(QUERIES["cancel_runs"], *map(list, zip(*rows, strict=True)), at)
        if status != f"UPDATE {len(rows)}":
            raise UnavailableError("a run changed while it was locked; the batch is repeated")
    if batch.restarts:
        made = [
            (run.id, source_id, run.ordinal, run.status, event.record.arrived_ms, str(event.record.position))
            for run, source_id, event in batch.restarts
        ]
        await tx.execute(QUERIES["restart_runs"], *map(list, zip(*made, strict=True)), at)
        await tx.execute(QUERIES["copy_tags"], [one[0] for one in made], [one[1] for one in made])

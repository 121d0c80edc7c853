"""Decks in the simulation (`engines.py`), with users who approve outlines, revoke jobs and restart them; the steps of a deck and
the effects of a control are the product's own code.

Their invariants, from ARCHITECTURE.md: a checkpoint is never lost and grows slide by slide, each out of the stored answer; no
slide is generated before its outline is approved; the deadline of an approval is set once; progress never goes back, and is
published without gaps until the job ends; a job that was not begun in time, or was revoked, is not begun.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson

from highwater.api.simulate import engines
from highwater.api.simulate.engines import LEASE_MS, SLOTS, Scenario, Table
from highwater.api.simulate.patches import Patches
from highwater.api.simulate.world import Process, World, process
from highwater.connectors.jobs import generation, sink_controls
from highwater.connectors.jobs import store as jobs_store
from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.jobs.generation import GenerationSteps
from highwater.connectors.jobs.store import Change, Jobs
from highwater.connectors.kafka.records import Event, Record
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.schemas.jobs import CONTROL, JobControl
from highwater.streams.jobs.decks import OUTLINE, Passage, slide_stage
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.progress import ENDS, JOB_RESTARTED, progress_events
from highwater.streams.jobs.states import ENDED, JobStatus, Kind
from highwater.streams.jobs.validation import APPROVE, RESTART, REVOKE

JOBS, SLIDES = 4, 3
# A job that is not begun for this long expires; workers poll every 200 ms.
_EXPIRES_MS = 100
_APPROVAL_SECONDS = 60
# Of controls, few revoke; and in one scenario of N, no user is left to approve after the faults.
_ACTIONS = (*[APPROVE] * 5, *[RESTART] * 15, REVOKE)
_ALONE_ONE_IN = 4


class JobTable(Table[Job, Change]):
    """`jobs`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Jobs without further events.
        self._silent: set[str] = set()

    def fence(self, work: Job) -> tuple[Any, ...]:
        """As `store_jobs` has it."""
        return work.position, work.status, work.epoch

    def waits(self, work: Job, now_ms: int) -> bool:
        """As `wanted_jobs` has it; waiting work is requested at once."""
        is_due = work.status is JobStatus.RUNNING and work.due_ms is not None and work.due_ms <= now_ms
        return work.status is JobStatus.PENDING or is_due

    def has_ended(self, work: Job) -> bool:
        """This holds unless it is restarted."""
        return work.status in ENDED

    def given(self, change: Change) -> Job:
        """With its progress counted."""
        return jobs_store._numbered(change).after

    def stored(self, row: Job, change: Change) -> Job:
        """As `store_jobs` has it: its checkpoint is another one only if that was saved."""
        after = self.given(change)
        return after if change.is_saved else replace(after, checkpoint=row.checkpoint)

    def judge(self, row: Job, after: Job, change: Change) -> None:
        """Progress, checkpoints, approvals and ends."""
        found = self.world.found
        is_restarted = row.status is JobStatus.FAILED and after.status is JobStatus.PENDING
        if self.has_ended(row) and not is_restarted:
            found(f"{row.id} was changed after its end")
        if after.status is JobStatus.EXPIRED and row.epoch > 0:
            found(f"{row.id} expired after it was begun")
        if after.progress_pct < row.progress_pct or after.steps_done < row.steps_done:
            found(f"the progress of {row.id} goes back")
        deadlines = {row.approval_until_ms, after.approval_until_ms} - {None}
        if len(deadlines) > 1:
            found(f"the approval of {row.id} has another deadline")
        self._judge_told(row, after, change)
        self._judge_checkpoint(row, after)

    def _judge_told(self, row: Job, after: Job, change: Change) -> None:
        numbers = [event["seq"] for event in progress_events(after, change.told, change.now_ms)]
        if numbers != list(range(row.seq + 1, row.seq + 1 + len(numbers))):
            self.world.found(f"{row.id} reports {numbers} after {row.seq}")
        for one in change.told:
            if row.id in self._silent and one.event_type != JOB_RESTARTED:
                self.world.found(f"{row.id} reports {one.event_type} after its end")
            (self._silent.add if one.event_type in ENDS else self._silent.discard)(row.id)

    def _judge_checkpoint(self, row: Job, after: Job) -> None:
        if after.checkpoint is None:
            if row.checkpoint is not None and after.status not in (JobStatus.COMPLETED, JobStatus.REVOKED):
                self.world.found(f"{row.id} has lost its checkpoint")
            return
        before, made = (row.checkpoint or {}).get("slides", []), after.checkpoint["slides"]
        if made == before:
            return
        number = len(made)
        if made[:-1] != before:
            self.world.found(f"slide {number} of {row.id} does not follow the {len(before)} before it")
        answer = self.answer(row, slide_stage(number))
        if answer is None or orjson.loads(answer)["title"] != made[-1]["title"]:
            self.world.found(f"slide {number} of {row.id} is not of the answer that is stored")
        if orjson.loads(row.args)["await_approval"] and not after.checkpoint.get("is_approved"):
            self.world.found(f"slide {number} of {row.id} was made before its outline was approved")


class Steps(GenerationSteps):
    """Those of a deck, from no documents."""

    def __init__(self, scenario: JobScenario) -> None:
        super().__init__(None, None, scenario.now_ms, model="m")  # type: ignore[arg-type]
        self._world = scenario.world

    async def next(self, job: Job) -> Any:
        """The next step, after a while."""
        await asyncio.sleep(self._world.delay())
        await process().running()
        return await super().next(job)

    async def _ingested(self, *_: Any) -> list[Passage]:
        return []


class JobScenario(Scenario[Job, Change]):
    """Decks, half of which wait for an approval, and one that expires unless it is begun soon."""

    product = Jobs(None, None, Kind.GENERATION, begun_max=1)  # type: ignore[arg-type]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.table = JobTable(self.world)
        self._controls = 0

    def submit(self) -> None:
        """The jobs, and those who control them."""
        for number in range(JOBS):
            args = {"query": "What is new?", "slides": SLIDES, "cache": False, "await_approval": number % 2 == 0}
            if args["await_approval"]:
                args["approval_timeout_seconds"] = _APPROVAL_SECONDS
            expires_ms = self.now_ms() + _EXPIRES_MS if number == 0 else None
            text = orjson.dumps(args).decode()
            job = Job(f"job-{number}", Kind.GENERATION, "o", "u", text, JobStatus.PENDING, expires_ms=expires_ms)
            self.table.rows[job.id] = job
        Process(self.world, "users").start(self._control())

    async def _control(self) -> None:
        """Controls as the sink decides them, each batch in a transaction that has locked its jobs."""
        dice, is_alone = self.world.dice, self.world.dice.randrange(_ALONE_ONE_IN) == 0
        judge: Any = SimpleNamespace(refused=lambda *_: None)
        while not (is_alone and self.world.now > engines.TROUBLE_SECONDS):
            await asyncio.sleep(dice.expovariate(1.0))
            wanted = dice.choices(sorted(self.table.rows), k=2)
            events = [self._event(job_id, dice.choice(_ACTIONS)) for job_id in wanted]
            for change in sink_controls._decided(self.table.rows, events, judge, self.now_ms()).changes:
                if self.table.store(change) is None:
                    self.world.found(f"a control of {change.before.id} was not stored")
            self.world.stepped()

    def _event(self, job_id: str, action: str) -> Event[JobControl]:
        self._controls += 1
        record = Record(CONTROL, 0, self._controls, self.now_ms(), None, None, [])
        return Event(record, {"job_id": job_id, "action": action, "reason": "", "ts": self.now_ms(), "outline": None})

    def engine(self, works: Any, calls: ModelCalls, worker: int) -> JobEngine:
        """That of jobs."""
        return JobEngine(works, Steps(self), calls, self.now_ms, worker=worker, lease_ms=LEASE_MS, slots=SLOTS)

    def answer(self, stage: str, number: int) -> str:
        """Return an answer in the form of the step."""
        if stage == OUTLINE:
            slides = [{"title": f"part {place}", "points": ["a point"]} for place in range(SLIDES)]
            return orjson.dumps({"title": "deck", "slides": slides}).decode()
        return orjson.dumps({"title": f"slide {number}", "bullets": ["a bullet"]}).decode()


async def _at_once(call: Any, *arguments: Any) -> Any:
    """In place of a thread, which virtual time cannot wait for."""
    return call(*arguments)


def problems_of(seed: int, patch: Patches) -> tuple[list[str], int]:
    """The violations with a seed, as `engines.problems_of`."""
    patch.setattr(jobs_store, "job_of", lambda row: row["work"])
    patch.setattr(generation, "asyncio", SimpleNamespace(to_thread=_at_once))
    return engines.problems_of(JobScenario, seed, patch)

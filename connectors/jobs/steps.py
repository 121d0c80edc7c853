"""A kind of job for the engine: the next thing to do, given the progress of the job.

Invariant: `next` depends only on the job, so that another worker continues where the last one stopped (R2.15). It
stores nothing: its result contains what is to be stored, together with the checkpoint or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from highwater.connectors.jobs.store import Apply, Deck
from highwater.connectors.kafka.outbox import OutboxEvent
from highwater.schemas.errors import HighwaterError
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.progress import ProgressReport


class JobFailedError(HighwaterError):
    """A job cannot succeed, even if it is retried. Its message is shown to the user."""


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: the checkpoint after it, the progress of the job, and what is stored and published with it.

    `events`: through the outbox, in order.
    """

    checkpoint: Mapping[str, Any]
    done: int
    total: int
    told: tuple[ProgressReport, ...] = ()
    events: tuple[OutboxEvent, ...] = ()
    apply: Apply | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The end of the job: `result` is shown to its user.

    `deck`: stored as the presentation with the job's id, and counted as usage. `afterwards`: called with the job as it
    was stored, once; nothing depends on it.
    """

    result: Mapping[str, Any]
    told: tuple[ProgressReport, ...] = ()
    deck: Deck | None = None
    events: tuple[OutboxEvent, ...] = ()
    apply: Apply | None = None
    afterwards: Callable[[Job], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A call of the language model that is to be made; `conclude` makes the step from its answer.

    `conclude` raises `UnusableAnswerError` for an answer of another form; the call is repeated once. `told`: published
    when the call is made for the first time.
    """

    stage: str
    model: str
    system: str
    user: str
    conclude: Callable[[str], Step]
    temperature: float = 0.0
    tokens_max: int = 2_000
    told: tuple[ProgressReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The job is to wait for approval, without a worker, for at most this long; then it fails.

    `told`: published when the wait begins.
    """

    timeout_ms: int
    told: tuple[ProgressReport, ...] = ()


class Steps(Protocol):
    """How one kind of job is made."""

    async def next(self, job: Job) -> Ask | Step | Wait | Done:
        """Return what is next; a step may be the work itself, which was done in here.

        Raises:
            JobFailedError: it cannot be done; the job fails with the message.
            UnavailableError: a service is unavailable; retried later, and the job is unchanged.
        """

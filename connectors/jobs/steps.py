"""What a kind of job is to the engine: the next thing to do, given how far the job is.

Invariant: `next` depends on the job alone, so that whoever takes a job goes on where the last one was (R2.15). It stores
nothing: what it wants stored is in what it returns, and is stored together with the checkpoint or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from highwater.connectors.jobs.store import Apply, Deck
from highwater.connectors.kafka.outbox import OutboxEvent
from highwater.schemas.errors import HighwaterError
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.progress import Told


class JobFailedError(HighwaterError):
    """A job cannot succeed, even if it is retried. Its message is shown to the user."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was made: the checkpoint after it, how far the job is, and what is stored and told with it.

    `events`: through the outbox, in order.
    """

    checkpoint: Mapping[str, Any]
    done: int
    total: int
    told: tuple[Told, ...] = ()
    events: tuple[OutboxEvent, ...] = ()
    apply: Apply | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The job has what it was to make: `result` is shown to its user.

    `deck`: stored as the presentation with the job's id, and counted as usage. `afterwards`: called with the job as it was
    stored, once; nothing depends on it.
    """

    result: Mapping[str, Any]
    told: tuple[Told, ...] = ()
    deck: Deck | None = None
    events: tuple[OutboxEvent, ...] = ()
    apply: Apply | None = None
    afterwards: Callable[[Job], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A call of the language model that is to be made; `conclude` makes the step of its answer.

    `conclude` raises `UnusableAnswerError` for an answer of another form; it is asked for once more. `told`: said when the call
    is made for the first time.
    """

    stage: str
    model: str
    system: str
    user: str
    conclude: Callable[[str], Step]
    temperature: float = 0.0
    tokens_max: int = 2_000
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The job is to wait for somebody's approval, without a worker, for so long at most; then it fails.

    `told`: said when the wait begins.
    """

    timeout_ms: int
    told: tuple[Told, ...] = ()


class Steps(Protocol):
    """How one kind of job is made."""

    async def next(self, job: Job) -> Ask | Step | Wait | Done:
        """What is next; a step may be the work itself, which was done in here.

        Raises:
            JobFailedError: it cannot be done; the job fails with the message.
            UnavailableError: a part is away; asked again later, and the job stays as it is.
        """

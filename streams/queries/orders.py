"""Whose turn it is: for each user the active run, the runs that wait for it, and the released ones.

Invariant: one run of a user at a time, in the order of ordinals (R1.2). A released run stays released when events are
repeated; the highest requested revision is stored, so a repeated event makes no second request once the first is
written. The two topics about runs have no order between them: a release counts whenever it arrives, and removes the
runs that it makes obsolete. A run that its sink requested itself becomes active at once, and those before it count as
released.

A failed run that was not yet active only leaves the queue: releasing it would release those before it. If its creation
is repeated, its failure is repeated too (one partition, in order), and a command for it meanwhile finds it failed and
has no effect.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, replace
from typing import NamedTuple

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.queries import PipelineStage, RunArchived
from highwater.streams.queries.states import ArchiveStatus, Stage, Status, stage_at
from highwater.streams.versioned_rows import RowForm, pack, unpack

# Waiting runs of one user: a row of 0.9 MB; a changelog accepts 8, and a worker that cannot write ends. Runs beyond
# this number are not stored; the search for unrequested runs finds each one when it is its turn.
QUEUE_MAX = 10_000


class Waiting(NamedTuple):
    """A run that waits for a stage. For the active run: as it was last requested."""

    ordinal: int
    request_id: str
    status: Status
    revision: int

    @property
    def stage(self) -> Stage:
        """Return the stage it waits for; for a completed run the stage of its memory."""
        stage = stage_at(self.status, ArchiveStatus.WAITING)
        if stage is None:
            raise InvalidEventError("bad_state", f"a run that is {self.status} waits for nothing")
        return stage


@dataclass(frozen=True, slots=True)
class Order:
    """The row of a user. `queue` is in the order of ordinals; `released`: no run up to this ordinal is active any more."""

    released: int = 0
    active: Waiting | None = None
    queue: tuple[Waiting, ...] = ()


class Decision(NamedTuple):
    """The result of an event: the row, and the run to request, if any."""

    order: Order
    request: Waiting | None


def is_of_interest(event: PipelineStage) -> bool:
    """Return whether an event can change whose turn it is. Of the seven events of a run, two can."""
    return event["waiting"] or event["status"] == Status.FAILED


def staged(order: Order, event: PipelineStage) -> Decision:
    """Return the result of a run that was created or changed its status.

    Raises:
        InvalidEventError: it should wait in a status in which no run waits.
    """
    if event["ordinal"] <= order.released:
        return Decision(order, None)
    if event["status"] == Status.FAILED:
        return _failed(order, event["ordinal"])
    if not event["waiting"]:
        return Decision(order, None)
    run = _waiting_of(event)
    return Decision(_begins(order, run), None) if event["requested"] else _waits(order, run)


def archived(order: Order, event: RunArchived) -> Decision:
    """Return the result of a memory that was stored or given up: all runs up to this one have ended."""
    return _release(order, event["ordinal"])


def _waits(order: Order, run: Waiting) -> Decision:
    active = order.active
    if active is not None and active.ordinal == run.ordinal:
        if run.revision <= active.revision:
            return Decision(order, None)
        return Decision(replace(order, active=run), run)
    queue = [one for one in order.queue if one.ordinal != run.ordinal]
    known = next((one for one in order.queue if one.ordinal == run.ordinal), run)
    insort(queue, max(run, known, key=lambda one: one.revision))
    return _next(replace(order, queue=tuple(queue[:QUEUE_MAX])))


def _begins(order: Order, run: Waiting) -> Order:
    """Return the row after the run's sink requested it: all runs before it have released the user, even those not read
    here yet.
    """
    active = order.active
    if active is not None and (active.ordinal, active.revision) >= (run.ordinal, run.revision):
        return order
    queue = tuple(one for one in order.queue if one.ordinal > run.ordinal)
    return Order(max(order.released, run.ordinal - 1), run, queue)


def _failed(order: Order, ordinal: int) -> Decision:
    if order.active is not None and order.active.ordinal == ordinal:
        return _release(order, ordinal)
    return Decision(replace(order, queue=tuple(one for one in order.queue if one.ordinal != ordinal)), None)


def _release(order: Order, ordinal: int) -> Decision:
    released = max(order.released, ordinal)
    active = order.active if order.active is not None and order.active.ordinal > released else None
    return _next(Order(released, active, tuple(one for one in order.queue if one.ordinal > released)))


def _next(order: Order) -> Decision:
    """Make the first of the queue active if no run is."""
    if order.active is not None or not order.queue:
        return Decision(order, None)
    first, *rest = order.queue
    return Decision(replace(order, active=first, queue=tuple(rest)), first)


def _waiting_of(event: PipelineStage) -> Waiting:
    try:
        run = Waiting(event["ordinal"], event["id"], Status(event["status"]), event["revision"])
    except ValueError as error:
        raise InvalidEventError("bad_state", str(error)) from error
    _ = run.stage  # refused now, not when its turn comes
    return run


# Of a user for whom nothing waits: the released ordinal alone.
_FORM = RowForm(1, ("released", "active", "queue"), facts_min=1)


def encode_order(order: Order) -> bytes:
    """Return the row as JSON; only the released ordinal if nothing waits."""
    if order.active is None and not order.queue:
        return _FORM.encode([order.released])
    active = None if order.active is None else pack(Waiting._fields, list(order.active))
    return _FORM.encode([order.released, active, [pack(Waiting._fields, list(one)) for one in order.queue]])


def decode_order(data: bytes | None) -> Order:
    """Return the row of a user; without one the user has asked nothing yet.

    Raises:
        ValueError: the row has a format that this version does not support.
    """
    if data is None:
        return Order()
    released, *rest = _FORM.decode(data)
    if not rest:
        return Order(released)
    active, queue = rest
    return Order(released, None if active is None else _run_of(active), tuple(_run_of(one) for one in queue))


def _run_of(found: object) -> Waiting:
    ordinal, request_id, status, revision = unpack(Waiting._fields, found)
    return Waiting(int(str(ordinal)), str(request_id), Status(str(status)), int(str(revision)))

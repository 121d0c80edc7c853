"""Whose turn it is, under any redelivery and interleaving: one run of a user at a time, in order, and none forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.streams.queries import orders
from highwater.streams.queries.orders import (
    Order,
    Waiting,
    archived,
    decode_order,
    encode_order,
    is_of_interest,
    staged,
)
from highwater.streams.queries.states import Move, Stage, Status, advance

USER = "4d1c1f0a-9b1e-4f5e-8c3d-2a7b6c5d4e33"
WAITS = (Status.NEW, Status.ANALYZED, Status.READY)


def stage(
    ordinal: int, status: str = "NEW", *, revision: int = 1, waiting: bool = True, requested: bool = False
) -> Any:
    """A pipeline-stage."""
    return {
        "id": f"run-{ordinal}", "user_id": USER, "status": status, "operation": "INSERT" if revision == 1 else "UPDATE",
        "attempt": 0, "at": 1, "ordinal": ordinal, "revision": revision, "waiting": waiting, "error": None,
        "requested": requested,
    }  # fmt: skip


def stored(ordinal: int) -> Any:
    """A run-archived."""
    return {
        "request_id": f"run-{ordinal}", "user_id": USER, "ordinal": ordinal, "archive_status": "STORED", "memory_id": 1,
        "error": None, "at": 1,
    }  # fmt: skip


def fold(*events: Any, order: Order | None = None) -> tuple[Order, list[tuple[int, str, int]]]:
    """Return the row after events, and the requests: ordinal, stage, revision."""
    order, requested = order or Order(), []
    for event in events:
        order, run = (archived if "memory_id" in event else staged)(order, event)
        if run is not None:
            requested.append((run.ordinal, str(run.stage), run.revision))
    return order, requested


def failed(ordinal: int, revision: int = 2) -> Any:
    """A run failed."""
    return stage(ordinal, "FAILED", revision=revision, waiting=False)


@pytest.mark.requirement("R1.2")
def test_runs_go_one_after_the_other():
    """The first is requested at once, the next when its memory is stored."""
    order, requested = fold(stage(1), stage(2), stage(3))
    assert (requested, [run.ordinal for run in order.queue]) == ([(1, "analyzer", 1)], [2, 3])
    order, requested = fold(stored(1), stored(2), stored(3), order=order)
    assert (requested, order) == ([(2, "analyzer", 1), (3, "analyzer", 1)], Order(3))


def test_a_run_that_its_sink_requested_is_active_at_once():
    """Nothing is requested for it, for any state of the runs before it; the next one waits for its release as usual."""
    order, requested = fold(stage(1, requested=True), stage(2))
    assert (requested, order.active) == ([], Waiting(1, "run-1", Status.NEW, 1))
    order, requested = fold(stored(1), order=order)
    assert requested == [(2, "analyzer", 1)]
    # The release of the second is read after the third was made.
    order, requested = fold(stage(3, requested=True), stored(2), stage(3, requested=True), order=order)
    assert (requested, order) == ([], Order(2, Waiting(3, "run-3", Status.NEW, 1)))
    # It was given back: now it needs a request; its creation again changes nothing.
    order, requested = fold(stage(3, revision=3), stage(3, requested=True), order=order)
    assert (requested, order.active) == ([(3, "analyzer", 3)], Waiting(3, "run-3", Status.NEW, 3))


def test_a_failure_releases():
    """The next of a failed run is requested; one that fails in the queue only leaves it."""
    order, requested = fold(stage(1), stage(2), stage(3), failed(2), failed(1))
    assert (requested, order.active, order.released) == (
        [(1, "analyzer", 1), (3, "analyzer", 1)], Waiting(3, "run-3", Status.NEW, 1), 1,
    )  # fmt: skip


def test_a_run_that_was_returned_is_requested_again():
    """By a newer revision, from the status it waits in; the same one again asks for nothing."""
    again = stage(1, "ANALYZED", revision=5)
    assert fold(stage(1), again, again, stage(1)) == (
        Order(0, Waiting(1, "run-1", Status.ANALYZED, 5)), [(1, "analyzer", 1), (1, "assembler", 5)],
    )  # fmt: skip


def test_a_restarted_run_waits_for_its_stage():
    """A run may begin in any waiting status; for a completed one its memory is requested."""
    assert fold(stage(1, "READY"))[1] == [(1, "responder", 1)]
    assert fold(stage(1), stage(1, "COMPLETED", revision=9))[1] == [(1, "analyzer", 1), (1, "archivist", 9)]


def test_what_was_released_stays_released():
    """This holds under any redelivery, and for any order in which the topics are read."""
    order, _ = fold(stored(2))
    assert fold(stage(1), stage(2), failed(1), stage(2, "READY", revision=7), stored(1), order=order) == (Order(2), [])


@pytest.mark.parametrize("status", ["FAILED_", "", "ANALYZING?"])
def test_a_status_that_is_none_is_refused(status: str):
    """It is dead-lettered and changes nothing."""
    with pytest.raises(InvalidEventError):
        staged(Order(), stage(1, status))


def test_two_events_of_seven_matter():
    """Of a successful run the creation counts; of others a failure or a new wait."""
    steps = [Status.NEW]
    for move in (Move.CAPTURE, Move.FINISH) * 3:
        steps.append(advance(steps[-1], move))
    events = [stage(1, status, revision=n, waiting=n == 1) for n, status in enumerate(steps, start=1)]
    assert [is_of_interest(event) for event in events] == [True] + [False] * 6
    assert is_of_interest(failed(1))
    assert is_of_interest(stage(1, "READY", revision=4))


def test_a_queue_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """The rest is left to the search for forgotten runs; the first ones stay."""
    monkeypatch.setattr(orders, "QUEUE_MAX", 2)
    order, _ = fold(*(stage(n) for n in (1, 5, 4, 3, 2)))
    assert [run.ordinal for run in order.queue] == [2, 3]


def test_rows_come_back_as_they_were():
    """With a version in front; a user for whom nothing waits takes a few bytes."""
    order, _ = fold(stage(4), stage(6, "READY"), stage(5))
    assert decode_order(encode_order(order)) == order
    assert (encode_order(Order(7)), decode_order(b"[1,7]"), decode_order(None)) == (b"[1,7]", Order(7), Order())
    with pytest.raises(ValueError, match="newer release"):
        decode_order(b"[2,7]")


# -- any redelivery and interleaving ---------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run as the store has it."""

    ordinal: int
    status: Status = Status.NEW
    revision: int = 1
    released: bool = False


@dataclass
class World:
    """A store, its two topics, and the agent's row with its offsets; the agent may die and begin again further back."""

    random: Any  # a draw of hypothesis, seeded by it
    runs: dict[int, Run] = field(default_factory=dict)
    logs: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    at: list[int] = field(default_factory=lambda: [0, 0])
    row: bytes | None = None
    commands: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    worked: list[int] = field(default_factory=list)
    # Rows and offsets that a restarted worker may find: the committed ones, and any row since (the changelog).
    committed: list[int] = field(default_factory=lambda: [0, 0])
    rows: list[bytes | None] = field(default_factory=lambda: [None])

    def submit(self, status: Status = Status.NEW) -> None:
        """A run more."""
        run = self.runs[len(self.runs) + 1] = Run(len(self.runs) + 1, status)
        self._tell(run, waiting=True)

    def _tell(self, run: Run, *, waiting: bool) -> None:
        self.logs[0].append(stage(run.ordinal, run.status, revision=run.revision, waiting=waiting))

    def _move(self, run: Run, move: Move, *, waiting: bool = False) -> None:
        run.status, run.revision = advance(run.status, move), run.revision + 1
        self._tell(run, waiting=waiting)

    def cancel(self) -> None:
        """Some run that has not ended fails."""
        open_ = [run for run in self.runs.values() if run.status not in {Status.COMPLETED, Status.FAILED}]
        if open_:
            run = self.random.choice(open_)
            run.released = True
            self._move(run, Move.FAIL)

    def read(self) -> None:
        """The agent takes one event of one topic."""
        ready = [n for n in (0, 1) if self.at[n] < len(self.logs[n])]
        if not ready:
            return
        topic = self.random.choice(ready)
        event = self.logs[topic][self.at[topic]]
        self.at[topic] += 1
        if topic == 0 and not is_of_interest(event):
            return
        order, run = (staged, archived)[topic](decode_order(self.row), event)
        if run is not None:
            self.commands.append(run)
            self.sent.append(run)
        self.row = encode_order(order)
        self.rows.append(self.row)

    def commit(self) -> None:
        """Offsets are committed; rows before that stay in the changelog."""
        self.committed, self.rows = list(self.at), [self.row]

    def die(self) -> None:
        """The agent restarts: from the committed state, with any of the rows written since."""
        self.at = list(self.committed)
        self.row = self.random.choice(self.rows)
        self.rows = self.rows[: self.rows.index(self.row) + 1]

    def work(self) -> None:
        """A worker takes one command, in any order, maybe a second time, and does one thing with a run that is its turn."""
        if not self.commands:
            return
        command = self.commands.pop(self.random.randrange(len(self.commands)))
        if self.random.random() < 0.2:
            self.commands.append(command)
        run = self.runs[command.ordinal]
        if run.status is not command.status or run.status not in WAITS:
            return  # void: the conditional update finds nothing
        before = [one for one in self.runs.values() if one.ordinal < run.ordinal and not one.released]
        assert before == [], "a run was asked for before its turn"
        self.worked.append(run.ordinal)
        self._move(run, Move.CAPTURE)
        if self.random.random() < 0.3:
            self._move(run, Move.RETURN, waiting=True)
            return
        while run.status is not Status.COMPLETED:
            if self.random.random() < 0.1:
                run.released = True
                self._move(run, Move.FAIL)
                return
            self._move(run, Move.FINISH)
            if run.status is not Status.COMPLETED:
                self._move(run, Move.CAPTURE)
        run.released = True
        self.logs[1].append(stored(run.ordinal))


@settings(max_examples=1_000, deadline=None)
@given(st.randoms(use_true_random=True), st.integers(1, 7), st.floats(0, 0.4))
def test_under_any_redelivery_and_interleaving(chance: Any, count: int, trouble: float):
    """One run at a time in the order of places; every run is requested until it has ended, and a released one never again."""
    world = World(chance)
    steps = [world.read] * 6 + [world.work] * 3 + [world.commit]
    for _ in range(60):
        if world.random.random() < trouble:
            world.random.choice([world.die, world.cancel])()
        if len(world.runs) < count and world.random.random() < 0.3:
            world.submit(world.random.choice(WAITS))
        world.random.choice(steps)()
    while any(world.at[n] < len(world.logs[n]) for n in (0, 1)) or world.commands:
        world.read()
        world.work()
    assert [run.ordinal for run in world.runs.values() if not run.released] == []
    assert world.worked == sorted(world.worked)
    order = decode_order(world.row)
    assert (order.active, order.queue) == (None, ())
    # The topics once more from their beginnings: no released run is requested.
    sent = len(world.sent)
    world.commit()
    for topic in (1, 0):
        for event in world.logs[topic]:
            order, run = (staged, archived)[topic](order, event)
            if run is not None:
                assert run.ordinal > decode_order(world.row).released
    assert len(world.sent) == sent


def test_stages_are_those_of_the_states():
    """A waiting run names the stage by the one table of states."""
    assert [Waiting(1, "r", status, 1).stage for status in WAITS] == [Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER]

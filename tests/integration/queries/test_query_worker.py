"""The queries' side of the worker on a real broker: runs in, requests out in each user's order, through kills and lost state."""

from __future__ import annotations

import signal
import uuid

import pytest

from highwater.schemas.envelope import caused_by
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, STAGE_REQUESTED
from tests.integration.agents import Answer, Kafka, Worker, partition_of, until


@pytest.fixture
def user() -> str:
    """A user of one test alone."""
    return str(uuid.uuid4())


def stage(
    kafka: Kafka,
    user: str,
    ordinal: int,
    status: str = "NEW",
    revision: int = 1,
    *,
    waiting: bool = True,
    requested: bool = False,
) -> None:
    """A run was created or changed its status, as sinks and workers publish it."""
    kafka.send(
        PIPELINE_STAGE, user, id=f"{user}/{ordinal}", user_id=user, status=status,
        operation="INSERT" if revision == 1 else "UPDATE", attempt=0, at=1_000 + ordinal, ordinal=ordinal,
        revision=revision, waiting=waiting, error=None, requested=requested,
    )  # fmt: skip


def archived(kafka: Kafka, user: str, ordinal: int) -> None:
    """The memory of a run was stored."""
    kafka.send(
        RUN_ARCHIVED, user, request_id=f"{user}/{ordinal}", user_id=user, ordinal=ordinal, archive_status="STORED",
        memory_id=1, error=None, at=2_000 + ordinal,
    )  # fmt: skip


def requests(kafka: Kafka, user: str) -> list[Answer]:
    """The requests for a user."""
    return kafka.answers(STAGE_REQUESTED, user)


def places(kafka: Kafka, user: str) -> list[int]:
    """The runs requested for a user, each once, in the order of their first request."""
    return list(dict.fromkeys(answer.event["ordinal"] for answer in requests(kafka, user)))


@pytest.mark.requirement("R1.16")
def test_runs_of_a_user_are_requested_one_after_the_other(worker: Worker, kafka: Kafka, user: str):
    """The next when the memory of the one before is stored, in the user's partition; another user is not held up."""
    other = str(uuid.uuid4())
    for ordinal in (1, 2, 3):
        stage(kafka, user, ordinal)
    stage(kafka, other, 1, "READY")
    until(lambda: requests(kafka, other), "the other user's run is requested")
    until(lambda: requests(kafka, user), "the first run is requested")
    worker.after_ticks(2)
    (first,) = requests(kafka, user)
    cause = caused_by(first.headers)
    assert cause is not None
    assert (cause.topic, cause.partition, first.partition) == (PIPELINE_STAGE, partition_of(user), partition_of(user))
    assert first.event == {
        "request_id": f"{user}/1", "user_id": user, "stage": "analyzer", "status": "NEW", "ordinal": 1, "revision": 1,
        "queued": 0, "requested_at": 1_001,
    }  # fmt: skip
    archived(kafka, user, 1)
    until(lambda: places(kafka, user) == [1, 2], "the second run is requested")
    stage(kafka, user, 2, "FAILED", 3, waiting=False)
    until(lambda: places(kafka, user) == [1, 2, 3], "the third run is requested")
    assert [answer.event["requested_at"] for answer in requests(kafka, user)] == [1_001, 2_001, 1_002]


def test_a_run_that_its_sink_requested_is_left_to_it(worker: Worker, kafka: Kafka, user: str):
    """Nothing is requested for it until it is given back; the one behind it waits until it has ended."""
    stage(kafka, user, 1, requested=True)
    stage(kafka, user, 2)
    worker.after_ticks(2)
    assert places(kafka, user) == []
    stage(kafka, user, 1, "ANALYZED", 5)
    until(lambda: places(kafka, user) == [1], "it is requested once it was given back")
    archived(kafka, user, 1)
    until(lambda: places(kafka, user) == [1, 2], "the next one is requested")
    assert [answer.event["stage"] for answer in requests(kafka, user)] == ["assembler", "analyzer"]


def test_a_run_that_was_returned_is_requested_again(worker: Worker, kafka: Kafka, user: str):
    """By its new revision and status, and only the run whose turn it is."""
    stage(kafka, user, 1)
    stage(kafka, user, 2)
    stage(kafka, user, 1, "ANALYZING", 2, waiting=False)
    stage(kafka, user, 1, "NEW", 3)
    stage(kafka, user, 1, "NEW", 3)
    until(lambda: len(requests(kafka, user)) == 2, "two requests")
    worker.after_ticks(2)
    assert [(a.event["ordinal"], a.event["revision"]) for a in requests(kafka, user)] == [(1, 1), (1, 3)]


def test_killed_and_robbed_of_its_state_it_keeps_the_order(worker: Worker, kafka: Kafka, user: str):
    """After SIGKILL and the loss of all local state it knows the active run, the waiting ones and the released ones."""
    for ordinal in range(1, 5):
        stage(kafka, user, ordinal)
    # A memory is stored after its run was requested; one that came sooner would make the request void.
    until(lambda: places(kafka, user) == [1], "the first run is requested")
    archived(kafka, user, 1)
    until(lambda: places(kafka, user) == [1, 2], "two runs are requested")
    worker.until_committed(*requests(kafka, user))
    worker.end(signal.SIGKILL)
    worker.lose_state()
    stage(kafka, user, 3, "FAILED", 2, waiting=False)
    archived(kafka, user, 2)
    worker.start()
    until(lambda: places(kafka, user) in ([1, 2, 4], [1, 2, 3, 4]), "the fourth run is requested")
    for ordinal in (1, 2):
        stage(kafka, user, ordinal)
    count = len(requests(kafka, user))
    worker.after_ticks(3)
    assert len(requests(kafka, user)) == count


def test_no_run_is_forgotten_though_the_worker_is_killed(worker: Worker, kafka: Kafka):
    """Killed in the midst of many users' runs, it requests each of them, one after the other, after the next start."""
    users = [str(uuid.uuid4()) for _ in range(60)]
    runs = 4
    for ordinal in range(1, runs + 1):
        for one in users:
            stage(kafka, one, ordinal)
    answered: dict[str, int] = dict.fromkeys(users, 0)
    killed: list[int] = []

    def answer() -> bool:
        """Store the memory of the requested run, as workers would."""
        for one in users:
            known = places(kafka, one)
            assert known == sorted(known)
            for ordinal in known[answered[one] :]:
                archived(kafka, one, ordinal)
                answered[one] += 1
        if not killed and sum(answered.values()) > len(users):
            killed.append(worker.end(signal.SIGKILL))
            worker.start()
        return all(count == runs for count in answered.values())

    until(answer, "all runs are requested", 120)
    assert killed
    assert {tuple(places(kafka, one)) for one in users} == {tuple(range(1, runs + 1))}


def test_poison_stops_nothing(worker: Worker, kafka: Kafka, user: str):
    """A run in an unknown status is dead-lettered, and the runs around it are requested."""
    stage(kafka, user, 1, "DREAMING")
    stage(kafka, user, 2)
    until(lambda: places(kafka, user) == [2], "the good run is requested")
    (letter,) = until(lambda: kafka.dead_letters(PIPELINE_STAGE), "a dead letter")
    assert dict(letter.headers())["dlq_reason"] == b"bad_state"


def test_events_that_concern_no_turn_ask_for_nothing(worker: Worker, kafka: Kafka, user: str):
    """A successful run is requested once, for any events of its workers."""
    stage(kafka, user, 1)
    for revision, status in enumerate(
        ("ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED"), start=2
    ):
        stage(kafka, user, 1, status, revision, waiting=False)
    until(lambda: requests(kafka, user), "the run is requested")
    worker.after_ticks(2)
    assert [answer.event["revision"] for answer in requests(kafka, user)] == [1]

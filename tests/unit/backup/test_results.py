"""What the log contains as results: which part of it covers a repeated event, and the state of runs and jobs after a restore."""

from __future__ import annotations

import json
from typing import Any

import pytest

from highwater.connectors.backup.recorded import RecordedResults
from highwater.connectors.backup.results import LOST_ANSWER, LOST_RESULT, LOST_RUN, Results
from highwater.connectors.kafka.records import Record
from highwater.schemas.avro_files import examples
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS

NOW_MS = 1_700_000_000_000
STAGE, PROGRESS, SAVED = "queries.pipeline-stage", "jobs.progress", "jobs.checkpoint-saved"
CODEC = Codec({name: number for number, name in enumerate(sorted(TOPICS), start=1) if TOPICS[name].schema})


def told_of(*events: tuple[str, dict[str, Any]]) -> RecordedResults:
    """The results of these events, each an example of its topic with some fields changed."""
    told = RecordedResults({})
    for topic, changed in events:
        record = Record(topic, 0, 0, NOW_MS, b"k", b"", [])
        told.note_event(record, {**examples(TOPICS[topic].schema)[0], **changed})
    return told


def record_of(topic: str, key: bytes, **headers: str) -> Record:
    """A record with these headers."""
    return Record(topic, 0, 0, NOW_MS, key, b"", [(name, value.encode()) for name, value in headers.items()])


def test_a_later_cause_of_a_key_covers_the_earlier_ones() -> None:
    """This holds for the same key, topic and source partition; later events and other keys are not covered."""
    told = RecordedResults({})
    told.note(record_of(STAGE, b"u", ce_id="outbox-12", ce_causedby="queries.query-submitted/3/7"))
    told.note(record_of(STAGE, b"u", ce_id="outbox-9", ce_causedby="queries.query-submitted/3/5"))
    source = "queries.query-submitted"
    assert told.covers(STAGE, b"u", Position(source, 3, 7))
    assert told.covers(STAGE, b"u", Position(source, 3, 2))
    assert not told.covers(STAGE, b"u", Position(source, 3, 8))
    assert not told.covers(STAGE, b"u", Position(source, 2, 7))
    assert not told.covers(STAGE, b"other", Position(source, 3, 7))
    assert not told.covers("queries.run-failed", b"u", Position(source, 3, 7))
    assert not told.covers(STAGE, b"u", None)
    assert (told.outbox_id, told.reached) == (12, {(source, 3): 7})


def test_a_dead_letter_is_known_by_its_origin_and_group() -> None:
    """The headers of the dead letter itself name no results; those of the event that it contains do."""
    told = RecordedResults({})
    letter = {"ce_causedby": "a/0/1", "dlq_origin": "feeds.user-active/1/2", "dlq_group": "users"}
    told.note(record_of("feeds.user-active.dlq", b"u", **letter))
    assert told.has_letter("feeds.user-active/1/2", "users")
    assert not told.has_letter("feeds.user-active/1/2", "other")
    assert told.reached == {}


def run_after(event: dict[str, Any], **row: Any) -> Any:
    """The state of a run after a restore: status, archive, revision and error, and the published topics;
    None: it is unchanged.
    """
    stage = {"id": "r", "user_id": "u", "error": None, "revision": 3, "ordinal": 1, "waiting": False, **event}
    archived = stage.pop("archived", None)
    events = [(STAGE, stage)]
    if archived is not None:
        events.append(("queries.run-archived", {"request_id": "r", "archive_status": archived, "error": None}))
    results = Results(told_of(*events), CODEC, NOW_MS)
    held = {"id": "r", "status": "NEW", "archive_status": None, "revision": 1, **row}
    found = results._run(results._told.runs["r"], held)
    if found is None:
        return None
    (_, status, archive, revision, error, _, _), rows = found
    return str(status), archive and str(archive), revision, error, [row.topic for row in rows]


@pytest.mark.parametrize(
    ("event", "row", "expected"),
    [
        ({"status": "NEW", "revision": 1}, {}, None),
        # It was begun and given back: a call of it may have been sent.
        ({"status": "NEW"}, {}, ("FAILED", None, 4, LOST_RUN, [STAGE, "queries.run-failed"])),
        (
            {"status": "ANALYZED"},
            {},
            ("FAILED", None, 4, LOST_RUN, [STAGE, "queries.run-failed"]),
        ),
        ({"status": "COMPLETED", "archived": "STORED"}, {}, ("COMPLETED", "STORED", 3, LOST_ANSWER, [])),
        ({"status": "COMPLETED"}, {}, ("COMPLETED", "FAILED", 3, LOST_ANSWER, ["queries.run-archived"])),
        ({"status": "FAILED", "error": "no"}, {}, ("FAILED", None, 3, "no", [])),
        # The backup has as much, or the answer and not yet its memory.
        (
            {"status": "COMPLETED", "archived": "STORED"},
            {"status": "COMPLETED", "archive_status": "STORED", "revision": 3},
            None,
        ),
        (
            {"status": "COMPLETED", "archived": "STORED"},
            {"status": "COMPLETED", "archive_status": "WAITING", "revision": 3},
            ("COMPLETED", "STORED", 3, None, []),
        ),
        ({"status": "ANALYZED"}, {"status": "ANALYZED", "revision": 3}, None),
    ],
)
def test_what_becomes_of_a_run(event: dict[str, Any], row: dict[str, Any], expected: Any) -> None:
    """Ended runs stay ended; one that had begun fails under the next revision, which is published; others continue."""
    assert run_after(event, **row) == expected


def job_after(*events: tuple[str, dict[str, Any]], **row: Any) -> Any:
    """The state of a job after a restore: status, last progress, error, finished steps, epoch and checkpoint; None: it is
    unchanged.
    """
    told = told_of(*((topic, {"job_id": "j", **changed}) for topic, changed in events))
    held = {"job_id": "j", "kind": "generation", "status": "pending", "seq": 0, "epoch": 0, "error": None, **row}
    found = Results(told, CODEC, NOW_MS)._job(held)
    if found is None:
        return None
    _, status, seq, _, error, _, checkpoint, done, _, epoch = found
    return str(status), seq, error, done, epoch, checkpoint and json.loads(checkpoint)


DONE = (PROGRESS, {"event_type": "generation_done", "seq": 5, "progress_pct": 100, "error_message": None})
FAILED = (PROGRESS, {"event_type": "error", "seq": 4, "progress_pct": 30, "error_message": "no"})
STEP = (PROGRESS, {"event_type": "slide_completed", "seq": 3, "progress_pct": 50, "error_message": None})
CHECKPOINT = (
    SAVED,
    {
        "slides_completed": 1,
        "slides_total": 2,
        "completed_slide_ids": ["s-1"],
        "outline": '{"title": "T"}',
        "state": '{"a": 1}',
        "epoch": 6,
    },
)
REQUESTED = ("jobs.generation-requested", {})
KEPT = {"a": 1, "outline": {"title": "T"}, "slide_ids": ["s-1"]}


@pytest.mark.parametrize(
    ("events", "row", "expected"),
    [
        ([REQUESTED], {}, None),
        ([DONE], {}, ("completed", 5, LOST_RESULT, 0, 0, None)),
        ([DONE], {"status": "completed", "seq": 5}, None),
        ([FAILED, CHECKPOINT], {}, ("failed", 4, "no", 1, 0, KEPT)),
        ([FAILED], {"status": "revoked"}, ("revoked", 4, "no", 0, 0, None)),
        ([STEP, CHECKPOINT], {"epoch": 2}, ("pending", 3, None, 1, 6, KEPT)),
        # A limit that holds now held otherwise then.
        ([REQUESTED], {"status": "failed", "seq": 1}, ("pending", 0, None, 0, 0, None)),
        ([REQUESTED, FAILED], {"status": "failed", "seq": 4}, None),
    ],
)
def test_what_becomes_of_a_job(events: list[tuple[str, dict[str, Any]]], row: dict[str, Any], expected: Any) -> None:
    """Ended jobs stay ended; others continue from the checkpoint in the log."""
    assert job_after(*events, **row) == expected

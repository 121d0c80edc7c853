"""Dead letters by reason, what a filter finds, and what a plan of it does: counted without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dead_letters.letter import Action, Handling, Letter
from highwater.api.dead_letters.selecting import ByReason, LetterFilter, planned_drop, planned_redrive
from highwater.connectors.kafka.records import Record
from highwater.schemas.positions import Position

TOPIC = "feeds.user-active"
PARTITIONS = {TOPIC: 8}
SENT = Handling(Position(f"{TOPIC}.dlq", 0, 0), Action.REDRIVEN, None, "ada", None, 1)


def letter(offset: int, reason: str | None = "late", *, sent: bool = False, origin: bool = True, **more: Any) -> Letter:
    """A dead letter."""
    headers = {
        "dlq_reason": reason,
        "dlq_detail": more.get("detail"),
        "dlq_origin": f"{TOPIC}/2/{offset}" if origin else None,
    }
    found = [(name, value.encode()) for name, value in headers.items() if value is not None]
    record = Record(f"{TOPIC}.dlq", 0, offset, 1_000 + offset, b"ann", more.get("value", b"v"), found)
    return Letter(record, (SENT,) if sent else ())


def test_groups_count_what_waits():
    """By topic and reason, the most waiting first; a letter without a reason has one of its own."""
    by_reason = ByReason()
    for one in (
        letter(0, "late", sent=True),
        letter(1, "late"),
        letter(2, None),
        letter(3, None),
        letter(4, "big", sent=True),
    ):
        by_reason.add(one)
    told = [(one.reason, one.open, one.count, one.latest_ms) for one in by_reason.groups()]
    assert told == [("unknown", 2, 2, 1_003), ("late", 1, 2, 1_001), ("big", 0, 1, 1_004)]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (LetterFilter(), {0, 2, 3}),
        (LetterFilter("late"), {0, 3}),
        (LetterFilter("late", is_open_only=False), {0, 1, 3}),
        (LetterFilter(contains="NO FIELD"), {3}),
        (LetterFilter(contains=f"{TOPIC}/2/2"), {2}),
        (LetterFilter("late", "ann", is_open_only=False), {0, 1, 3}),
        (LetterFilter("nothing"), set()),
    ],
)
def test_a_filter_finds(wanted: LetterFilter, offsets: set[int]):
    """By reason, by state, and by text in its detail, consumer, key or origin."""
    letters = [letter(0), letter(1, sent=True), letter(2, "big"), letter(3, detail="no field text")]
    assert {one.position.offset for one in letters if wanted.finds(one)} == offsets
    assert planned_redrive(letters, wanted, PARTITIONS).offsets == offsets


def test_a_plan_says_what_cannot_be_sent():
    """Without an origin, or too large to be kept."""
    large = letter(2, value=None)
    large.record.headers.append(("dlq_omitted_bytes", b"9000000"))
    plan = planned_redrive([letter(0), letter(1, origin=False), large], LetterFilter(), PARTITIONS)
    assert plan.offsets == {0}
    assert dict(plan.refused) == {"do not say where they came from": 1, "were too large to be kept": 1}


def test_what_somebody_else_sent_meanwhile_is_not_sent_twice():
    """Letters that arrived after the plan are not sent either; confirmed repeats are."""
    plan = planned_redrive([letter(0), letter(1, sent=True)], LetterFilter(is_open_only=False), PARTITIONS)
    assert plan.once_more == {1}
    now = [letter(0, sent=True), letter(1, sent=True), letter(2)]
    assert [one.position.offset for one in now if plan.still_holds(one)] == [1]


def test_a_drop_counts_what_it_takes_along():
    """Everything up to the last found one goes; what waits among it and was not chosen is counted, what lies behind is not."""
    letters = [letter(0, "big"), letter(1), letter(2, "big", sent=True), letter(3), letter(4, "big")]
    plan = planned_drop(letters, LetterFilter("late"))
    assert (plan.found, plan.last_offset, plan.others_open) == (2, 3, 1)
    chosen = planned_drop(letters, LetterFilter(is_open_only=False), {1})
    assert (chosen.found, chosen.last_offset, chosen.others_open) == (1, 1, 1)

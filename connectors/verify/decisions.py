"""(b) Decisions: every decision that was recorded with its inputs is repeated, and must have the same result.

Invariant: first all events with inputs are read, then the decisions, up to ends that were fixed in the opposite order;
so a missing input was never published. Inputs are stored on disk; a decision and its inputs are in partitions of the
same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.holes import holes_of
from highwater.connectors.verify.judging import DECISIONS, Decision, DecisionInputs, Event, LeftOpenError, Rules
from highwater.connectors.verify.log import decoded, read_all
from highwater.connectors.verify.notes import notes_on_disk
from highwater.connectors.verify.report import Checked, Difference
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.streams import TICK
from highwater.schemas.topics import TOPICS
from highwater.streams.feeds.policy import load_policy
from highwater.streams.settings import Settings

PART = "decisions"


async def verify_decisions(context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> list[Checked]:
    """Repeat every recorded decision."""
    time_limit.at("the ends of the log")
    decided = await spans_of(context, [decision.topic for decision in DECISIONS])
    sources = await spans_of(context, sorted({topic for decision in DECISIONS for topic in decision.sources}))
    checked: dict[str, Checked] = {decision.topic: Checked(PART, decision.topic) for decision in DECISIONS}
    for (topic, partition), span in decided.items():
        if span.low > 0:
            checked[topic].leave_out(f"partition {partition} of the log no longer has its beginning", span.low)
    judges: dict[str, Decision[Any]] = {decision.topic: decision for decision in DECISIONS}
    rules = Rules(load_policy(settings.policy_file))
    with notes_on_disk() as notes:
        told = DecisionInputs(notes)
        async for record in read_all(context.client, sources, time_limit):
            event = await decoded(context, record)
            if event is not None:
                told.note(record, event)
        gone = {
            (topic, partition): f"the log of {topic} no longer has its beginning"
            for (topic, partition), span in sources.items()
            if span.low > 0 and topic != TICK  # kept for a week by design
        } | await holes_of(context)
        async for record in read_all(context.client, decided, time_limit):
            event = await decoded(context, record)
            if event is not None:
                judge_one(checked[record.topic], judges[record.topic], record, event, told, rules, gone)
    return list(checked.values())


def judge_one(
    checked: Checked,
    decision: Decision[Any],
    record: Record,
    event: Event,
    inputs: DecisionInputs,
    rules: Rules,
    gone: Mapping[Place, str],
) -> None:
    """Judge one decision; `gone` are the partitions that no longer have all of their records, with the reasons."""
    try:
        verdict = decision.judge(event, record, inputs, rules)
    except LeftOpenError as why:
        checked.leave_out(str(why))
        return
    except (ValueError, KeyError, TypeError) as error:
        verdict = ("event", "a decision of the product", repr(error))
    inputs_of = [(topic, record.partition) for topic in (*decision.sources, record.topic)]
    missing = [gone[place] for place in inputs_of if place in gone]
    if verdict is not None and missing:
        checked.leave_out(f"its inputs: {'; '.join(missing)}")
        return
    checked.compared += 1
    if verdict is not None:
        name, expected, found = verdict
        key = TOPICS[record.topic].key_of(event)
        checked.differs(Difference(key, name, expected, found, str(record.position)))


async def spans_of(context: ProcessContext, topics: list[str]) -> dict[Place, LogRange]:
    """Return everything that topics hold now."""
    counts = await context.admin.partition_counts()
    places = [(topic, partition) for topic in topics for partition in range(counts.get(topic, 0))]
    return await context.admin.log_ranges(places) if places else {}

"""(b) Decisions: every one that is recorded with its inputs is made again, and must come out as it did.

The law: first all that told inputs is read, then the decisions, up to ends that were fixed in the opposite order; so an input
that is missing was never told.
"""

from __future__ import annotations

from collections.abc import Mapping

from connectors.kafka.admin import LogRange
from connectors.kafka.handler import Surroundings
from connectors.kafka.records import Record
from connectors.stores.positions import Place
from connectors.verify.judging import DECISIONS, Decision, Event, LeftOpenError, Rules, Told
from connectors.verify.log import read_all
from connectors.verify.report import Checked, Difference
from schemas.errors import InvalidEventError, UnknownSchemaError
from schemas.topics import TOPICS
from streams.feeds.policy import load_policy
from streams.settings import Settings

PART = "decisions"


async def verify_decisions(around: Surroundings, settings: Settings) -> list[Checked]:
    """Judge every recorded decision again."""
    decided = await spans_of(around, [decision.topic for decision in DECISIONS])
    sources = await spans_of(around, sorted({topic for decision in DECISIONS for topic in decision.sources}))
    told = Told(truncated={topic for (topic, _), span in sources.items() if span.low > 0})
    for record in read_all(around.client, sources):
        event = await decoded(around, record)
        if event is not None:
            told.note(record, event)
    checked = {decision.topic: Checked(PART, decision.topic) for decision in DECISIONS}
    judges = {decision.topic: decision for decision in DECISIONS}
    rules = Rules(load_policy(settings.policy_file))
    for record in read_all(around.client, decided):
        event = await decoded(around, record)
        if event is not None:
            _judge(checked[record.topic], judges[record.topic], record, event, told, rules)
    return list(checked.values())


def _judge(checked: Checked, decision: Decision, record: Record, event: Event, told: Told, rules: Rules) -> None:
    try:
        verdict = decision.judge(event, record, told, rules)
    except LeftOpenError as why:
        checked.leave_out(str(why))
        return
    except (ValueError, KeyError, TypeError) as error:
        verdict = ("event", "a decision of the product", repr(error))
    missing = [topic for topic in decision.sources if topic in told.truncated and topic != "streams.tick"]
    if verdict is not None and missing:
        checked.leave_out(f"the log of {', '.join(missing)} no longer has its beginning")
        return
    checked.compared += 1
    if verdict is not None:
        name, expected, found = verdict
        key = TOPICS[record.topic].key_of(event)
        checked.differs(Difference(key, name, expected, found, str(record.position)))


async def spans_of(around: Surroundings, topics: list[str]) -> dict[Place, LogRange]:
    """All that topics hold at this moment."""
    counts = await around.admin.partition_counts()
    places = [(topic, partition) for topic in topics for partition in range(counts.get(topic, 0))]
    return await around.admin.log_ranges(places) if places else {}


async def decoded(around: Surroundings, record: Record) -> Mapping[str, object] | None:
    """The event in a record; None for what was dead-lettered live, and for tombstones."""
    try:
        return around.codec.decode(record.topic, record.value)
    except UnknownSchemaError as unknown:
        try:
            around.codec.teach(unknown.schema_id, await around.registry.text_of(unknown.schema_id))
            return around.codec.decode(record.topic, record.value)
        except (UnknownSchemaError, InvalidEventError):
            return None
    except InvalidEventError:
        return None

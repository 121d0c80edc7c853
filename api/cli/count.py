"""`highwater count`: the number of records of a topic, in total and by the value of an expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from highwater.api.cli.replay import conditions_shown
from highwater.api.cli.selecting import Selecting
from highwater.api.command.command import Command, TopicArgument, json_option
from highwater.api.command.connection import stack_settings
from highwater.api.command.terminal import print_json, print_table, say, warn
from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.schemas.topics import Topic
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.connectors.replay.counting import Counting

_TOP_DEFAULT = 20


@click.command(cls=Command)
@click.argument("topic", type=TopicArgument(dead_letters=True, foreign=True))
@click.option(
    "--by", metavar="EXPR", help="A field (channel_id), key, partition, or any expression in CEL (time.getHours())."
)
@click.option("--from", "begin", metavar="WHERE", help="First record: offset, PARTITION/OFFSET, time, age (7d, -1h).")
@click.option("--to", "end", metavar="WHERE", help="Where to stop, exclusive [default: the current end].")
@click.option("--where", "condition", metavar="CEL", help="Only matching records, e.g. 'value.seq > 3'.")
@click.option("--key", metavar="KEY", help="Only the records of this key.")
@click.option(
    "-n",
    "--top",
    type=click.IntRange(1, 100_000),
    default=_TOP_DEFAULT,
    show_default=True,
    help="Maximum number of values to show.",
)
@json_option
def count(
    topic: Topic,
    by: str | None,
    begin: str | None,
    end: str | None,
    condition: str | None,
    key: str | None,
    top: int,
    as_json: bool,
) -> None:
    """Count the records of TOPIC, in total or by the value of an expression, the most frequent first.

    A topic of another application is read as Avro where the registry has the schema, else as JSON or
    text; --by may name any field.
    """
    settings = stack_settings("kafka", "schema_registry")
    with without_pandas(), conditions_shown():
        selecting = Selecting(settings, topic)
        counting = None if by is None else _counting(selecting, by)
        total = 0
        for decoded in selecting.decoded(selecting.spans(begin, end), condition=condition, key=key):
            total += len(decoded)
            if counting is not None:
                counting.add(decoded)
    told = {"topic": topic.name, "read": selecting.counts.read, "records": total}
    if counting is not None:
        told |= {
            "by": by,
            "distinct": counting.distinct,
            "without_answer": counting.without_answer,
            "values": [{"value": value, "records": records} for value, records in counting.top(top)],
        }
    _tell(told, counting, as_json=as_json)
    if selecting.counts.unanswered:
        warn(
            f"highwater: --where could not be evaluated for {counted(selecting.counts.unanswered, 'record')}, which were left out"
        )


def _counting(selecting: Selecting, by: str) -> Counting:
    from highwater.connectors.replay.counting import Counting, expression_of

    decoder = selecting.decoder
    fields = None if decoder.is_open else [field.name for field in decoder.arrow_type]
    return Counting(expression_of(by, fields), decoder.arrow_type, selecting.topic.name, is_open=decoder.is_open)


def _tell(told: dict[str, Any], counting: Counting | None, *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    if counting is None:
        say(told["records"])
        return
    rows = [_row(one["value"], one["records"], told["records"]) for one in told["values"]]
    print_table([told["by"], "records", "share"], rows, right=["records", "share"])
    rest = told["distinct"] - len(rows)
    more = f"; {counted(rest, 'more value')}, --top shows more" if rest else ""
    warn(
        printable(
            f"{told['records']:,} of {told['read']:,} records of {told['topic']}, {counted(told['distinct'], 'value')}{more}"
        )
    )
    if counting.without_answer:
        warn(
            f"highwater: --by could not be evaluated for {counted(counting.without_answer, 'record')}"
            f" (the first: {counting.first_failure})"
        )


def _row(value: Any, records: int, total: int) -> tuple[str, str, str]:
    return "null" if value is None else str(value), f"{records:,}", f"{records / max(1, total):.1%}"

"""`highwater diff`: how two topics differ by key, or one topic at two times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from highwater.api.cli.replay import conditions_shown
from highwater.api.cli.selecting import Selecting
from highwater.api.command.command import FAILED, Command, TopicArgument, json_option
from highwater.api.command.connection import stack_settings
from highwater.api.command.terminal import print_json, say, warn
from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.schemas.topics import Topic
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.connectors.replay.differences import Difference, Event, State

_SHOWN_DEFAULT = 100
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_TOPIC = TopicArgument(dead_letters=True, foreign=True)


@click.command(cls=Command)
@click.argument("topic", type=_TOPIC)
@click.argument("other", type=_TOPIC, required=False)
@click.option("--from", "begin", metavar="WHERE", help="With one topic: the earlier state (1d, a time, an offset).")
@click.option("--to", "end", metavar="WHERE", help="The later state [default: the current end].")
@click.option("--where", "condition", metavar="CEL", help="Only records that meet this condition.")
@click.option("--key", metavar="KEY", help="Only this key.")
@click.option("--ignore", "ignored", multiple=True, metavar="FIELD", help="Ignore this field (may be repeated).")
@click.option(
    "-n",
    "--top",
    type=click.IntRange(min=1),
    default=_SHOWN_DEFAULT,
    show_default=True,
    help="Maximum number of keys to show.",
)
@json_option
def diff(
    topic: Topic,
    other: Topic | None,
    begin: str | None,
    end: str | None,
    condition: str | None,
    key: str | None,
    ignored: tuple[str, ...],
    top: int,
    as_json: bool,
) -> None:
    """Compare the latest event of each key: of TOPIC and OTHER, or of TOPIC at --from and at --to.

    A topic of another application is read as Avro where the registry has the schema, else as JSON or text.

    Shows keys that were added (+), removed (-) or changed (~), with the fields that differ.
    The exit status is 1 if anything differs.
    """
    if (other is None) is (begin is None):
        raise click.UsageError("name a second topic, or the earlier time with --from", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry")
    with without_pandas(), conditions_shown():
        from highwater.connectors.replay.differences import differences

        left = Selecting(settings, topic)
        right = left if other is None else Selecting(settings, other)
        before = _state(left, None, end if begin is None else begin, condition, key)
        after = _state(right, begin, end, condition, key)
        # For one topic, later events override the earlier state.
        later = after.values() if other is not None else {**before.values(), **after.values()}
        told = _told(differences(before.values(), later, _reader(left), _reader(right), ignored), top)
    names = {"topic": topic.name, "other": right.topic.name, "from": begin, "to": end}
    _tell({**names, **told, "without_key": before.without_key + after.without_key}, as_json=as_json)
    if told["differences"]:
        click.get_current_context().exit(FAILED)


def _state(selecting: Selecting, begin: str | None, end: str | None, condition: str | None, key: str | None) -> State:
    from highwater.connectors.replay.differences import State

    state = State()
    for batch in selecting.undecoded(selecting.spans(begin, end), condition=condition, key=key):
        state.add(batch)
    return state


def _reader(selecting: Selecting) -> Callable[[bytes], Event]:
    """Return a function that decodes a value to an event; an undecodable one differs by its reason and bytes."""
    from highwater.connectors.replay.text import base64_of
    from highwater.schemas.errors import InvalidEventError, UnknownSchemaError

    def read(value: bytes) -> Event:
        try:
            return selecting.decoder.decode_one(value)
        except (InvalidEventError, UnknownSchemaError) as error:
            return {"undecodable": str(error), "bytes_base64": base64_of(value)}

    return read


def _told(found: Iterator[Difference], top: int) -> dict[str, Any]:
    counts = dict.fromkeys(_SIGNS, 0)
    shown: list[Difference] = []
    for one in found:
        counts[one.kind] += 1
        if len(shown) < top:
            shown.append(one)
    return {
        **counts,
        "differences": [
            {"key": one.key, "kind": one.kind, "fields": {name: _plain(pair) for name, pair in one.fields.items()}}
            for one in shown
        ],
    }


def _plain(pair: tuple[Any, Any]) -> Any:
    """Return both values in the form of JSON; bytes in base64."""
    from highwater.schemas.exact_json import read_json, write_json

    return read_json(write_json(pair))


def _tell(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    for one in told["differences"]:
        say(printable(f"{_SIGNS[one['kind']]} {one['key']}"))
        for name, (before, after) in one["fields"].items():
            say(printable(f"    {name}: {_shown(before)} -> {_shown(after)}"))
    kinds = ", ".join(f"{told[kind]:,} {kind}" for kind in _SIGNS)
    rest = sum(told[kind] for kind in _SIGNS) - len(told["differences"])
    more = f"; {counted(rest, 'more key')}, --top shows more" if rest else ""
    warn(f"{kinds}{more}")
    if told["without_key"]:
        warn(
            f"highwater: {counted(told['without_key'], 'record has no key and was', 'records have no key and were')} left out"
        )


def _shown(value: Any) -> str:
    from highwater.schemas.exact_json import write_json

    return "none" if value is None else write_json(value).decode()

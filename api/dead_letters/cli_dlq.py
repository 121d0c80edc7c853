"""`highwater dlq`: shows dead letters with reason, origin and original bytes; resends, edits or deletes them.

Invariant: nothing is deleted without confirmation, and every action is recorded (`api/dead_letters/handling.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import CommandFailedError, Group, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import confirm, print_json, print_table, say
from highwater.api.dead_letters.cli_edit import edit
from highwater.api.dead_letters.cli_letters import LETTER_TOPIC, NOTE, box_of, handler_of, json_text, name_of
from highwater.api.dead_letters.cli_park import park
from highwater.schemas.topics import Topic
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.api.dead_letters.letter import Letter

_LISTED_MAX = 10_000
# The part of a letter's bytes that fits a screen; `--bytes` writes all of them.
_HEX_BYTES = 256


@click.group(cls=Group)
def dlq() -> None:
    """Dead letters: list, show, redrive, edit, drop, park. TOPIC is the topic they came from (or its .dlq)."""


dlq.add_command(edit)
dlq.add_command(park)


@dlq.command("list")
@click.argument("topic", type=LETTER_TOPIC, required=False)
@click.option("--open", "only_open", is_flag=True, help="Only dead letters that have not been published again.")
@json_option
def list_letters(topic: Topic | None, only_open: bool, as_json: bool) -> None:
    """List the dead letters of TOPIC, or count those of every topic."""
    box = box_of(stack_settings("kafka", "schema_registry"))
    if topic is None:
        _print_summary([one for one in box.summary() if one["open"] or not only_open], as_json=as_json)
        return
    found = box.letters([topic], latest=_LISTED_MAX)
    letters = [letter.document() for letter in found if letter.is_open or not only_open]
    if as_json:
        print_json(letters)
        return
    columns = ["position", "arrived", "reason", "origin", "group", "sent again", "detail"]
    rows = [
        (d["position"], d["arrived_at"], d["reason"], d["origin"], d["group"], _sent_again(d), d["detail"])
        for d in letters
    ]
    print_table(columns, rows)


def _sent_again(document: dict[str, Any]) -> str:
    """Describe where a letter is now, and how often it was sent before."""
    now_at = [one["position"] for one in document["handled"] if one["position"]]
    before = f"failed again {counted(document['redrives'], 'time')}" if document["redrives"] else ""
    return ", ".join(part for part in (f"to {now_at[-1]}" if now_at else "", before) if part)


def _print_summary(summary: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
    elif not summary:
        say("no dead letters")
    else:
        rows = [
            (
                d["topic"],
                d["count"],
                d["open"],
                ", ".join(f"{name} ({n})" for name, n in d["reasons"].items()),
                d["latest_at"],
            )
            for d in summary
        ]
        columns = ["topic", "dead letters", "open", "reasons", "latest"]
        print_table(columns, rows, right=["dead letters", "open"])


@dlq.command()
@click.argument("topic", type=LETTER_TOPIC)
@click.option("--offset", type=click.IntRange(min=0), help="Only the dead letter at this offset.")
@click.option(
    "-n", "count", type=click.IntRange(1, _LISTED_MAX), default=10, show_default=True, help="Show the latest N."
)
@click.option(
    "--bytes",
    "bytes_to",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Write the original bytes of the one at --offset to this file.",
)
@json_option
def show(topic: Topic, offset: int | None, count: int, bytes_to: Path | None, as_json: bool) -> None:
    """Show dead letters completely: headers, decoded value if possible, original bytes, and what was done with them."""
    if bytes_to is not None and offset is None:
        raise click.UsageError("--bytes needs --offset", click.get_current_context())
    box = box_of(stack_settings("kafka", "schema_registry"))
    found = False
    for letter in box.letters([topic], latest=count, only=offset):
        found = True
        if bytes_to is not None:
            with click.open_file(str(bytes_to), "wb") as file:
                file.write(letter.record.value or b"")
        elif as_json:
            print_json(box.shown(letter))
        else:
            _print_letter(box.shown(letter), letter)
    if not found:
        where = "" if offset is None else f" at {offset}"
        raise CommandFailedError(f"{name_of(topic)} has no dead letter{where}")


def _print_letter(document: dict[str, Any], letter: Letter) -> None:
    from highwater.api.dead_letters.letter import HEADER_PREFIX, hex_lines

    def line(name: str, value: Any) -> None:
        say(printable(f"{name:<12}{value}"))

    for name in ("position", "arrived_at", "reason", "detail", "origin", "group", "key"):
        line(name, document[name])
    for name, value in document["headers"].items():
        if not name.startswith(HEADER_PREFIX):
            line("header", f"{name}={value}")
    if document["redriven_from"] is not None:
        line("sent again", f"from {document['redriven_from']}, {counted(document['redrives'], 'time')} until now")
    for one in document["handled"]:
        where = f" to {one['position']}" if one["position"] else ""
        changed = f", changed {', '.join(one['changed'])}" if one["changed"] else ""
        note = f": {one['note']}" if one["note"] else ""
        line(one["action"], f"{one['handled_at']} by {one['by']}{where}{changed}{note}")
    _print_value(document, line)
    raw = letter.record.value
    if raw is not None:
        schema = "" if document["schema_id"] is None else f", schema {document['schema_id']}"
        line("bytes", f"{len(raw):,}{schema}")
        for row in hex_lines(raw, bytes_max=_HEX_BYTES):
            say(f"  {row}")
    say()


def _print_value(document: dict[str, Any], line: Any) -> None:
    if "value" in document:
        line("value", json_text(document["value"]))
        return
    line("undecodable", document["undecodable"])
    if document["as_written"] is not None:
        line("as written", json_text(document["as_written"]))
    if document["omitted_bytes"] is not None:
        line("left out", f"{counted(document['omitted_bytes'], 'byte')}, which are at {document['origin']} only")


@dlq.command()
@click.argument("topic", type=LETTER_TOPIC)
@click.option("--offset", "offsets", type=click.IntRange(min=0), multiple=True, help="Only this one (may be repeated).")
@click.option("--reason", help="Only dead letters with this reason.")
@click.option("--again", is_flag=True, help="Also dead letters that have already been published again.")
@NOTE
@json_option
def redrive(
    topic: Topic, offsets: tuple[int, ...], reason: str | None, again: bool, note: str | None, as_json: bool
) -> None:
    """Publish dead letters unchanged to their original topic again; the dead letters themselves stay.

    Headers name the dead letter, the user and the time, and an event on
    streams.dead-letter-handled has the new position. Without --again, already redriven ones are skipped.
    """
    from highwater.api.dead_letters.handling import Outcome
    from highwater.api.dead_letters.reading import in_thread

    settings = stack_settings("kafka", "schema_registry")
    box = box_of(settings)
    partitions = box.partitions()

    def wanted() -> Iterator[Letter]:
        for letter in box.letters([topic]):
            if (not offsets or letter.record.offset in offsets) and reason in (None, letter.reason):
                yield letter

    async def send() -> Outcome:
        async with handler_of(settings, partitions, note) as handler:
            return await handler.redrive(in_thread(wanted()), again=again)

    with recorded(settings, "dlq redrive", name_of(topic)):
        outcome = asyncio.run(send())
    _conclude_redrive(name_of(topic), outcome, as_json=as_json)


def _conclude_redrive(name: str, outcome: Any, *, as_json: bool) -> None:
    from highwater.api.command.terminal import warn

    sent, skipped = len(outcome.redriven), outcome.skipped
    if as_json:
        positions = [{"letter": str(letter), "position": str(now_at)} for letter, now_at in outcome.redriven]
        left_out = {why: skipped[why] for why in ("sent_before", "without_origin", "without_bytes", "too_large")}
        print_json({"redriven": sent, **left_out, "positions": positions})
    else:
        before = (
            f"; {counted(skipped['sent_before'], 'was', 'were')} already sent (use --again to repeat)"
            if skipped["sent_before"]
            else ""
        )
        say(f"sent {counted(sent, 'dead letter')} of {name} again{before}")
    if outcome.refused:
        for line in outcome.refused[:5]:
            warn(line)
        raise CommandFailedError(
            f"{counted(len(outcome.refused), 'dead letter')} cannot be sent unchanged; see `highwater dlq show {name}`; edit them"
        )


@dlq.command()
@click.argument("topic", type=LETTER_TOPIC)
@click.option("--up-to", type=click.IntRange(min=0), help="The last offset to delete [default: all current ones].")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@NOTE
@json_option
def drop(topic: Topic, up_to: int | None, yes: bool, note: str | None, as_json: bool) -> None:
    """Delete the dead letters of TOPIC up to and including an offset."""
    from highwater.api.dead_letters.letter import dead_letters_of

    settings = stack_settings("kafka", "schema_registry")
    box = box_of(settings)
    letters = dead_letters_of(topic)
    ranges = box.ranges([letters])
    # The end is fixed before the confirmation, so that letters that arrive meanwhile are not deleted unseen.
    ends = {place: held.high if up_to is None else min(held.high, up_to + 1) for place, held in ranges.items()}
    count = sum(max(0, end - ranges[place].low) for place, end in ends.items())
    if count:
        confirm(f"Delete {counted(count, 'dead letter')} of {letters.name}?", assume_yes=yes)

        partitions = box.partitions()

        async def delete() -> int:
            async with handler_of(settings, partitions, note) as handler:
                return await handler.drop(kafka_client(settings), ends, ranges)

        with recorded(settings, "dlq drop", f"{letters.name}, {counted(count, 'letter')}"):
            count = asyncio.run(delete())
    if as_json:
        print_json({"dropped": count})
    else:
        say(f"deleted {counted(count, 'dead letter')} of {letters.name}")

"""`highwater dlq edit`: corrects a dead letter and sends it again, by options, from a file, or in an editor.

Invariant: the event is checked like any event of its topic, so that it does not become another dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.connection import stack_settings
from highwater.api.command.terminal import confirm, print_json, say
from highwater.api.dead_letters.cli_letters import LETTER_TOPIC, NOTE, box_of, handler_of, json_text, name_of
from highwater.schemas.topics import TOPICS, Topic
from highwater.streams.printable import printable

if TYPE_CHECKING:
    from highwater.api.dead_letters.letter import Letter, Replacement
    from highwater.api.dead_letters.reading import LetterBox
    from highwater.schemas.positions import Position
    from highwater.streams.settings import Settings


@click.command(cls=Command)
@click.argument("topic", type=LETTER_TOPIC)
@click.argument("offset", type=click.IntRange(min=0))
@click.option(
    "--set", "assigned", multiple=True, metavar="FIELD=VALUE", help="Set a field to this value (JSON or text)."
)
@click.option("--unset", "removed", multiple=True, metavar="FIELD", help="Remove a field.")
@click.option(
    "--value", "document", type=click.File("rb"), metavar="FILE", help="The whole event as JSON (- is stdin)."
)
@click.option("--bytes", "raw", type=click.File("rb"), metavar="FILE", help="The whole value as raw bytes, unchecked.")
@click.option("--dry-run", is_flag=True, help="Show what would be published without publishing it.")
@click.option("--again", is_flag=True, help="Also if it has already been published again.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@NOTE
@json_option
def edit(
    topic: Topic,
    offset: int,
    assigned: tuple[str, ...],
    removed: tuple[str, ...],
    document: Any,
    raw: Any,
    dry_run: bool,
    again: bool,
    yes: bool,
    note: str | None,
    as_json: bool,
) -> None:
    """Correct the dead letter of TOPIC at OFFSET and publish it again; the dead letter itself stays.

    Without --set, --unset, --value or --bytes the decoded value is opened in $EDITOR. The event is checked like any event of
    the topic.
    """
    if sum((bool(assigned or removed), document is not None, raw is not None)) > 1:
        raise click.UsageError("--set/--unset, --value and --bytes exclude each other", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry")
    box = box_of(settings)
    letter = next(box.letters([topic], only=offset), None)
    if letter is None:
        raise CommandFailedError(f"{name_of(topic)} has no dead letter at {offset}")
    if not letter.is_open and not again:
        raise CommandFailedError(
            f"{letter.position} was already sent again; see `highwater dlq show {name_of(topic)}`; --again repeats it"
        )
    if raw is not None:
        from highwater.api.dead_letters.handling import replaced_bytes

        replacement = replaced_bytes(letter, raw.read())
    else:
        replacement = _edited(settings, box, letter, assigned, removed, document)
    if not as_json:
        _print_changes(replacement)
    if dry_run:
        position = None
    else:
        confirm(f"Send it to {letter.topic}?", assume_yes=yes)
        with recorded(settings, "dlq edit", str(letter.position)):
            position = asyncio.run(_send_edited(settings, box.partitions(), letter, replacement, note))
    if as_json:
        changes = [
            {"field": one.field, "before": _shown(one.before), "after": _shown(one.after)}
            for one in replacement.changes
        ]
        now_at = None if position is None else str(position)
        print_json({"letter": str(letter.position), "position": now_at, "changes": changes})
    else:
        say("nothing was sent (--dry-run)" if position is None else f"sent as {position}")


async def _send_edited(
    settings: Settings, partitions: Mapping[str, int], letter: Letter, replacement: Replacement, note: str | None
) -> Position:
    async with handler_of(settings, partitions, note) as handler:
        return await handler.edit(letter, replacement)


def _edited(
    settings: Settings,
    box: LetterBox,
    letter: Letter,
    assigned: tuple[str, ...],
    removed: tuple[str, ...],
    document: Any,
) -> Replacement:
    """Return what is sent after an edit of the decoded value; for an undecodable letter, of its bytes decoded by their
    own schema.
    """
    from highwater.api.dead_letters.handling import planned_edit
    from highwater.api.dead_letters.letter import apply_edit
    from highwater.connectors.kafka.registry import Registry

    before = box.document_of(letter)
    if document is not None:
        after = _parsed_json(document.read())
    elif assigned or removed:
        after = apply_edit(before, [_assignment(text) for text in assigned], removed)
    else:
        after = _from_editor(before)
    codec = asyncio.run(Registry(settings.registry_access()).codec([TOPICS[letter.topic]]))
    return planned_edit(letter, after, before, codec, settings.embedding_dimensions)


def _assignment(text: str) -> tuple[str, Any]:
    """Return a field and its value: parsed as JSON if possible, else the text itself."""
    import orjson

    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--set {text!r} is not FIELD=VALUE", click.get_current_context())
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def _parsed_json(text: str | bytes) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CommandFailedError(f"not JSON: {error}") from error


def _from_editor(before: Mapping[str, Any]) -> Any:
    import sys

    import orjson

    if not sys.stdin.isatty():
        raise click.UsageError("say what to change: --set, --unset, --value or --bytes", click.get_current_context())
    edited = click.edit(orjson.dumps(before, option=orjson.OPT_INDENT_2).decode() + "\n", extension=".json")
    if edited is None:  # closed without saving
        raise click.Abort
    return _parsed_json(edited)


def _print_changes(replacement: Replacement) -> None:
    if not replacement.changes:
        say("no field changes")
    for change in replacement.changes:
        say(printable(f"{change.field:<16}{json_text(_shown(change.before))} → {json_text(_shown(change.after))}"))


def _shown(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value

"""The commands of `highwater` that documents show, and whether the command line would take them.

Nothing is run: names of commands, options, choices, topics and the number of arguments are checked against the real commands.
Values in capitals (`TOPIC`, `DIR`) stand for something, and take any place; `…` stands for the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from highwater.api.cli.main import highwater
from highwater.api.command.command import TopicArgument
from highwater.schemas.topics import all_topics

PROGRAM = "highwater"
_NAMES = {topic.name for topic in all_topics()}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = {"", "sh", "bash", "console", "shell"}  # a block without a language may be one
_INLINE = re.compile(r"`(highwater [^`]+)`")
_ENDS = set("|&;()\n")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_REDIRECTED = re.compile(r"\0\d?[<>]+&?\0?[^\0]*")
_BEFORE = {"while", "until", "if", "then", "do", "!", "sudo", "time"}
_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_./-]*|\$.*|…|DIR/.*")


def every_command(group: click.Group = highwater, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Each command that is not a group, with its name as it is typed after `highwater`."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def blocks(text: str) -> list[str]:
    """The shell blocks of a document in Markdown."""
    return [block for language, block in _FENCE.findall(text) if language in _SHELLS]


def commands_in(script: str) -> list[list[str]]:
    """The arguments of each call of `highwater` in a shell script, also of one inside `$(…)`."""
    joined = _without_comments(script.replace("\\\n", " ")).replace("$(", " ; ")
    lexer = shlex.shlex(joined, posix=True, punctuation_chars="|&;()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    found: list[list[str]] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) - _ENDS:
            words.append(word)
            continue
        words = _REDIRECTED.sub("", "\0".join(words)).split("\0")
        while words and (words[0] in _BEFORE or _ASSIGNED.fullmatch(words[0])):
            words.pop(0)
        if words and words[0] == PROGRAM:
            found.append(words[1:])
        words = []
    return found


def _without_comments(script: str) -> str:
    """A script without what follows a `#` at the start of a word, outside quotes."""
    kept: list[str] = []
    quote, is_comment = "", False
    for character in script:
        if character == "\n" and not quote:
            is_comment = False
        elif not is_comment and quote:
            quote = "" if character == quote else quote
        elif not is_comment and character in "'\"":
            quote = character
        elif character == "#" and (not kept or kept[-1].isspace()):
            is_comment = True
        if not is_comment:
            kept.append(character)
    return "".join(kept)


def named_in(text: str) -> list[list[str]]:
    """The arguments of each call that a sentence names between backticks."""
    return [shlex.split(" ".join(one.split()))[1:] for one in _INLINE.findall(text)]


def fault_of(arguments: list[str], *, is_whole: bool = True) -> str | None:
    """Why the command line would refuse a call; None where it would not. Arguments may be missing where it is incomplete."""
    command: click.Command = highwater
    context = click.Context(command, info_name=PROGRAM)
    rest = [one for one in arguments if one != "…"]
    while isinstance(command, click.Group):
        if not rest:
            return f"{context.command_path}: which command?" if is_whole else None
        default = getattr(command, "default_command", None)
        if rest[0].startswith("-") and default is None:
            return _fault_of_options(command, context, rest)
        name = default if rest[0].startswith("-") else rest.pop(0)
        child = command.get_command(context, name)
        if child is None:
            return f"{context.command_path} has no command {name}"
        command, context = child, click.Context(child, info_name=name, parent=context)
    return _fault_of_options(command, context, rest, is_whole=is_whole and "…" not in arguments)


def _fault_of_options(
    command: click.Command, context: click.Context, words: list[str], *, is_whole: bool = True
) -> str | None:
    if {"--help", "-h"} & set(words):
        return None
    try:
        values, left, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return None if not is_whole and isinstance(error, click.BadOptionUsage) else f"{context.command_path}: {error}"
    if left:
        return f"{context.command_path}: {' '.join(left)} is too much"
    for param in command.params:
        value = values.get(param.name or "")
        if is_whole and param.required and not _is_given(value):
            return f"{context.command_path}: {_name_of(param)} is missing"
        fault = _fault_of_value(param, value, context)
        if fault is not None:
            return fault
    return None


def _name_of(param: click.Parameter) -> str:
    return param.human_readable_name if isinstance(param, click.Argument) else param.opts[0]


def _is_given(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, (tuple, list)) and len(value) > 0)


def _fault_of_value(param: click.Parameter, value: Any, context: click.Context) -> str | None:
    """The fault of a value from a list, or of a topic; other values are for the command to judge."""
    values = value if isinstance(value, (list, tuple)) else [value]
    if not isinstance(param.type, (click.Choice, TopicArgument)):
        return None
    for one in values:
        if isinstance(one, str) and not _PLACEHOLDER.fullmatch(one):
            try:
                param.type.convert(one, param, context)
            except click.BadParameter as error:
                return f"{context.command_path}: {error.message}"
            # A topic of another application may have any name, but not one that is similar to one of our names.
            if isinstance(param.type, TopicArgument) and one not in _NAMES and (near := param.type.nearest(one)):
                return f"{context.command_path}: there is no topic {one}{near}"
    return None


def documents(root: Path) -> list[Path]:
    """Every document of the project."""
    hidden = {".venv", "build", "dist", "highwater", ".git"}  # `highwater/` has links to the folders beside it
    return sorted(path for path in root.rglob("*.md") if not hidden & set(path.relative_to(root).parts[:1]))

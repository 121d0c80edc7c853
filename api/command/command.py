"""What all commands share: exit status, one-line errors, `--debug`, and topics as arguments.

Invariant: exit status 0 done, 1 failed, 2 wrong use, 130 after Ctrl-C, 143 after SIGTERM; every error is one line on
standard error. A name that nothing has (of a command, option, topic, group, schema) is wrong use; an id that nothing has
is a failure.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from highwater.api.command.terminal import say
from highwater.schemas.errors import ConfigurationError, HighwaterError, leaves
from highwater.schemas.topics import TOPICS, Topic, all_topics, foreign_topic, is_topic_name

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
DEBUG = "--debug"


class CommandFailedError(HighwaterError):
    """The command failed. The message says why."""


class Command(click.Command):
    """A command with `--debug` that ends with 130 on Ctrl-C and quietly when the reader of its output has ended.

    In a process of its own it also ends on SIGTERM at any time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option([DEBUG], is_flag=True, expose_value=False, help="Show the traceback of an error.")
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C, SIGTERM and a closed pipe end it."""
        if not self._is_ended_by_sigterm(ctx):
            return self._invoke(ctx)
        from highwater.api.command.ending import TERMINATED, ended_by_sigterm

        with ended_by_sigterm() as ending:
            try:
                return self._invoke(ctx)
            except click.exceptions.Exit as end:
                if end.exit_code == INTERRUPTED and ending.is_asked:
                    ctx.exit(TERMINATED)
                raise

    def _is_ended_by_sigterm(self, ctx: click.Context) -> bool:
        return ctx.find_object(_OwnProcess) is not None

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # `highwater tail … | head`: the reader has read enough. Buffered output must not fail at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(DONE)
        return result


class RoleCommand(Command):
    """A command that serves until it is stopped: it handles SIGTERM itself, and takes the time that it needs."""

    def _is_ended_by_sigterm(self, ctx: click.Context) -> bool:
        del ctx
        return False


class _OwnProcess:
    """Marks a command line that is its own process, not a call from another program."""


class Group(click.Group):
    """A group whose commands are of the class above."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command with that name, or a usage error with the nearest names."""
        names = self.list_commands(ctx)
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{nearest(args[0], names)}")
        return super().resolve_command(ctx, args)


Group.group_class = Group


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--json`, given to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def nearest(name: str, names: Iterable[str]) -> str:
    """What a wrong name may have been meant to be; empty where nothing is like it."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class TopicArgument(click.ParamType):
    """The name of a catalogued topic, converted to the topic itself; with `foreign` also one of another application."""

    name = "topic"

    def __init__(self, *, dead_letters: bool, foreign: bool = False) -> None:
        self._takes_foreign = foreign
        self._topics = {topic.name: topic for topic in (all_topics() if dead_letters else TOPICS.values())}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Topic:
        """Return the topic with that name, or a usage error with the nearest names."""
        if isinstance(value, Topic):
            return value
        topic = self._topics.get(value)
        if topic is None and self._takes_foreign and is_topic_name(value):
            return foreign_topic(value)
        if topic is None:
            hint = self.nearest(value) or "; `highwater topics` lists the topics"
            self.fail(f"there is no topic {value!r}{hint}", param, ctx)
        return topic

    def nearest(self, name: str) -> str:
        """Which topics a wrong name may mean, as the end of a message; empty where none is near."""
        return nearest(name, self._topics)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Return the topics that begin with what was typed."""
        del ctx, param
        return [click.shell_completion.CompletionItem(name) for name in self._topics if name.startswith(incomplete)]


def run_command(group: click.Group, arguments: list[str], *, owns_process: bool = False) -> int:
    """Run a command line and return its exit status; every error is printed in one line.

    With `owns_process` the command may set signal handlers.
    """
    try:
        mark = _OwnProcess() if owns_process else None
        status = group.main(args=arguments, prog_name="highwater", standalone_mode=False, obj=mark)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.ctx.get_help() if error.ctx else "", err=True)
        return WRONG_USE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        return _say(_usage_line(error), error.exit_code)
    except BrokenPipeError:
        return DONE
    except Exception as error:
        _forget_output()
        if DEBUG in arguments:
            raise
        is_wrong_use = all(isinstance(leaf, ConfigurationError) for leaf in leaves(error))
        return _say(_line(error), WRONG_USE if is_wrong_use else FAILED)
    return status if isinstance(status, int) else DONE


def _forget_output() -> None:
    """Drop output that cannot be written: that error was reported, and the interpreter would report it again at exit,
    with status 120.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError, ValueError):  # noqa: PTH123 - a device
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _say(line: str, status: int) -> int:
    say(f"highwater: {line}", err=True)
    return status


def _usage_line(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    return f"{line} (see `{context.command_path} --help`)" if context is not None else line


def _line(error: BaseException) -> str:
    """Return the text of our own errors; other errors get their class name, since the text alone (`'x'` of a KeyError)
    says little.
    """
    text = " ".join(str(error).split())
    if isinstance(error, HighwaterError) or type(error).__module__ == "highwater.deploy.local.errors":
        return text
    if isinstance(error, BaseExceptionGroup):  # of a task group, whose own text is useless
        return "; ".join(dict.fromkeys(_line(leaf) for leaf in leaves(error)))
    if type(error).__name__ == "UndefinedTableError":  # asyncpg's errors, without importing asyncpg
        return f"{text}; run `highwater init`"
    if isinstance(error, OSError) and text:
        return text
    return f"{type(error).__name__}: {text} (`--debug` shows where)"

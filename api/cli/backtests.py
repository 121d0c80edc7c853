"""`highwater backtest`: backtests policies by default, or prompts.

Invariant: a backtest changes nothing; without a subcommand it takes the options of `policies`.
"""

from __future__ import annotations

import click

from highwater.api.command.command import Group
from highwater.api.feeds.cli_backtest import backtest as policies
from highwater.api.queries.cli_backtest import prompts

_DEFAULT = "policies"


class _WithDefault(Group):
    """A group with a default command."""

    default_command = _DEFAULT

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments, with the default command in front unless one is named or help is requested."""
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [self.default_command, *args])


@click.group(cls=_WithDefault)
def backtest() -> None:
    """Simulate other rebuild policies (the default command), or other prompts or models for queries."""


backtest.add_command(policies, _DEFAULT)
backtest.add_command(prompts)

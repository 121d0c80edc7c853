"""`highwater import`: imports real data into topics, by a source of `connectors/sources`."""

from __future__ import annotations

import click

from highwater.api.chunks.cli_import import files, git, github, jsonl
from highwater.api.command.command import Group
from highwater.api.league.cli_import import openfootball


@click.group(name="import", cls=Group)
def import_() -> None:
    """Import real data into topics."""


for _command in (files, git, github, jsonl, openfootball):
    import_.add_command(_command)

"""`highwater import`: real data to topics, by a source of `connectors/sources`."""

from __future__ import annotations

import click

from highwater.api.cli.command import Group
from highwater.api.cli.import_chunks import files, git, github, jsonl
from highwater.api.cli.import_season import openfootball


@click.group(name="import", cls=Group)
def import_() -> None:
    """Bring real data to topics."""


for _command in (files, git, github, jsonl, openfootball):
    import_.add_command(_command)

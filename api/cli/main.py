"""The command `highwater`: every command by name; what each needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import sys

import click

from api.cli.ask import ask
from api.cli.backtest import backtest
from api.cli.bench import bench
from api.cli.chunks import chunks
from api.cli.command import Group, run_command
from api.cli.dead_letters import dlq
from api.cli.doctor import doctor
from api.cli.explain import explain
from api.cli.importing import import_
from api.cli.jobs import jobs
from api.cli.lag import lag
from api.cli.publish import publish
from api.cli.replay import replay
from api.cli.reset import reset
from api.cli.roles import api, connect, health, init, worker
from api.cli.stack import down, status, up
from api.cli.tail import tail
from api.cli.topics import describe, topics
from api.cli.verify import verify


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def highwater() -> None:
    """Highwater: event streaming on Kafka; every answer knows the log position that made it."""


for _command in (
    *(up, down, status, init, worker, connect, api, health),
    *(publish, import_, topics, describe, tail, lag, dlq, reset, doctor, bench, ask, jobs, chunks),
    *(replay, verify, backtest, explain),
):
    highwater.add_command(_command)


def main() -> None:
    """The entry point of the console script."""
    sys.exit(run_command(highwater, sys.argv[1:]))


if __name__ == "__main__":
    main()

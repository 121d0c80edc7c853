"""The command `highwater`: every command by name; each imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
import sys

import click

from highwater.api.chunks.cli_chunks import chunks
from highwater.api.cli.backtests import backtest
from highwater.api.cli.backup import backup, restore
from highwater.api.cli.bench import bench
from highwater.api.cli.capacity import capacity
from highwater.api.cli.chaos import chaos
from highwater.api.cli.count import count
from highwater.api.cli.diff import diff
from highwater.api.cli.doctor import doctor
from highwater.api.cli.groups import groups
from highwater.api.cli.importing import import_
from highwater.api.cli.keys import keys
from highwater.api.cli.lag import lag
from highwater.api.cli.publish import publish
from highwater.api.cli.recover_tables import recover_tables
from highwater.api.cli.repair_log import repair_log
from highwater.api.cli.replay import replay
from highwater.api.cli.reset import reset
from highwater.api.cli.roles import api, connect, health, init, worker
from highwater.api.cli.schemas import schemas
from highwater.api.cli.sql import sql
from highwater.api.cli.stack import down, status, up
from highwater.api.cli.tail import tail
from highwater.api.cli.top import top
from highwater.api.cli.topics import describe, topics
from highwater.api.cli.upgrade import upgrade
from highwater.api.cli.verify import verify
from highwater.api.command.command import Group, run_command
from highwater.api.dead_letters.cli_dlq import dlq
from highwater.api.explain.cli_explain import explain
from highwater.api.feeds.cli_users import users
from highwater.api.history_check.cli_history_check import history_check
from highwater.api.jobs.cli_jobs import jobs
from highwater.api.league.cli_matches import matches
from highwater.api.queries.cli_ask import ask
from highwater.api.queries.cli_queries import queries
from highwater.api.simulate.cli_simulate import simulate


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="highwater", prog_name="highwater")
def highwater() -> None:
    """Highwater: event streaming on Kafka; every response names the log position that produced it."""


for _command in (
    *(up, down, status, init, worker, connect, api, health, keys),
    *(publish, import_, topics, describe, groups, schemas, tail, lag, top, dlq, reset, doctor, capacity, bench),
    *(ask, queries, jobs, chunks, users, matches),
    *(replay, sql, count, diff, verify, backtest, explain, backup, restore, recover_tables, repair_log, upgrade),
    *(chaos, history_check, simulate),
):
    highwater.add_command(_command)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    # A thread of OpenBLAS that waits for the next product spins. With other processes on the same cores that costs more
    # than a second thread gains: fits of an embedding model took four times the processor time. Read when numpy is
    # imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run_command(highwater, sys.argv[1:], owns_process=True))


if __name__ == "__main__":
    main()

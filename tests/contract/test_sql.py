"""The statements in `connectors/*/*.sql`: each is used, each used one is there, and the times they see are given to them."""

from __future__ import annotations

import re

from highwater.connectors.postgres.sql_files import read_blocks, rooms
from tests import ROOT

CODE = {
    path: path.read_text(encoding="utf-8")
    for folder in ("api", "connectors", "streams")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "statements.py"
}
ALL = "\n".join(CODE.values())
STATEMENTS = {name: text for folder in rooms() for name, text in read_blocks(folder).items()}


def test_every_statement_is_used():
    """No name in the files that no code mentions."""
    assert [name for name in STATEMENTS if f'QUERIES["{name}"]' not in ALL] == []


def test_every_used_statement_is_there():
    """A name that code looks up is in the files."""
    used = set(re.findall(r'QUERIES\["(\w+)"\]', ALL))
    assert set() == used - set(STATEMENTS)
    assert len(used) > 20


def test_statements_do_not_read_the_clock():
    """SQL gets the time as an argument, so that a test can move it; leases end, and statements last, by the server's own clock
    alone.
    """
    clock = re.compile(r"\b(now\s*\(|current_(time|date)|clock_timestamp|localtime|statement_timestamp)", re.IGNORECASE)
    assert [name for name, text in STATEMENTS.items() if clock.search(text)] == [
        "server_time_ms",  # by which the clocks of processes are judged
        "outbox_backlog",  # how long events wait, by the clock that stamped them
        "database_counters",
        "renew_copy_lease",
        "copies_not_told",
        "take_leases",
        "renew_leases",
        "drop_ended_leases",
    ]
    migrations = ROOT / "connectors" / "postgres" / "migrations"
    assert [path.name for path in migrations.glob("*.sql") if clock.search(path.read_text(encoding="utf-8"))] == [
        "0029_leases.sql",  # whether a lease has an owner
        "0033_outbox_age.sql",  # how long a row waits
    ]


def test_statements_hold_no_text_from_outside():
    """Values travel as parameters: no statement is put together with a brace or a percent sign."""
    assert [name for name, text in STATEMENTS.items() if re.search(r"\{\w*\}|%\(|%s", text)] == []

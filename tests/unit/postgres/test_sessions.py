"""Statements leave nothing in a session of PostgreSQL, so that pools need not clean returned connections."""

from __future__ import annotations

import re

from highwater.connectors.postgres.sql_files import _ROOMS, read_blocks

_LASTING = re.compile(
    r"pg_(?:try_)?advisory_lock(?:_shared)?\s*\(|set_config\([^()]*,\s*false\s*\)|\bSET\s+SESSION\b|\bUN?LISTEN\b|\bPREPARE\b"
    r"|\bWITH\s+HOLD\b",
    re.IGNORECASE,
)
# On connections that their programs open for themselves.
OWN_CONNECTIONS = {("chunks", "set_build_memory"), ("verify", "verify_lock")}


def test_statements_leave_no_lock_and_no_setting():
    """Locks and settings end with a transaction, except for programs with their own connection."""
    lasting = {
        (folder.name, name)
        for folder in _ROOMS.iterdir()
        if folder.is_dir()
        for name, statement in read_blocks(folder).items()
        if _LASTING.search(re.sub(r"--.*", "", statement))
    }
    assert lasting == OWN_CONNECTIONS

"""The settings of every session on PostgreSQL, so that neither side waits for the other forever.

The kernel's probes detect a connection whose other end is gone silently (a lost host, a cut line): on the client's side
by socket options, on the server's by session settings. The kernel of a paused process answers them; what such a process
holds in an open transaction is released when the server ends its session.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

# A silent connection is probed after this long, repeatedly, and is dead after this many unanswered probes: 25 s, where
# the kernel's defaults are over two hours.
KEEPALIVE_IDLE_SECONDS = 10
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_PROBES = 3
# The same for data that is not acknowledged this long, on a connection that is not silent.
UNACKNOWLEDGED_MS = 30_000
# As long as a statement may take (`pool.STATEMENT_SECONDS_MAX`): our transactions are never idle nearly that long.
IDLE_IN_TRANSACTION_MS = 60_000

# How a session identifies its version: `highwater upgrade --check` finds roles of several versions by it.
PROGRAM = f"highwater/{version('highwater')}"

# Session settings. On a Unix socket the server ignores those of TCP.
SESSION: Mapping[str, str] = {
    "application_name": PROGRAM,
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    "tcp_keepalives_idle": str(KEEPALIVE_IDLE_SECONDS),
    "tcp_keepalives_interval": str(KEEPALIVE_INTERVAL_SECONDS),
    "tcp_keepalives_count": str(KEEPALIVE_PROBES),
    "tcp_user_timeout": str(UNACKNOWLEDGED_MS),
}

# Socket options by their names in `socket`; options that a system does not have are left out.
_OPTIONS = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SECONDS,
    "TCP_KEEPCNT": KEEPALIVE_PROBES,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
}


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel detect that the other end of a TCP connection is gone."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def probed(connection: Any) -> None:
    """Do the same for the socket of an asyncpg connection, which has no option for it."""
    transport: asyncio.BaseTransport = connection._transport  # noqa: SLF001 (the only way to its socket; the version is locked)
    known = transport.get_extra_info("socket")
    if known is not None:
        # uvloop returns a stand-in without setsockopt; another descriptor of the same socket has it.
        with socket.socket(fileno=os.dup(known.fileno())) as same:
            keep_alive(same)

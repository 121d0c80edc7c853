"""What every session on PostgreSQL says of itself, so that neither side waits for the other for ever.

A connection whose other end is gone without a word (a host that is lost, a cut line) is known by the kernel's probes: on the
client's side by options of its socket, on the server's by settings of the session. The kernel of a stopped process answers
them; what such a process holds in an open transaction is given back when the server ends its session.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

# A silent connection is probed after this long, again and again, and is dead after so many probes without an answer: 25 s, where
# the kernel's own defaults are over two hours.
KEEPALIVE_IDLE_SECONDS = 10
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_PROBES = 3
# What was sent and is not acknowledged for so long: the same, for a connection that is not silent.
UNACKNOWLEDGED_MS = 30_000
# As long as a statement may take (`pool.STATEMENT_SECONDS_MAX`): nothing of ours leaves a transaction alone for nearly so long.
IDLE_IN_TRANSACTION_MS = 60_000

# What a session says it is of: `highwater upgrade --check` finds roles of several versions by it.
PROGRAM = f"highwater/{version('highwater')}"

# Settings of a session. On a Unix socket the server takes those of TCP and does nothing with them.
SESSION: Mapping[str, str] = {
    "application_name": PROGRAM,
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    "tcp_keepalives_idle": str(KEEPALIVE_IDLE_SECONDS),
    "tcp_keepalives_interval": str(KEEPALIVE_INTERVAL_SECONDS),
    "tcp_keepalives_count": str(KEEPALIVE_PROBES),
    "tcp_user_timeout": str(UNACKNOWLEDGED_MS),
}

# Options of a socket by their names in `socket`; what a system does not have is left out.
_OPTIONS = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SECONDS,
    "TCP_KEEPCNT": KEEPALIVE_PROBES,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
}


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel find out that the other end of a TCP connection is gone."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def probed(connection: Any) -> None:
    """The same for the socket of a connection of asyncpg, which has no option for it."""
    transport: asyncio.BaseTransport = connection._transport  # noqa: SLF001 (the only way to its socket; the version is locked)
    known = transport.get_extra_info("socket")
    if known is not None:
        # uvloop gives a stand-in that refuses to be set; another descriptor of the same socket does not.
        with socket.socket(fileno=os.dup(known.fileno())) as same:
            keep_alive(same)

"""Limits the connections that the API holds at once, in total and per address.

Invariant: an admitted connection is counted exactly once, until it is released. A trusted proxy has no limit, since it stands
for many clients.
"""

from __future__ import annotations

import resource
from typing import Literal, TypeAlias

from highwater.api.core.attempts import network_of
from highwater.api.core.proxies import Networks, is_trusted

OwnedBy: TypeAlias = Literal["all", "address"]

# File descriptors of the process besides connections: PostgreSQL, Redis, Kafka, and data spooled to disk.
OTHER_FILES = 256


class Connections:
    """Counts the open connections."""

    def __init__(self, connections_max: int, per_address_max: int, trusted: Networks = ()) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._trusted = trusted
        self._of_network: dict[str, int] = {}
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def admit(self, address: str) -> OwnedBy | None:
        """Count a connection and return None; `leave` must follow. Returns whose limit it would exceed if it is
        refused.
        """
        network = network_of(address)
        held = self._of_network.get(network, 0)
        if self._open >= self._connections_max:
            return "all"
        if held >= self._per_address_max and not is_trusted(address, self._trusted):
            return "address"
        self._of_network[network] = held + 1
        self._open += 1
        return None

    def leave(self, address: str) -> None:
        """Release a connection that was admitted."""
        network = network_of(address)
        held = self._of_network[network] - 1
        if held:
            self._of_network[network] = held
        else:
            del self._of_network[network]
        self._open -= 1


def files_allowed() -> int:
    """Return the number of connections that the process has file descriptors for, at least one; more are not accepted
    and wait.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft - OTHER_FILES) if soft != resource.RLIM_INFINITY else 1_000_000

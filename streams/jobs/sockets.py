"""Counts of open sockets by process and by user; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

# Operators need the users with the most; all of them are in the sums.
USERS_MAX = 100


def count_sockets(members: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Return the counts of sockets `{server_id}:{connection_id}` by user, the most first."""
    users = {user_id: len(set(names)) for user_id, names in members.items()}
    processes = Counter(name.rpartition(":")[0] for names in members.values() for name in set(names))
    return {
        "sockets": processes.total(),
        "processes": [{"server_id": name, "sockets": count} for name, count in _most(processes)],
        "users_total": sum(count > 0 for count in users.values()),
        "users": [{"user_id": name, "sockets": count} for name, count in _most(users)[:USERS_MAX]],
    }


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(((name, count) for name, count in counts.items() if count), key=lambda one: (-one[1], one[0]))

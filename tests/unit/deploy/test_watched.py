"""A process that dies again and again, as one does on a full disk: it is started again without end, and what kills it is said."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

from highwater.deploy.local.process import ManagedProcess
from highwater.deploy.local.watched import BACKOFF_SECONDS_MAX, State, Watched

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_no_supervision(tmp_path: Path) -> None:
    """Not even the log can be opened: a hundred starts fail, the next comes within the bound, and the first with room is up."""
    launches: list[float] = []
    has_room = False

    def launch() -> None:
        launches.append(now)
        if not has_room:
            raise NO_ROOM

    process = ManagedProcess("database", tmp_path / "database.log")
    watched = Watched("database", "service", process, launch=launch, probe=lambda: None)
    now = 0.0
    watched.begin(now)
    while len(launches) < 100:
        now += 0.2
        watched.step(now)
        assert watched.state is State.RESTARTING
    assert max(after - before for before, after in itertools.pairwise(launches)) <= BACKOFF_SECONDS_MAX + 0.2
    assert "No space left on device" in str(watched.snapshot()["last_error"])
    assert watched.snapshot()["restarts"] == 99
    has_room = True
    watched.step(now + BACKOFF_SECONDS_MAX)
    assert watched.state is State.STARTING

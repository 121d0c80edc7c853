"""A process that dies repeatedly, as on a full disk: it is restarted without end, and the reason is reported."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from highwater.api.command.command import WRONG_USE
from highwater.deploy.local.process import Command, ManagedProcess
from highwater.deploy.local.watched import BACKOFF_SECONDS_MAX, MISCONFIGURED_STATUS, State, Watched

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


@pytest.mark.parametrize(("kind", "pause"), [("role", 0.0), ("service", 1.0)])
def test_one_that_lived_for_a_while_is_started_again_soon(tmp_path: Path, kind: str, pause: float) -> None:
    """A role at once; a server when the children that it left are gone. One that dies again at once waits longer."""
    process = ManagedProcess("worker", tmp_path / "worker.log")
    command = Command(("sleep", "600"), env=dict(os.environ))
    watched = Watched("worker", kind, process, launch=lambda: process.start(command), probe=lambda: None)
    try:
        watched.begin(0.0)
        process.kill()
        watched.step(60.0)
        assert watched.state is State.RESTARTING
        watched.step(60.0 + pause)
        assert (watched.state, watched.snapshot()["restarts"]) == (State.STARTING, 1)
        process.kill()
        watched.step(61.0 + pause)
        watched.step(61.9 + 2 * pause)
        assert watched.state is State.RESTARTING
        watched.step(62.0 + 2 * pause)
        assert (watched.state, watched.snapshot()["restarts"]) == (State.STARTING, 2)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("kind", "status", "was_up", "state"),
    [
        ("role", MISCONFIGURED_STATUS, False, State.FAILED),
        ("role", MISCONFIGURED_STATUS, True, State.RESTARTING),
        ("role", 1, False, State.RESTARTING),
        ("service", MISCONFIGURED_STATUS, False, State.RESTARTING),
    ],
)
def test_a_setting_that_a_role_refuses_ends_its_start(
    tmp_path: Path, kind: str, status: int, was_up: bool, state: State
) -> None:
    """No restart corrects it. One that was up is restarted, since a file can be corrected while it waits."""
    process = ManagedProcess("worker", tmp_path / "worker.log")
    command = Command(("sh", "-c", f"echo waiting; echo 'highwater: X is wrong'; exit {status}"), env=dict(os.environ))
    watched = Watched("worker", kind, process, launch=lambda: process.start(command), probe=lambda: None)
    watched.begin(0.0)
    if was_up:
        watched.adopt(0.0)
    assert process.pid is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    watched.step(1.0)
    assert (watched.state, watched.is_misconfigured) == (state, state is State.FAILED)
    words = "X is wrong" if state is State.FAILED else f"ended with status {status}: X is wrong"
    assert watched.snapshot()["last_error"] == words


def test_the_status_of_a_refused_setting_is_that_of_the_command_line() -> None:
    """`deploy` may not import the command line, so it repeats the number."""
    assert MISCONFIGURED_STATUS == WRONG_USE

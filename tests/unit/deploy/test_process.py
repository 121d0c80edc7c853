"""A supervised process and its number."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from highwater.deploy.local.process import Command, ManagedProcess
from highwater.streams.progress import WorkLimit
from tests.integration.agents import until

# Ends after it has started a child, whose number it writes.
PARENT = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
sys.exit(3)
"""


def _ended(tmp_path: Path) -> tuple[ManagedProcess, int]:
    """A process that has ended, and the number of its child."""
    process, written = ManagedProcess("parent", tmp_path / "parent.log"), tmp_path / "child"
    process.start(Command((sys.executable, "-c", PARENT, str(written))))
    until(lambda: not process.is_alive(), "the parent ends")
    return process, int(written.read_text())


def test_an_ended_process_keeps_its_number_until_its_group_is_ended(tmp_path: Path):
    """So the signal for its group reaches no other process, at any time after its end."""
    process, child = _ended(tmp_path)
    assert process.pid is not None
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert psutil.pid_exists(child)
    assert process.exit_status() == 3
    until(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, "its child ends"
    )
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_number_that_is_no_longer_ours_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It may have been given to another group since."""
    process, _ = _ended(tmp_path)
    process.kill()
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *signalled: sent.append(signalled))
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))
    process.stop(WorkLimit(1.0, 1.0))
    process.kill()
    assert (sent, process.exit_status()) == ([], 3)

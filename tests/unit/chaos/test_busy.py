"""The load of a busy machine begins, takes the cores, and ends, also with the process that began it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from highwater.api.chaos.busy import BusyMachine
from highwater.streams.progress import work_of
from tests.integration.agents import until


def is_gone(process_id: int) -> bool:
    """Whether a process has ended."""
    stat = Path(f"/proc/{process_id}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_its_processes_compute_until_it_ends():
    """Each uses processor time; afterwards none is left."""
    busy = BusyMachine()
    busy.begin(3, 60.0)
    try:
        started = busy.process_ids
        assert len(started) == 3
        until(lambda: all(work_of(one).processor_seconds >= 0.1 for one in started), "each has had a core")
        assert all(os.getpriority(os.PRIO_PROCESS, one) == os.getpriority(os.PRIO_PROCESS, 0) for one in started)
    finally:
        busy.end()
    assert busy.process_ids == ()
    assert all(map(is_gone, started))


def test_its_processes_end_with_their_parent():
    """A killed run leaves no load behind."""
    program = (
        "from highwater.api.chaos.busy import BusyMachine\n"
        "busy = BusyMachine()\nbusy.begin(2, 60.0)\nprint(*busy.process_ids, flush=True)\ninput()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    started = [int(word) for word in parent.stdout.readline().split()]
    assert len(started) == 2
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    until(lambda: all(map(is_gone, started)), "its processes have ended")

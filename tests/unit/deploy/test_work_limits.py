"""Work is ended when it makes no progress, not when it takes long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from highwater.deploy.local.errors import PartFailedError
from highwater.deploy.local.part import START_LIMIT
from highwater.deploy.local.process import Command, ManagedProcess
from highwater.deploy.local.watched import State, Watched
from highwater.streams.progress import HOUR_SECONDS, WATCHED_SECONDS_MAX, Progress, Work, WorkLimit, work_of
from tests.integration.agents import until

LIMIT = WorkLimit(quiet_seconds_max=60.0, total_seconds_max=2 * HOUR_SECONDS, processor_seconds_min=1.0)


def ended_after(works: list[Work], limit: WorkLimit = LIMIT) -> tuple[int, str] | None:
    """The second at which work with these measurements, one each second, is ended, and why."""
    progress = Progress(limit, 0.0)
    for second, work in enumerate(works, start=1):
        why = progress.why_over(lambda work=work: work, float(second))
        if why is not None:
            return second, why
    return None


def test_slow_work_is_not_ended():
    """A fiftieth of a core is enough for an hour, and so are a page from the disk or a line in the log each minute."""
    assert ended_after([Work(second / 50) for second in range(3_600)]) is None
    assert ended_after([Work(0.0, second // 59) for second in range(3_600)]) is None
    assert ended_after([Work(0.0, 0, 100 * (second // 59)) for second in range(3_600)]) is None


def test_work_without_progress_is_ended():
    """After the quiet time, also if the process uses a little of the processor for itself; progress restarts it."""
    assert ended_after([Work(second / 100) for second in range(3_600)]) == (60, "made no progress for 60 s")
    assert ended_after([Work(10.0 if second > 30 else 0.0) for second in range(3_600)]) == (
        92,
        "made no progress for 60 s",
    )


def test_the_last_bound_ends_work_that_never_ends():
    """It is hours."""
    assert ended_after([Work(float(second)) for second in range(9_000)]) == (7_200, "was not done after 120 min")


def test_numbers_that_fall_are_no_progress():
    """A rotated log and an ended child count from their new value."""
    works = [Work(5.0, 7, 900), *(Work(0.0, 0, 5) for _ in range(3_600))]
    assert ended_after(works) == (61, "made no progress for 60 s")
    falls = [Work(5.0, 7, 900), Work(0.0, 0, 5), *(Work(1.0 + second / 50, 0, 5) for second in range(600))]
    assert ended_after(falls) is None


def test_silence_counts_only_while_somebody_watches():
    """A watcher that was without a core for ten minutes ends nothing: it has seen a few seconds of silence."""
    progress = Progress(LIMIT, 0.0)
    assert progress.why_over(Work, 600.0) is None
    looks = range(601, 720)
    assert next(at for at in looks if progress.why_over(Work, float(at))) == 600 + 60 - WATCHED_SECONDS_MAX


def test_the_work_of_a_process_includes_its_children():
    """Processor time of living children and of children that have ended counts, and the bytes of the log."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    program = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn + 'print(1, flush=True); input()'!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint(1, flush=True)\ninput()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        whole, own = work_of(process.pid, with_children=True), work_of(process.pid)
        assert whole.processor_seconds >= 0.58
        assert 0.28 <= own.processor_seconds <= whole.processor_seconds - 0.28
    finally:
        process.kill()
        process.communicate()
    assert work_of(process.pid, with_children=True, log=Path("/nowhere")) == Work()


@pytest.mark.parametrize(
    ("script", "state"), [("while :; do :; done", State.STARTING), ("sleep 600", State.RESTARTING)]
)
def test_a_service_that_works_is_not_restarted(tmp_path: Path, script: str, state: State) -> None:
    """Five minutes after its start a live service that does not answer is awaited while it computes, and restarted if not.

    The time is the test's; the processor time is the kernel's.
    """
    process = ManagedProcess("kafka", tmp_path / "kafka.log")
    command = Command(("sh", "-c", script), env=dict(os.environ))
    limit = replace(START_LIMIT, processor_seconds_min=0.01)
    watched = Watched(
        "kafka", "service", process, launch=lambda: process.start(command), probe=lambda: "silent", start_limit=limit
    )
    try:
        watched.begin(0.0)
        now = 0.0
        while now < 300.0 and watched.state is State.STARTING:
            before = process.work().processor_seconds
            while script != "sleep 600" and process.work().processor_seconds < before + 0.02:
                pass
            now += 5.0
            watched.step(now)
        assert watched.state is state
        if state is State.RESTARTING:
            assert watched.last_error == "does not answer (silent) and made no progress for 120 s"
    finally:
        process.kill()


def test_a_program_that_ends_by_itself_is_awaited_while_it_works(tmp_path: Path) -> None:
    """One that sleeps is ended after the quiet time."""
    process = ManagedProcess("initdb", tmp_path / "initdb.log")
    limit = WorkLimit(quiet_seconds_max=1.5, total_seconds_max=60.0)
    burn = "import time\nwhile time.process_time() < 2.5: pass\n"
    process.run_to_end(Command((sys.executable, "-c", burn)), limit)
    with pytest.raises(PartFailedError, match=r"sleep made no progress for 1\.5 s"):
        process.run_to_end(Command(("sleep", "600")), limit)
    assert process.exit_status() == -signal.SIGKILL


def test_a_program_that_is_asked_to_end_may_work_first(tmp_path: Path) -> None:
    """One that flushes for longer than the quiet time ends by itself; one that ignores the request is killed."""
    limit = WorkLimit(quiet_seconds_max=1.5, total_seconds_max=60.0)
    flush = "import signal, sys, time\n"
    flush += "def end(*_):\n while time.process_time() < 2.5: pass\n sys.exit(0)\n"
    flush += "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    ignore = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    for script, status in ((flush, 0), (ignore, -signal.SIGKILL)):
        process = ManagedProcess("kafka", tmp_path / f"kafka{status}.log")
        process.start(Command((sys.executable, "-c", script)))
        until(lambda process=process: "ready" in process.last_lines(), "it runs")
        process.stop(limit)
        assert process.exit_status() == status

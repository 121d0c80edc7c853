"""A child process and its log.

Owns starting and ending. Invariant: a child started here dies with this process, however this process dies; it has a
session of its own, so Ctrl-C at the terminal reaches only the supervisor; and nothing of its group outlives it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from highwater.deploy.local.errors import PartFailedError
from highwater.deploy.local.private import make_folder, open_file
from highwater.streams.progress import Progress, Work, WorkLimit, work_of

LOG_BYTES_MAX = 20_000_000  # above this a log is rotated, also while its program runs; one older one is kept
_COPY_BYTES = 1 << 20
LOG_TAIL_BYTES = 16_384  # bytes read from the end of a log to find its last lines
LOG_LINES_SHOWN = 12
ERROR_PREFIX = "highwater: "  # of the one line that a command ends with when it fails
_END_POLL_SECONDS = 0.02  # between two checks whether a program has ended
KILL_WAIT_SECONDS = 10.0  # SIGKILL is prompt; a process that takes longer is stuck in the kernel
CHILD_PROGRAM = Path(__file__).with_name("child.py")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user of a program when we are root; is_reaching lets it pass through private folders."""

    uid: int
    gid: int
    is_reaching: bool


@dataclass(frozen=True, slots=True)
class Command:
    """How to run a program; env replaces the whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    cwd: Path | None = None
    user: ServerUser | None = None
    stop_signal: signal.Signals = signal.SIGTERM


class _Spawner:
    """One thread that starts all children and never ends.

    The kernel sends the death signal when the *thread* that started the child ends, so a short-lived one must not start
    any.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pid = 0

    def spawn(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pid != os.getpid():  # the first call here, or the first after a fork, which keeps no thread
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="spawner", daemon=True).start()
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((start, answer))
        return answer.result()

    def _run(self) -> None:
        while True:
            start, answer = self._orders.get()
            try:
                answer.set_result(start())
            except OSError as error:
                answer.set_exception(error)


_SPAWNER = _Spawner()


class ManagedProcess:
    """One program under one name, started and stopped any number of times, always with the same log."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_signal = signal.SIGTERM

    @property
    def pid(self) -> int | None:
        """Return the process id, also of an ended process; None before the first start."""
        return self._process.pid if self._process else None

    def exit_status(self) -> int | None:
        """Return the exit status, after ending what is left of its group; None while it runs (or was never started)."""
        if self._process is None or self.is_alive():
            return None
        self.kill()
        return self._process.returncode

    def is_alive(self) -> bool:
        """Return whether the process is running now. An ended one keeps its number until `kill`."""
        if self._process is None or self._process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def start(self, command: Command) -> None:
        """Start the program; it runs until it ends, is stopped, or this process dies.

        Raises:
            PartFailedError: The program could not be started at all.
        """
        if self.is_alive():
            raise PartFailedError(self.name, f"is already running as process {self.pid}", [])
        self.kill()  # what is left of the one before
        self._stop_signal = command.stop_signal
        make_folder(self.log_path.parent)
        self.rotate()
        shim = [sys.executable, "-I", "-S", str(CHILD_PROGRAM), "--parent-pid", str(os.getpid())]
        if command.user:
            shim += ["--uid", str(command.user.uid), "--gid", str(command.user.gid)]
            shim += ["--reach"] if command.user.is_reaching else []
        argv = [*shim, "--", *command.argv]
        with open_file(self.log_path, os.O_APPEND) as log:

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(  # noqa: S603 - our own argument lists, no shell
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=command.cwd,
                    env=dict(command.env),
                    start_new_session=True,
                )

            try:
                self._process = _SPAWNER.spawn(start)
            except OSError as error:
                raise PartFailedError(self.name, f"cannot be started: {error}", []) from error

    def work(self) -> Work:
        """Return what the program and its children have done since it was started."""
        return Work() if self.pid is None else work_of(self.pid, with_children=True, log=self.log_path)

    def run_to_end(self, command: Command, limit: WorkLimit) -> None:
        """Run a program that ends by itself.

        Raises:
            PartFailedError: It made no progress, or did not end with status 0.
        """
        self.start(command)
        program = Path(command.argv[0]).name
        if (reason := self._wait(limit)) is not None:
            self.kill()
            raise self.failure(f"{program} {reason}")
        status = self.exit_status() or 0
        if status != 0:
            raise self.failure(f"{program} {describe_exit(status)}")

    def begin_stop(self) -> None:
        """Ask the program to end, without waiting."""
        if self._process is not None and self.is_alive():
            os.kill(self._process.pid, self._stop_signal)

    def stop(self, limit: WorkLimit) -> None:
        """Ask the program to end; after the limit end it. Nothing of its group is left afterwards."""
        if self._process is None:
            return
        self.begin_stop()
        self._wait(limit)
        self.kill()

    def kill(self) -> None:
        """End the program and its children at once; nothing happens if that was done before.

        The number of the group belongs to it until its ended leader is waited for, which is done here only. Later it
        may be the number of any other group of this machine.
        """
        if self._process is None or self._process.returncode is not None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(KILL_WAIT_SECONDS)

    def _wait(self, limit: WorkLimit) -> str | None:
        """Wait for the end of the program; return why the wait was given up, None if it has ended."""
        progress = Progress(limit, time.monotonic())
        while self.is_alive():
            if (reason := progress.why_over(self.work, time.monotonic())) is not None:
                return reason
            time.sleep(_END_POLL_SECONDS)
        return None

    def rotate(self) -> None:
        """Rotate the log if it has grown too large."""
        rotate(self.log_path)

    def failure(self, reason: str) -> PartFailedError:
        """Return the error that names this process, the reason and the last lines of its log."""
        return PartFailedError(self.name, reason, self.last_lines())

    def last_words(self) -> str:
        """Return the last line of the log that is not blank, as the program's own error if it is one of `highwater`."""
        lines = [line.strip() for line in self.last_lines() if line.strip()]
        return lines[-1].removeprefix(ERROR_PREFIX) if lines else ""

    def last_lines(self, count: int = LOG_LINES_SHOWN) -> list[str]:
        """Return the last lines of the log, fewer if it has fewer."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace").splitlines()[-count:]
        except FileNotFoundError:
            return []


def describe_exit(status: int) -> str:
    """Describe an exit status: ended by itself with a number, or by which signal."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def rotate(log_path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Rotate a log that has grown too large, while its program continues to write to it; return whether that was done.

    The program holds the file open for appending, so it is copied and then truncated: its next line is written at the
    beginning. Lines between the last read of the end and the truncation, some microseconds, are lost. If half of a line
    was read, the copy ends after it with a line break.
    """
    try:
        if log_path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    older = log_path.with_suffix(".log.1")
    scratch = log_path.with_suffix(".log.new")
    with log_path.open("rb") as log, open_file(scratch, os.O_TRUNC) as copy:
        last = b""
        while part := log.read(_COPY_BYTES):
            copy.write(part)
            last = part
        copy.flush()
        while part := log.read(_COPY_BYTES):  # written meanwhile
            copy.write(part)
            copy.flush()
            last = part
        os.truncate(log_path, 0)
        if not last.endswith(b"\n"):
            copy.write(b"\n")
    scratch.replace(older)
    return True

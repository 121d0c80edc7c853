"""Processes without the start of Python, which is most of the work of a short one: copies of a process that has imported the
libraries of a program. Each has its own environment, files and end, as if it had been started.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests import ROOT

_ORDER_BYTES_MAX = 1 << 17
_NUMBER_BYTES = 4
# Values that Python and the C library read when they start: a process that needs another value cannot be a copy.
_OF_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENBLAS_")


class Copy:
    """A process, as `subprocess.Popen` has one."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        """How it ended, None while it runs."""
        with contextlib.suppress(BlockingIOError):
            return self.wait(0)
        return None

    def wait(self, seconds: float | None = None) -> int:
        """How it ends; the negative number of a signal."""
        if self.returncode is None:
            self._answers.settimeout(seconds)
            self.returncode = self._number()
            self._answers.close()
        return self.returncode

    def send_signal(self, how: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        (number,) = array.array("i", self._answers.recv(_NUMBER_BYTES, socket.MSG_WAITALL))
        return int(number)


class Copies:
    """Creates processes of one program. The modules of `imported` must start no thread, since a copy would lack it."""

    def __init__(self, program: str, imported: Sequence[str]) -> None:
        self._order = json.dumps({"program": program, "imported": imported})
        self._control: socket.socket | None = None
        self._beginning = threading.Lock()

    @staticmethod
    def can_have(environment: Mapping[str, str]) -> bool:
        """Whether a copy can have this environment."""
        ours, its = (
            {name: value for name, value in one.items() if name.startswith(_OF_THE_START) and value != str(ROOT)}
            for one in (os.environ, environment)
        )
        return ours == its  # the tests' own folder is where a copy imports from anyway

    def start(
        self, environment: Mapping[str, str], *arguments: str, files: Sequence[int], cwd: Path | None = None
    ) -> Copy:
        """Run the program with these arguments and three standard files."""
        assert self.can_have(environment)
        with self._beginning:  # tests start some in threads
            if self._control is None:
                self._control = self._begun()
        order = {"environment": dict(environment), "arguments": arguments, "cwd": str(cwd or Path.cwd())}
        answers, its = socket.socketpair()
        with its:
            socket.send_fds(self._control, [json.dumps(order).encode()], [*files, its.fileno()])
        return Copy(answers)

    def _begun(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-m", "tests.integration.copies", str(its.fileno()), self._order]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        return ours

    def close(self) -> None:
        """End the process that was copied; the copies continue."""
        if self._control is not None:
            self._control.close()
            self._control = None
            self._process.wait()


def _serve(control: socket.socket, imported: Sequence[str]) -> dict[str, Any]:
    """Make a copy for every order until the pipe is closed; returns in each copy, with its order."""
    for name in imported:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a copy would lack a thread"
    gc.collect()
    gc.freeze()  # a copy need not look through what it did not make
    while True:
        message, files, _, _ = socket.recv_fds(control, _ORDER_BYTES_MAX, 4)
        if not message:
            sys.exit()
        if os.fork() == 0:
            control.close()
            *standard, answers = files
            pid = os.fork()
            if pid:
                _watch(pid, standard, socket.socket(fileno=answers))
            os.close(answers)
            for number, file in enumerate(standard):
                os.dup2(file, number)
                os.close(file)
            return dict(json.loads(message))
        for file in files:
            os.close(file)
        while _has_ended_one():
            pass


def _watch(pid: int, files: Sequence[int], answers: socket.socket) -> NoReturn:
    """Send the owner of the copy its process number and its exit status: it is not a child of the owner."""
    for file in files:
        os.close(file)
    answers.sendall(array.array("i", [pid]).tobytes())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        answers.sendall(array.array("i", [os.waitstatus_to_exitcode(status)]).tobytes())
    os._exit(0)


def _has_ended_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    _order = json.loads(sys.argv[2])
    _wanted = _serve(socket.socket(fileno=int(sys.argv[1])), _order["imported"])
    os.environ.clear()
    os.environ.update(_wanted["environment"])
    time.tzset()
    os.chdir(_wanted["cwd"])
    sys.argv = ["highwater", *_wanted["arguments"]]
    exec(compile(_order["program"], "<program>", "exec"), {"__name__": "__main__"})

"""How a command ends on SIGTERM: as on Ctrl-C, and by force if it does not end in time.

Invariants. SIGTERM ends every command, also one that is inside a C library and cannot handle it; the exit status is 143
either way. A role (`up`, `worker`, `connect`, `api`) ends in its own order, and its supervisor has its own limit.

Python runs a signal handler between two of its instructions, so a call into C that does not return is never
interrupted, and a watching thread would wait for the same lock. The watcher is therefore a process: the interpreter's C
handler writes the signal number into a pipe, and the watcher, which reads it, sends a second SIGTERM when the time is
over. That one finds no handler, so the kernel ends the process.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from highwater.connectors.children import die_with_parent

# To finish a batch, end child processes and remove a part of a file.
GRACE_SECONDS = 10.0
# The status of a process that SIGTERM ended, as shells and supervisors give it.
TERMINATED = 128 + signal.SIGTERM
# How long a process gets to end after the second SIGTERM; PID 1 of a container has no default action.
_KILL_AFTER_SECONDS = 2.0


class Ending:
    """Whether the command was asked to end by SIGTERM."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, _number: int, frame: FrameType | None) -> None:
        """Do what Ctrl-C would do: an event loop cancels its task, everything else is interrupted.

        Raises:
            KeyboardInterrupt: there is no event loop that could end by itself.
        """
        self.is_asked = True
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # a shell makes background commands ignore Ctrl-C
            raise KeyboardInterrupt


@contextmanager
def ended_by_sigterm(grace_seconds: float = GRACE_SECONDS) -> Iterator[Ending]:
    """Within the block SIGTERM acts as Ctrl-C, and as SIGKILL after `grace_seconds`. It forks, so begin it before
    starting threads.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command_id = os.getpid()
    watcher = os.fork()
    if watcher == 0:
        _watch(command_id, reading, grace_seconds)
    os.close(reading)
    before = signal.signal(signal.SIGTERM, ending.ask)
    _handle_once(signal.SIGTERM)
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # our parent may have blocked it
    try:
        yield ending
    finally:
        signal.set_wakeup_fd(woken_before)
        signal.signal(signal.SIGTERM, before)
        os.close(writing)
        os.waitpid(watcher, 0)


def _handle_once(number: int) -> None:
    """Let the current handler handle one signal; the next one has the default action (`sysv_signal`, SA_RESETHAND)."""
    set_handler = ctypes.CDLL(None).sysv_signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, set_handler(number, None))


def _watch(command_id: int, reading: int, grace_seconds: float) -> None:
    """Watch the command until it ends, which closes the pipe. Never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # signals to the whole group are for the command
            signal.signal(number, signal.SIG_IGN)
        die_with_parent(command_id)
        _keep_only(reading)
        while heard := os.read(reading, 64):
            if signal.SIGTERM in heard:
                _wait_for_end(reading, grace_seconds)
                os.kill(command_id, signal.SIGTERM)
                _wait_for_end(reading, _KILL_AFTER_SECONDS)
                os.kill(command_id, signal.SIGKILL)
    finally:
        os._exit(0)


def _keep_only(reading: int) -> None:
    """Close the command's files and pipes: the reader of its output must see its end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.closerange(3, reading)
    os.closerange(reading + 1, os.sysconf("SC_OPEN_MAX"))


def _wait_for_end(reading: int, seconds: float) -> None:
    """Wait until the time is over, or end with the command."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0] and not os.read(reading, 64):
            os._exit(0)

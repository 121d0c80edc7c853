"""Processes of a test's own that consume: a test stops or kills them, and none outlives its test."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import ROOT
from tests.conftest import Stack

# A dead member is replaced after this long; the product's own ten seconds would make each such test wait as long.
SESSION_MS = 2_000


@contextmanager
def child(stack: Stack, module: str, *arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A module, run as a program on these parts; it writes its log to the folder."""
    environment = stack.environment(SESSION_MS=str(SESSION_MS), PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", module, *arguments]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

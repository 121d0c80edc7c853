"""Processes of a search that do not end, or end too early, in place of the real one."""

from __future__ import annotations

import itertools
import sys
from typing import BinaryIO

from highwater.connectors.replay.processes import run_task
from highwater.schemas.errors import UnavailableError

BEGIN = b'{"event":"begin"}\n'
GONE = "Kafka sent nothing for 15 s"


def endless() -> None:
    """Says forever how far it is."""
    sys.stdout.buffer.write(BEGIN)
    for number in itertools.count():
        sys.stdout.buffer.write(b'{"event":"progress","scanned":%d}\n' % number)


def broken() -> None:
    """Ends in the middle, and says why."""

    def work(_: object, output: BinaryIO) -> None:
        output.write(BEGIN + b"the first of many lines")
        raise UnavailableError(GONE)

    run_task(work)

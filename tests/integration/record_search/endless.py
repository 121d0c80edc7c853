"""Processes of a search that do not end, or end too early, in place of the real one."""

from __future__ import annotations

import itertools
import sys

BEGIN = b'{"event":"begin"}\n'


def endless() -> None:
    """Says for ever how far it is."""
    sys.stdout.buffer.write(BEGIN)
    for number in itertools.count():
        sys.stdout.buffer.write(b'{"event":"progress","scanned":%d}\n' % number)


def broken() -> None:
    """Ends in the middle."""
    sys.stdout.buffer.write(BEGIN)
    sys.stdout.buffer.flush()
    sys.exit(1)

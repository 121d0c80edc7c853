"""Log lines: one a line, repeated ones limited and counted, no stack of a library as a warning."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from highwater.streams.log_lines import LINES_MAX, PERIOD_SECONDS, RepeatLimit, leaves

PROGRAM = """
import logging, sys
from highwater.streams.telemetry import configure_logging, get_log
configure_logging("info", sys.argv[1])
library = logging.getLogger("some.library")
for number in range(100):
    library.warning("attempt %d\\nfailed", number)
try:
    raise ExceptionGroup("several", [ValueError("the first"), ExceptionGroup("more", [KeyError("k")])])
except ExceptionGroup:
    library.warning("it went wrong", exc_info=True)
    library.error("it broke", exc_info=True)
library.info("of no interest")
log = get_log("ours")
for number in range(100):
    log.warning("repeated", number=number)
log.info("another", number=1)
"""


def test_a_repeated_line_is_left_out_and_counted():
    """Each period lets N lines of a kind through; the first of the next period has the number of omitted ones."""
    limit = RepeatLimit()
    assert [limit.left_out("a", 1.0) for _ in range(LINES_MAX + 5)] == [0] * LINES_MAX + [None] * 5
    assert limit.left_out("b", 1.0) == 0
    assert limit.left_out("a", 0.9 + PERIOD_SECONDS) is None
    assert limit.left_out("a", 1.0 + PERIOD_SECONDS) == 6
    assert limit.left_out("a", 1.0 + PERIOD_SECONDS) == 0
    assert limit.left_out("a", 3.0 + 3 * PERIOD_SECONDS) == 0


def test_what_a_group_holds():
    """However deep."""
    one, other = ValueError("1"), KeyError("2")
    assert list(leaves(ExceptionGroup("g", [one, ExceptionGroup("h", [other])]))) == [one, other]
    assert list(leaves(one)) == [one]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_a_program_writes(log_format: str):
    """Lines of a library and ours, as a role writes them; only an error has a stack."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len([line for line in lines if "attempt" in line and "failed" in line]) == LINES_MAX
    assert len([line for line in lines if "repeated" in line]) == LINES_MAX
    (warning,) = [line for line in lines if "it went wrong" in line]
    assert "ValueError: the first; KeyError: 'k'" in warning
    assert "some.library" in warning
    assert "of no interest" not in done.stderr
    if log_format == "json":
        assert len(lines) == 2 * LINES_MAX + 3
        found = [json.loads(line) for line in lines]
        assert ["Traceback" in str(one) for one in found].count(True) == 1

"""Logs are rotated while their program writes to them, and their size on the disk is bounded."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from highwater.deploy.local.process import Command, ManagedProcess, rotate

BYTES_MAX = 50_000
# Writes numbered lines; each line is one write, like those of the roles. A line written in the instant between copy and
# truncation is lost, so the last line comes after the last check.
WRITER = """
import os, pathlib, sys, time
LINE = b"%06d a line of a log as long as such lines are, about a hundred bytes with its numbers and names\\n"
done, go_on = map(pathlib.Path, sys.argv[1:])
for number in range(20_000):
    os.write(1, LINE % number)
done.touch()
while not go_on.exists():
    time.sleep(0.01)
os.write(1, LINE % 20_000)
"""


def test_a_log_is_rotated_while_its_program_runs(tmp_path: Path):
    """The program continues in the same file; that file and the older one are private and contain the last lines in order."""
    process = ManagedProcess("writer", tmp_path / "writer.log")
    done, go_on = tmp_path / "done", tmp_path / "go-on"
    process.start(Command((sys.executable, "-c", WRITER, str(done), str(go_on))))
    rotations = 0
    deadline = time.monotonic() + 60
    while not done.exists() and process.is_alive() and time.monotonic() < deadline:
        rotations += rotate(process.log_path, BYTES_MAX)
        time.sleep(0.001)  # the pause between two looks
    go_on.touch()
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.exit_status() == 0
    older = process.log_path.with_suffix(".log.1")
    assert rotations > 0
    assert not process.log_path.with_suffix(".log.new").exists()
    assert {path.stat().st_mode & 0o777 for path in (process.log_path, older)} == {0o600}
    text = older.read_bytes() + process.log_path.read_bytes()
    # No hole of zeros, as a program that does not append would leave; whole lines, in order, up to the last.
    assert b"\0" not in text
    numbers = [int(number) for number in re.findall(rb"^(\d{6}) a line", text, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 20_000


def test_half_a_line_is_no_beginning_of_the_next(tmp_path: Path):
    """A line that was read while it was written ends where the copy ends, so that the next one begins at a line."""
    log = tmp_path / "x.log"
    log.write_bytes(b"a whole line\nhalf of a li")
    assert rotate(log, 10)
    assert log.with_suffix(".log.1").read_bytes() == b"a whole line\nhalf of a li\n"


def test_a_small_log_is_left_alone(tmp_path: Path):
    """A missing log is left alone too."""
    log = tmp_path / "x.log"
    assert not rotate(log, 10)
    log.write_bytes(b"123456789\n")
    assert not rotate(log, 10)
    assert log.read_bytes() == b"123456789\n"


def test_the_older_log_is_replaced(tmp_path: Path):
    """Two files at most."""
    log = tmp_path / "x.log"
    for content in (b"first\n" * 10, b"second\n" * 10):
        log.write_bytes(content)
        assert rotate(log, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.log", "x.log.1"]
    assert (log.read_bytes(), (tmp_path / "x.log.1").read_bytes()) == (b"", b"second\n" * 10)

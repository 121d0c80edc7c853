"""SIGTERM ends a command in any state."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from tests import ROOT

# A command line of one command, whose body is put in.
PROGRAM = """
import asyncio, collections, itertools, sys, time
import click
from highwater.api.command import ending
from highwater.api.command.command import Command, Group, RoleCommand, run_command

ending.ended_by_sigterm.__wrapped__.__defaults__ = ({grace},)

@click.group(cls=Group)
def program():
    pass

async def forever():
    try:
        print("begun", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)

@program.command()
def run():
{body}

sys.exit(run_command(program, ["run"], owns_process=True))
"""

IN_ORDER = """
try:
    print("begun", flush=True)
    time.sleep(60)
finally:
    print("in order", flush=True)
"""
IN_A_LOOP = "asyncio.run(forever())"
# One call into C that keeps the interpreter's lock and never returns; a signal that comes before it changes nothing.
IN_C = """
said = None
while True:
    try:
        if said is None:
            said = "begun"
            print(said, flush=True)
        collections.deque(itertools.repeat(None), maxlen=0)
    except KeyboardInterrupt:
        pass
"""
STUBBORN = """
said = None
while True:
    try:
        if said is None:
            said = "begun"
            print(said, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("no", flush=True)
"""


def begun(body: str, *, ignoring: frozenset[signal.Signals] = frozenset(), grace: float = 0.5) -> subprocess.Popen[str]:
    """A command that runs, started by a process that has signals blocked or ignored."""

    def inherit() -> None:
        for number in ignoring:
            signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=textwrap.indent(body.strip(), "    "), grace=grace)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=inherit,  # noqa: PLW1509 - this process has no thread that holds a lock of the interpreter
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n", process.communicate()
    return process


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (IN_ORDER, 128 + signal.SIGTERM, "in order\n"),
        (IN_A_LOOP, 128 + signal.SIGTERM, "cancelled\n"),
        (IN_C, -signal.SIGTERM, ""),
        (STUBBORN, -signal.SIGTERM, "no\n"),
    ],
    ids=["in order", "in an event loop", "in C", "stubborn"],
)
def test_sigterm_ends_a_command(body: str, status: int, said: str):
    """It ends as on Ctrl-C with 143, or, when it does not, in the kernel, which a shell shows as 143; no process is left."""
    process = begun(body)
    (watcher,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGTERM)
    told, errors = process.communicate(timeout=20)
    assert (status, said, "") == (process.returncode, told, errors)
    assert not watcher.is_running() or watcher.wait(10) in (0, None)


def test_ctrl_c_is_told_apart():
    """Ctrl-C ends in order with 130."""
    process = begun(IN_ORDER)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "in order\n"
    assert process.returncode == 130


def test_inherited_deafness_is_cured():
    """A command that was started with SIGTERM blocked, and Ctrl-C ignored as in the background of a script, ends on SIGTERM."""
    process = begun(IN_ORDER, ignoring=frozenset({signal.SIGTERM, signal.SIGINT}))
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "in order\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_a_second_sigterm_ends_it_at_once():
    """A user who does not want to wait sends it twice."""
    process = begun(STUBBORN, grace=60.0)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "no\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


def test_a_killed_command_leaves_no_watcher():
    """SIGKILL of the command ends the watcher too, and the output ends."""
    process = begun(IN_ORDER)
    (watcher,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=20)
    psutil.wait_procs([watcher], timeout=10)
    assert not watcher.is_running()


def test_a_role_hears_sigterm_itself():
    """A role has no watcher: what SIGTERM does is up to it."""
    body = 'print("begun", flush=True)\ntime.sleep(60)'
    source = PROGRAM.format(body=textwrap.indent(body, "    "), grace=0.5).replace(
        "@program.command()", "@program.command(cls=RoleCommand)"
    )
    process = subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert psutil.Process(process.pid).children() == []
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM

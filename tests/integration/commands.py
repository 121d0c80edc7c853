"""The command `highwater`, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "highwater.api.cli.main"]


def run(environment: dict[str, str], *arguments: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*PROGRAM, *arguments], env=environment, input=data, capture_output=True, timeout=60, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    """The one JSON document that a successful command printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tail(environment: dict[str, str], topic: str, count: int) -> list[dict[str, Any]]:
    """The latest records as `tail` shows them."""
    done = run(environment, "tail", topic, "-n", str(count), "--no-follow", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def started(environment: dict[str, str], *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """The command, started in a folder."""
    pipe = subprocess.PIPE
    return subprocess.Popen([*PROGRAM, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True, cwd=cwd)


async def ended(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status and what it printed."""
    out, err = await asyncio.to_thread(command.communicate, timeout=60)
    return command.returncode, out, err

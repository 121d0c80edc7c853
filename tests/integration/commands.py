"""The command `highwater`, as a process of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.integration.copies import Copies

PROGRAM = [sys.executable, "-m", "highwater.api.cli.main"]
_SECONDS_MAX = 120
# Libraries and the table of commands, and no module that a command imports when it runs.
_COPIES = Copies(
    "from highwater.api.cli.main import main; main()",
    [
        *("asyncpg", "cel", "confluent_kafka.admin", "fastavro", "highwater.api.cli.main", "httpx2", "numpy", "orjson"),
        *("redis.asyncio", "rich.console", "structlog"),
    ],
)
atexit.register(_COPIES.close)


def run(environment: dict[str, str], *arguments: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    done = run_for_bytes(environment, *arguments, stdin=stdin.encode() if isinstance(stdin, str) else stdin)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_for_bytes(
    environment: dict[str, str], *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """The same, with its output as it was written."""
    if not Copies.can_have(environment):
        return subprocess.run(
            [*PROGRAM, *arguments], env=environment, input=stdin, capture_output=True, timeout=_SECONDS_MAX, check=False
        )
    (read, given), (out, said), (err, warned) = os.pipe(), os.pipe(), os.pipe()
    command = _COPIES.start(environment, *arguments, files=(read, said, warned))
    for file in (read, said, warned):
        os.close(file)
    with ThreadPoolExecutor(3) as pool:
        output = [pool.submit(_read, file) for file in (out, err)]
        pool.submit(_write, given, stdin)
        try:
            status = command.wait(_SECONDS_MAX)
        finally:
            command.kill()
        return subprocess.CompletedProcess(["highwater", *arguments], status, *(one.result() for one in output))


def _read(file: int) -> bytes:
    with os.fdopen(file, "rb") as stream:
        return stream.read()


def _write(file: int, data: bytes) -> None:
    """Input that a command does not want is not read: it may have ended."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(file, "wb") as stream:
        stream.write(data)


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

"""The process of a query keeps its limits inside a single call of a function, and ends with its client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from starlette.types import Message

from highwater.api.core.auth import Principal, Role
from highwater.api.records.relaying import Relayed
from highwater.api.sql import queries
from highwater.connectors.sql.engine import QueryLostError, answered
from highwater.connectors.sql.query_task import InvalidQueryError, Limits, QueryTimeoutError, Sources

NOWHERE = Sources({}, None, None)
# One call of a function over two texts of this length takes minutes, and nothing interrupts it.
ENDLESS = "SELECT levenshtein(repeat('a', 500000), repeat('b', 500000)) AS distance"
# Gigabytes in vectors of lists, which DuckDB does not count.
LARGE = "SELECT list_sum(list_transform(range(100000000), lambda x: x + 1))"
MANY = "SELECT n FROM range(10000000) AS t(n)"


def processes() -> list[psutil.Process]:
    """The processes of queries that this one has started."""
    return [one for one in psutil.Process().children() if "query_process" in " ".join(one.cmdline())]


def until_started() -> None:
    """Wait for one."""
    while not processes():
        time.sleep(0.01)


def test_a_function_ends_at_the_limit_of_time() -> None:
    """DuckDB checks for an interruption between functions only; the kernel needs no pause."""
    with (
        pytest.raises(QueryTimeoutError, match=r"did not end within 0\.5 s"),
        answered(ENDLESS, NOWHERE, Limits(10, 0.5)),
    ):
        pass
    assert processes() == []


def test_a_function_ends_at_the_limit_of_memory() -> None:
    """Also where DuckDB does not count what it takes."""
    with (
        pytest.raises(InvalidQueryError, match="more memory than it may have"),
        answered(LARGE, NOWHERE, Limits(10, 60, 256)),
    ):
        pass


@pytest.mark.parametrize(
    ("sent", "error", "said"),
    [
        (signal.SIGKILL, QueryLostError, "ended with -9 before it was done"),
        (signal.SIGSEGV, InvalidQueryError, "more memory than it may have"),
    ],
)
def test_a_process_that_ends_in_the_middle_is_one_error(sent: int, error: type[Exception], said: str) -> None:
    """The rows so far never look like all of them; a library that gets no memory ends in SIGSEGV."""
    with answered(MANY, NOWHERE, Limits(10**9, 60)) as answer:
        rows = answer.batches()
        assert next(rows).num_rows > 0
        (process,) = processes()
        process.send_signal(sent)
        with pytest.raises(error, match=said):
            for _ in rows:
                pass


def test_a_process_ends_when_its_rows_are_no_longer_read() -> None:
    """With the block that asked."""
    with answered(MANY, NOWHERE, Limits(10**9, 60)) as answer:
        assert next(answer.batches()).num_rows > 0
    assert processes() == []


def test_a_process_ends_with_its_parent() -> None:
    """Also in the middle of a function, and however the parent ends."""
    program = (
        "from highwater.connectors.sql.engine import answered\n"
        "from highwater.connectors.sql.query_task import Limits, Sources\n"
        f'with answered("{ENDLESS}", Sources({{}}, None, None), Limits(10, 600)): pass'
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        child = None
        while child is None or child.rlimit(psutil.RLIMIT_DATA)[0] < 0:  # it has no limits yet
            time.sleep(0.01)
            child = next(iter(psutil.Process(parent.pid).children()), None)
        os.kill(parent.pid, signal.SIGKILL)
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running()


class Client:
    """One that reads an answer and may leave."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.left = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def receive(self) -> Message:
        """Leave, some time."""
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a part."""
        self.messages.append(message)
        if message.get("body"):
            self.has_begun.set()

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        """All parts."""
        return b"".join(one.get("body", b"") for one in self.messages)


def asked(client: Client, kind: str | None) -> asyncio.Future[None]:
    """The answer to a query over HTTP, while it is made."""
    settings = SimpleNamespace(kafka_client=dict, registry_access=lambda: None, database=None)
    services: Any = SimpleNamespace(settings=settings)
    running = queries.begun(services, Principal(Role.VIEWER), ENDLESS, kind=kind)
    answer = Relayed(running, "text/plain", {}, has_first_line=kind is None)
    return asyncio.ensure_future(answer({"type": "http", "path": "/"}, client.receive, client.send))


@pytest.mark.parametrize("kind", ["csv", None])
async def test_a_query_ends_when_its_client_leaves(kind: str | None) -> None:
    """Before the first line, of which a file has none yet, and after it."""
    client = Client()
    answering = asked(client, kind)
    if kind is None:
        await client.has_begun.wait()
    await asyncio.to_thread(until_started)
    client.left.set()
    await answering
    assert (queries._queries._running.total(), processes()) == (0, [])
    assert client.body == b"" if kind else client.body.startswith(b'{"event":"begin"')


async def test_a_query_over_its_limit_is_refused_before_a_file_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that cannot be run."""
    monkeypatch.setattr(queries, "_SECONDS", 0.5)
    client = Client()
    await asked(client, "csv")
    assert client.status == 422
    assert "took more time than it may have" in json.loads(client.body)["detail"]


async def test_a_query_over_its_limit_ends_its_lines_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has begun, and says that it failed."""
    monkeypatch.setattr(queries, "_SECONDS", 0.5)
    client = Client()
    await asked(client, None)
    begin, failed = map(json.loads, client.body.splitlines())
    assert (client.status, begin["event"], failed["event"]) == (200, "begin", "failed")
    assert "took more time than it may have" in failed["detail"]

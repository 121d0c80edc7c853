"""Clients of `overload`, each a process of its own with an open loop: a due request is sent even if others wait.

    python -m tests.bench.overload_clients readers URL FILE      reads; a line in FILE for each: seconds, ms, status, path
    python -m tests.bench.overload_clients writers URL FILE      writes over HTTP; the rate is read from FILE.rate
    python -m tests.bench.overload_clients producers URL FILE    publishes to the log, reports acknowledged events; as above

Times are of the monotonic clock, which all processes of a machine share. They end with SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import httpx2

from highwater.api.cli.sample import SEASON
from highwater.api.command.lines import Line, event_of, key_of
from highwater.api.command.publishing import EventPublisher, Publisher
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.topics import TOPICS
from highwater.streams.access import trusts_nobody
from highwater.streams.clock import ProductClock
from highwater.streams.settings import read_settings
from tests.bench.data import insights

READERS = tuple(f"reader-{number}" for number in range(8))
READS_PER_SECOND = 20
# A client waits this long and no longer; it is far above what any read takes.
_READ_SECONDS_MAX = 10.0
_BATCH = 100
_CONNECTIONS = 40
_SENDERS = 16
NS = "docs"


def paths() -> Iterator[tuple[str, str]]:
    """What is read in turn, with its sort: feeds, pages of the league, searches."""
    words = ("consumer", "broker", "parser", "timeout", "index")
    for number in itertools.count():
        reader = READERS[number % len(READERS)]
        yield "feed", f"/api/users/{reader}/feed"
        yield "league", f"/api/league/{SEASON}/table"
        yield "search", f"/api/chunks/search?ns={NS}&q={words[number % len(words)]}"
        yield "league", f"/api/league/{SEASON}/schedule"


async def read(url: str, out: TextIO) -> None:
    """Read at a steady rate."""
    limits = httpx2.Limits(max_connections=_CONNECTIONS)
    async with httpx2.AsyncClient(
        base_url=url, timeout=_READ_SECONDS_MAX, limits=limits, verify=trusts_nobody()
    ) as api:

        async def one(sort: str, path: str, due: float) -> None:
            try:
                status = (await api.get(path)).status_code
            except httpx2.HTTPError:
                status = 0
            # From when it was due: a read that was held up by others before it counts in full.
            now = time.monotonic()
            print(f"{due:.3f} {(now - due) * 1000:.1f} {status} {sort}", file=out, flush=True)

        tasks = set[asyncio.Task[None]]()
        due = time.monotonic()
        for sort, path in paths():
            # All that is due at once, not one a turn of the loop: else a busy machine would thin the reads out.
            if due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
            task = asyncio.create_task(one(sort, path, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += 1 / READS_PER_SECOND


class Writers:
    """Send due requests; a refused one is repeated at its retry time, and those due meanwhile count as refused."""

    def __init__(self, api: httpx2.AsyncClient) -> None:
        self._api = api
        self._numbers = itertools.count()
        self._lines = itertools.cycle(insights())
        self._held_until = [0.0] * _SENDERS
        self.counts = {
            "offered": 0,
            "accepted": 0,
            "refused": 0,
            "unknown": 0,
            "retry_after_missing": 0,
            "answers_429": 0,
        }
        self.wrong: str | None = None

    async def send(self, sender: int) -> None:
        """One batch of one sender."""
        self.counts["offered"] += _BATCH
        if time.monotonic() < self._held_until[sender]:
            self.counts["refused"] += _BATCH
            return
        try:
            answer = await self._api.post(
                "/api/events/feeds.insight-ingested",
                content=self._body(),
                headers={"content-type": "application/x-ndjson"},
            )
        except httpx2.HTTPError:
            self.counts["unknown"] += _BATCH
            return
        if answer.status_code == 429:
            self.counts["refused"] += _BATCH
            self.counts["answers_429"] += 1
            self.counts["retry_after_missing"] += "retry-after" not in answer.headers
            self._held_until[sender] = time.monotonic() + float(answer.headers.get("retry-after", 0))
        elif answer.is_success:
            self.counts["accepted"] += _BATCH
        else:
            self.counts["unknown"] += _BATCH
            self.wrong = self.wrong or f"{answer.status_code} {answer.text[:200]}"

    def _body(self) -> bytes:
        ts = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        rows = [
            json.dumps({**next(self._lines), "insight_id": f"load-{next(self._numbers)}", "ts": ts})
            for _ in range(_BATCH)
        ]
        return "\n".join(rows).encode()


class Owed:
    """How many events are due by the rate that a file says, in events a second."""

    def __init__(self, rate_file: Path) -> None:
        self._rate_file = rate_file
        self._owed = 0.0
        self._counted_at = time.monotonic()

    def take(self, count: int) -> bool:
        """Whether this many are due; then they are subtracted."""
        if self._owed < count:
            return False
        self._owed -= count
        return True

    def grow(self) -> None:
        """Count what has become due since the last call."""
        rate, now = float(self._rate_file.read_text(encoding="ascii")), time.monotonic()
        # Not more than two seconds' worth: a machine that stood still is not answered with a burst.
        self._owed, self._counted_at = min(self._owed + rate * (now - self._counted_at), rate * 2), now


class EachSecond:
    """Writes running sums, once a second, as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._told_at = 0.0

    def tell(self, sums: Mapping[str, object]) -> None:
        """Write them if a second has passed."""
        now = time.monotonic()
        if now - self._told_at >= 1:
            self._told_at = now
            print(json.dumps({"at": now, **sums}), file=self._out, flush=True)


async def write(url: str, out: TextIO, rate_file: Path) -> None:
    """Write at the rate that the file says, in events a second."""
    limits = httpx2.Limits(max_connections=_SENDERS)
    async with httpx2.AsyncClient(base_url=url, timeout=60, limits=limits, verify=trusts_nobody()) as api:
        writers = Writers(api)
        busy = [False] * _SENDERS
        tasks = set[asyncio.Task[None]]()

        async def one(sender: int) -> None:
            busy[sender] = True
            try:
                await writers.send(sender)
            finally:
                busy[sender] = False

        owed, each_second = Owed(rate_file), EachSecond(out)
        for turn in itertools.count():
            owed.grow()
            sender = next((s for k in range(_SENDERS) if not busy[s := (turn + k) % _SENDERS]), None)
            while sender is not None and owed.take(_BATCH):
                task = asyncio.create_task(one(sender))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                busy[sender] = True
                sender = next((s for s in range(_SENDERS) if not busy[s]), None)
            each_second.tell({"wrong": writers.wrong, **writers.counts})
            await asyncio.sleep(0.02)


async def produce(out: TextIO, rate_file: Path) -> None:
    """Publish to the log at the rate in the file, in events per second; acknowledged events are reported each second."""
    topic = TOPICS["feeds.insight-ingested"]
    settings = read_settings(os.environ)
    codec = await Registry(settings.registry_access()).codec([topic])
    publisher = Publisher(settings.kafka_client())
    clock = ProductClock(settings.clock_file)
    publish = EventPublisher(topic, publisher, codec, clock)
    dimensions = settings.embedding_dimensions
    # Checked once: the events differ in their id and time alone, and checking each would cost more than to send it.
    checked = [
        event_of(topic.name, Line(number, json.dumps(line).encode()), shift_ms=0, embedding_dimensions=dimensions)
        for number, line in enumerate(insights(), start=1)
    ]
    events = itertools.cycle(checked)
    owed, each_second = Owed(rate_file), EachSecond(out)
    try:
        while True:
            owed.grow()
            now_ms = clock()
            while owed.take(1):
                event = {**next(events), "insight_id": f"log-{publisher.handed_over}", "ts": now_ms}
                publish(event, key_of(event, topic.key))
            each_second.tell({"published": publisher.acknowledged})
            await asyncio.sleep(0.02)
    finally:
        publisher.flush()


def main() -> None:
    """As the usage says."""
    sort, url, file = sys.argv[1:]
    path = Path(file)
    rate_file = path.with_suffix(".rate")

    async def run(out: TextIO) -> None:
        clients = {
            "readers": lambda: read(url, out),
            "writers": lambda: write(url, out, rate_file),
            "producers": lambda: produce(out, rate_file),
        }
        task = asyncio.ensure_future(clients[sort]())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with path.open("a", encoding="ascii") as out:
        asyncio.run(run(out))


if __name__ == "__main__":
    main()

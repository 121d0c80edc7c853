"""A topic and a group for one test, and their stored state."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.schemas.positions import Position
from tests.conftest import Stack
from tests.integration.children import child
from tests.integration.connecting import fresh, send, until
from tests.integration.kafka.tally import IDS, Tally


@dataclass
class Case:
    """One test's topic and group."""

    stack: Stack
    context: ProcessContext
    topic: str
    group: str = field(default_factory=lambda: fresh("tally"))

    def send(self, names: Sequence[str], partition: int | None = None) -> list[Position]:
        """Publish one event a name."""
        values = [self.context.codec.encode(self.topic, {"user_id": name, "ts": 1}) for name in names]
        return self.send_raw(values, partition)

    def send_raw(self, values: Sequence[bytes | None], partition: int | None = None) -> list[Position]:
        """Publish bytes."""
        return send(self.stack.kafka, self.topic, [(b"k", value, [("h", b"1")], partition) for value in values])

    def tally(self, **more: object) -> Tally:
        """A handler of this test's group."""
        return Tally(self.group, (self.topic,), **more)  # type: ignore[arg-type]

    def consumer(self, **more: object) -> BatchConsumer:
        """A consumer of this test's group."""
        return BatchConsumer(self.tally(**more), self.context)

    async def stored(self) -> list[str]:
        """Names stored so far, a double one twice."""
        return [row["id"] for row in await self.context.pool.fetch(IDS, self.group)]

    async def all_stored(self, names: Sequence[str]) -> None:
        """Wait until the names are stored, each once."""

        async def look() -> bool:
            return set(await self.stored()) >= set(names)

        try:
            await until(look, "all are stored", 20)
        finally:
            assert sorted(names) == await self.stored()

    async def positions(self) -> dict[int, int]:
        """The stored position of each partition."""
        rows = await self.context.pool.fetch('SELECT partition, next FROM positions WHERE "group" = $1', self.group)
        return {row["partition"]: row["next"] for row in rows}

    async def dead(self) -> list[tuple[str, ...]]:
        """Dead letters that wait in the outbox: their headers by name."""
        rows = await self.context.pool.fetch("SELECT headers FROM outbox WHERE topic = $1", self.topic + ".dlq")
        return [row["headers"] for row in rows]

    @contextmanager
    def child(self, folder: Path, where: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """A consumer in a process of its own; `where` names the hook in which it holds its first batch."""
        folder.mkdir()
        arguments = (self.group, self.topic, str(folder), where)
        with child(self.stack, "tests.integration.kafka.tally", *arguments, folder=folder) as process:
            yield process


def names(count: int, prefix: str = "n") -> list[str]:
    """Names that sort as they count."""
    return [f"{prefix}{number:04}" for number in range(count)]

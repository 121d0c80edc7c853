"""A relay that is stopped (SIGSTOP) with a batch in hand. Run as a program, it stops itself before it publishes a key."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from highwater.connectors.kafka.outbox import Relay
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging
from tests.integration.connecting import until

LEASE_SECONDS = 2.0


class StoppedProducer(AsyncProducer):
    """Stops the process once, before the first record of a key."""

    key = b""

    async def enqueue(self, topic: str, value: bytes | None, *, key: bytes | str | None, **more: Any) -> Any:
        """Stop, if it is the key; pass it on when the process continues."""
        if key == self.key:
            self.key = b""
            os.kill(os.getpid(), signal.SIGSTOP)
        return await super().enqueue(topic, value, key=key, **more)


async def main(key: str, folder: Path) -> None:
    """Relay until killed."""
    names = ("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "DATABASE_URL", "REDIS_URL")
    settings = read_settings({name: os.environ[name] for name in names})
    configure_logging("info", "json")
    producer = StoppedProducer(settings.kafka_client(), client_id="stopped")
    producer.key = key.encode()
    assert settings.database is not None
    relay = Relay(settings.database, producer, lease_seconds=LEASE_SECONDS)
    running = asyncio.create_task(relay.run(asyncio.Event()))
    await until(lambda: relay.shards, "it holds shards")
    (folder / "running").touch()
    await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

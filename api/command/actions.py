"""Records privileged commands on the append-only topic `security.action-recorded`.

Invariant: the record is in the log before the effect, or there is no effect; a record of the outcome follows.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from highwater.api.command.command import CommandFailedError
from highwater.api.command.connection import kafka_client

if TYPE_CHECKING:
    from highwater.schemas.security import ActionRecorded
    from highwater.streams.settings import Settings

_SOURCE = "/cli"


def user_name() -> str:
    """Return the user of this terminal."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@contextmanager
def recorded(settings: Settings, action: str, resource: str) -> Iterator[None]:
    """Record a privileged command before its effect, and its outcome afterwards.

    Args:
        settings: for Kafka and the registry.
        action: the command without its values.
        resource: its values; never a secret.

    Raises:
        CommandFailedError: the record cannot be written, so nothing was done.
    """
    from highwater.streams.clock import ProductClock, fresh_id
    from highwater.streams.identity.actions import action_record

    clock = ProductClock(settings.clock_file)
    event = action_record(
        action,
        "permitted",
        request_id=fresh_id(),
        source="cli",
        now_ms=clock(),
        resource=resource,
        by=user_name(),
    )
    asyncio.run(_publish(settings, event))
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        asyncio.run(_publish(settings, {**event, "outcome": outcome, "recorded_at": clock()}))


async def _publish(settings: Settings, event: ActionRecorded) -> None:
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.producer import AsyncProducer
    from highwater.connectors.kafka.registry import Registry
    from highwater.schemas.envelope import make_headers
    from highwater.schemas.security import ACTION_RECORDED
    from highwater.schemas.topics import TOPICS
    from highwater.streams.clock import fresh_id

    topic = TOPICS[ACTION_RECORDED]
    client = kafka_client(settings)
    if topic.name not in await Admin(client).partition_counts():
        raise CommandFailedError(
            f"{topic.name} is not on the broker, and every action must be recorded: run `highwater init`"
        )
    codec = await Registry(settings.schema_registry).codec([topic])
    headers = make_headers(
        event_id=fresh_id(), event_type=topic.name, source=_SOURCE, now_ms=event["recorded_at"], caused_by=None
    )
    producer = AsyncProducer(client, client_id="highwater-cli", linger_ms=0)
    try:
        await producer.publish(topic.name, codec.encode(topic.name, event), key=topic.key_of(event), headers=headers)
    finally:
        await producer.close()

"""The common parts of the commands for dead letters: where the letters are, who handles them, how they are named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.actions import user_name
from highwater.api.command.command import TopicArgument
from highwater.api.command.connection import kafka_client
from highwater.schemas.topics import TOPICS, Topic

if TYPE_CHECKING:
    from highwater.api.dead_letters.handling import Handler
    from highwater.api.dead_letters.reading import LetterBox
    from highwater.streams.settings import Settings

LETTER_TOPIC = TopicArgument(dead_letters=True)
NOTE = click.option("--note", help="Reason, recorded with the action.")


def box_of(settings: Settings) -> LetterBox:
    """Return the dead letters of a deployment."""
    from highwater.api.dead_letters.reading import LetterBox
    from highwater.connectors.kafka.registry import Registry

    return LetterBox(kafka_client(settings), Registry(settings.registry_access()))


def name_of(topic: Topic) -> str:
    """Return the name of the dead-letter topic for either name."""
    from highwater.api.dead_letters.letter import dead_letters_of

    return dead_letters_of(topic).name


@asynccontextmanager
async def handler_of(settings: Settings, partitions: Mapping[str, int], note: str | None) -> AsyncIterator[Handler]:
    """Return the user of this command, as a handler of dead letters."""
    from highwater.api.dead_letters.handling import Handler
    from highwater.api.dead_letters.reading import HANDLED
    from highwater.connectors.kafka.producer import AsyncProducer
    from highwater.connectors.kafka.registry import Registry
    from highwater.streams.clock import ProductClock

    codec = await Registry(settings.registry_access()).codec([TOPICS[HANDLED]])
    producer = AsyncProducer(kafka_client(settings), client_id="highwater-dlq", linger_ms=5)
    try:
        clock = ProductClock(settings.clock_file)
        yield Handler(producer, codec, partitions, clock, by=user_name(), note=note)
    finally:
        await producer.close()


def json_text(value: Any) -> str:
    """Return a value as JSON on one line."""
    import orjson

    return orjson.dumps(value, default=str).decode()

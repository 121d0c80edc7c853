"""Whether the log has a version of a resource twice, with other content: the tag of each content is its own."""

from __future__ import annotations

import asyncio

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.reading import log_ranges_of, open_reader, read_spans
from highwater.schemas.cache import VERSION_BUMPED
from highwater.schemas.codec import Codec
from highwater.streams.settings import Settings


async def repeated_versions(settings: Settings, admin: Admin, codec: Codec) -> list[str]:
    """Return the versions that the log has under two tags, one line each.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    spans = await log_ranges_of(admin, [VERSION_BUMPED])

    def read() -> dict[tuple[str, int], set[str]]:
        found: dict[tuple[str, int], set[str]] = {}
        consumer = open_reader(settings.kafka_client())
        try:
            for record in read_spans(consumer, spans):
                event = codec.decode(VERSION_BUMPED, record.value)
                found.setdefault((event["key"], event["version"]), set()).add(event["etag"])
        finally:
            consumer.close()
        return found

    tags = await asyncio.to_thread(read)
    return [
        f"version {version} of {key} stands for {len(named)} contents"
        for (key, version), named in sorted(tags.items())
        if len(named) > 1
    ]

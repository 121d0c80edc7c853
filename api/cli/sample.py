"""The bundled sample: 3,000 real commit subjects, and a reader `ada` of all their channels, so that the tour works.

Law: loaded on the first start of a data folder only; loading it twice changes nothing, since its ids are the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.connection import kafka_client
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from streams.settings import Settings

SAMPLE = Path(__file__).parents[1] / "sample" / "commits.jsonl.gz"
READER, PLAN = "ada", "pro"
_INSIGHTS = "feeds.insight-ingested"
# Says that this data folder has had its first start, and what became of the sample then.
_MARKER = Path("run") / "sample"


def is_due(data_dir: Path) -> bool:
    """Whether the data folder has never been started to its end."""
    return not (data_dir / _MARKER).exists()


def remember(data_dir: Path, what: str) -> None:
    """Note that the sample was loaded or declined."""
    path = data_dir / _MARKER
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(what + "\n", encoding="utf-8")


def load_sample(settings: Settings) -> int:
    """Publish the sample with its times moved to now, and subscribe its reader; returns the number of insights.

    Raises:
        UnavailableError: Kafka or the registry went away; loading it again changes nothing that is there.
    """
    from api.cli.lines import decompressed, event_of, iter_lines, key_of, latest_ms
    from api.cli.publishing import EventPublisher, Publisher
    from connectors.kafka.registry import Registry
    from streams.clock import ProductClock

    clock = ProductClock(settings.clock_file)
    now_ms = clock()
    codec = asyncio.run(Registry(settings.schema_registry).codec())
    publisher = Publisher(kafka_client(settings))
    dimensions = settings.embedding_dimensions
    with SAMPLE.open("rb") as stream:

        def lines() -> Any:
            stream.seek(0)
            return iter_lines(decompressed(stream))

        latest = latest_ms(_INSIGHTS, lines, embedding_dimensions=dimensions)
        shift_ms = 0 if latest is None else now_ms - latest
        hand_over = EventPublisher(TOPICS[_INSIGHTS], publisher, codec, clock)
        channels: set[str] = set()
        count = 0
        for line in lines():
            event = event_of(_INSIGHTS, line, shift_ms=shift_ms, embedding_dimensions=dimensions)
            channels.add(event["channel_id"])
            hand_over(event, key_of(event, TOPICS[_INSIGHTS].key))
            count += 1
    for topic, more in (
        ("feeds.subscriptions-replaced", {"channels": sorted(channels), "ts": now_ms}),
        ("feeds.plan-changed", {"plan": PLAN, "ts": now_ms}),
        ("feeds.user-active", {"ts": now_ms}),
    ):
        EventPublisher(TOPICS[topic], publisher, codec, clock)({"user_id": READER, **more}, READER)
    publisher.flush()
    return count

"""The bundled sample: 3,000 real commit subjects with a reader `ada` of all their channels, and a season of football.

The season is the English Premier League 2018/19 from openfootball/football.json (`2018-19/en.1.json`, public domain,
CC0 1.0). Its times are read as UTC, the default of `highwater import openfootball`, so that both agree.

Invariant: loaded only on the first start of a data folder; loading it twice changes nothing, since its ids are the
same.
"""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highwater.api.command.connection import kafka_client
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import monotonic_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from highwater.streams.settings import Settings

SAMPLE = Path(__file__).parents[1] / "sample" / "commits.jsonl.gz"
READER, PLAN = "ada", "pro"
SEASON_FILE = Path(__file__).parents[1] / "sample" / "season.json.gz"
SEASON = "2018-19_en.1"
_INSIGHTS = "feeds.insight-ingested"
# 3,000 rows take a second; a minute is enough for a machine that is busy starting.
_STORED_SECONDS_MAX = 60.0
_STORED_POLL_SECONDS = 0.1
# Records that this data folder was started once, and what happened to the sample then.
_MARKER = Path("run") / "sample"


def is_due(data_dir: Path) -> bool:
    """Return whether the data folder has never been started completely."""
    return not (data_dir / _MARKER).exists()


def remember(data_dir: Path, what: str) -> None:
    """Record that the sample was loaded or declined."""
    path = data_dir / _MARKER
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(what + "\n", encoding="utf-8")


def load_sample(settings: Settings) -> int:
    """Publish the sample with the times of its insights moved to now, and subscribe its reader; returns the number of
    insights.

    Raises:
        UnavailableError: Kafka or the registry became unavailable; loading it again does not change what is stored.
    """
    from highwater.api.command.lines import decompressed, event_of, iter_lines, key_of, latest_ms
    from highwater.api.command.publishing import EventPublisher, Publisher
    from highwater.connectors.kafka.registry import Registry
    from highwater.streams.clock import ProductClock

    load_season(settings)  # before the insights: the season is stored while we wait for those
    clock = ProductClock(settings.clock_file)
    now_ms = clock()
    codec = asyncio.run(Registry(settings.registry_access()).codec())
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
    publisher.flush()
    # Subscribed after everything is stored, so the reader's first clusters cover all insights.
    asyncio.run(_until_stored(settings, publisher.last))
    for topic, more in (
        ("feeds.subscriptions-replaced", {"channels": sorted(channels), "ts": now_ms}),
        ("feeds.plan-changed", {"plan": PLAN, "ts": now_ms}),
        ("feeds.user-active", {"ts": now_ms}),
    ):
        EventPublisher(TOPICS[topic], publisher, codec, clock)({"user_id": READER, **more}, READER)
    publisher.flush()
    return count


def load_season(settings: Settings) -> int:
    """Publish the bundled season unchanged; return the number of its matches.

    Raises:
        UnavailableError: as above.
    """
    from highwater.api.league.cli_import import publish_season
    from highwater.connectors.sources.openfootball import parse_season

    season = parse_season(gzip.decompress(SEASON_FILE.read_bytes()), SEASON)
    publish_season(settings, season)
    return len(season.fixtures)


async def _until_stored(settings: Settings, last: Mapping[tuple[str, int], int]) -> None:
    """Wait until the sink has accounted for the sample, up to the limit."""
    from highwater.connectors.kafka.statements import QUERIES
    from highwater.connectors.postgres.pool import open_pool

    wanted = {place: offset for place, offset in last.items() if place[0] == _INSIGHTS}
    deadline = monotonic_seconds() + _STORED_SECONDS_MAX
    async with await open_pool(settings.database, size_max=1, admit=None) as pool:
        while monotonic_seconds() < deadline:
            rows = await pool.fetch(QUERIES["positions_of"], TOPICS[_INSIGHTS].consumers[0])
            stored = {(row["topic"], row["partition"]): row["next"] for row in rows}
            if all(stored.get(place, 0) > offset for place, offset in wanted.items()):
                return
            await asyncio.sleep(_STORED_POLL_SECONDS)

"""Counts open dead letters for the gauge of the API: those not yet resent, edited or dropped.

Invariant: a measurement queries the end offsets and reads only new actions; letters are not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping

from highwater.api.dead_letters.letter import Action, handling_of
from highwater.api.dead_letters.reading import HANDLED
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.reading import Decoder, Place, log_ranges_of, open_reader, read_spans
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.errors import ConfigurationError, HighwaterError, InvalidEventError, UnknownSchemaError
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, dead_letter_topic
from highwater.streams.settings import Settings
from highwater.streams.telemetry import DEAD_LETTERS_OPEN

# People handle them within hours; a collector scrapes every 15 s.
LOOK_SECONDS = 15.0
# Remembered actions: as many letters as anybody handles before dropping them, some 20 MB.
HANDLED_MAX = 100_000


class OpenLetters:
    """Counts them by topic."""

    def __init__(self, settings: Settings, admin: Admin) -> None:
        self._client = settings.kafka_client()
        self._registry = Registry(settings.registry_access())
        self._admin = admin
        self._topics = [dead_letter_topic(topic).name for topic in TOPICS.values()]
        self._handled: dict[Position, None] = {}
        self._read: dict[Place, int] = {}
        self._decoder: Decoder | None = None
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start counting."""
        self._task = asyncio.create_task(self._watch(), name="open-dead-letters")

    async def close(self) -> None:
        """Stop counting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(HighwaterError):  # an unavailable service: `/readyz` reports it
                self._tell(await self.count())
            await asyncio.sleep(LOOK_SECONDS)

    async def count(self) -> dict[str, int]:
        """Return the number of open letters of each topic that has letters.

        Raises:
            UnavailableError: Kafka or the registry does not answer.
        """
        ranges = await log_ranges_of(self._admin, [*self._topics, HANDLED])
        await self._read_handled({place: held for place, held in ranges.items() if place[0] == HANDLED})
        letters = {place: held for place, held in ranges.items() if place[0] != HANDLED and held.low < held.high}
        return count_open(letters, self._handled)

    async def _read_handled(self, ranges: Mapping[Place, LogRange]) -> None:
        spans = {
            place: LogRange(max(held.low, self._read.get(place, 0), held.high - HANDLED_MAX), held.high)
            for place, held in ranges.items()
        }
        if any(span.low < span.high for span in spans.values()):
            self._decoder = self._decoder or await Decoder.of(HANDLED, self._registry)
            for letter in await asyncio.to_thread(self._handled_letters, self._decoder, spans):
                self._handled[letter] = None
            while len(self._handled) > HANDLED_MAX:
                del self._handled[next(iter(self._handled))]
        self._read = {place: held.high for place, held in ranges.items()}

    def _handled_letters(self, decoder: Decoder, spans: Mapping[Place, LogRange]) -> list[Position]:
        found = []
        reader = open_reader(self._client)
        try:
            for record in read_spans(reader, spans):
                # Events that no Highwater version has written are skipped.
                with contextlib.suppress(InvalidEventError, UnknownSchemaError, ConfigurationError, ValueError):
                    one = handling_of(decoder.decode(record.value))
                    if one.action is not Action.DROPPED:  # a dropped letter no longer exists
                        found.append(one.letter)
        finally:
            reader.close()
        return found

    def _tell(self, found: Mapping[str, int]) -> None:
        for topic, count in found.items():
            DEAD_LETTERS_OPEN.labels(topic).set(count)
        for topic in self._told - set(found):
            DEAD_LETTERS_OPEN.labels(topic).set(0)
        self._told |= set(found)


def count_open(letters: Mapping[Place, LogRange], handled: Mapping[Position, object]) -> dict[str, int]:
    """Return letters minus those that were handled and still exist, by original topic."""
    counts: Counter[str] = Counter()
    for (topic, _), held in letters.items():
        counts[topic.removesuffix(DEAD_LETTER_SUFFIX)] += held.high - held.low
    for letter in handled:
        held_there = letters.get((letter.topic, letter.partition))
        if held_there is not None and held_there.low <= letter.offset < held_there.high:
            counts[letter.topic.removesuffix(DEAD_LETTER_SUFFIX)] -= 1
    return dict(counts)

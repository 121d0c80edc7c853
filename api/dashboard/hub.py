"""Sampling for all browsers together: ends of topics, lag of consumers, the open tails.

Invariants. However many browsers are open, the broker is queried once per sample and a topic is read once. Without an
open browser nothing is queried. A page shows the last sample; an unavailable service is reported, and sampling
continues.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from highwater.api.broker.sources import Sources
from highwater.api.broker.topics import all_topics as all_topics_of_broker
from highwater.api.dashboard.rates import Rates, Sample
from highwater.api.dashboard.tails import Tails
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.groups import GroupLag, lags
from highwater.connectors.kafka.reading import log_ranges_of
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, all_topics
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

if TYPE_CHECKING:
    from highwater.api.broker.answers import ListedTopic
    from highwater.api.core.services import Services

SAMPLE_SECONDS = 2.0
# The lag reads the first unread record of each partition that is behind: every third sample.
LAG_EACH = 3
# An open browser polls every few seconds.
IDLE_SECONDS = 30.0
# The list of the broker changes seldom, and costs a request for all its topics.
LISTED_SECONDS = 10.0
_TOPICS = "topics"
# A page begins with what was read for another browser this long ago, and reads it again a refresh later.
KEPT_SECONDS = 300.0

T = TypeVar("T")
_log = get_log("dashboard")


class Hub:
    """Samples while a browser is open."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._client = services.settings.kafka_client()
        # A client is made for each check of the lag, and logs that it ends; that is not worth logging.
        self._quiet = {**self._client, "log_level": "4"}
        self._task: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._sampled_at = -SAMPLE_SECONDS * 2
        self.rates = Rates()
        self.ranges: Mapping[tuple[str, int], LogRange] = {}
        self.lags: Sequence[GroupLag] = ()
        self.problem: str | None = None
        self.samples = 0
        self.tails = Tails(self._quiet, services.settings.registry_access())
        self._sharing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._shared: dict[str, tuple[float, Any]] = {}

    @property
    def is_current(self) -> bool:
        """Return whether it has sampled lately: for the first browser after a while, it begins only now."""
        return monotonic_seconds() - self._sampled_at < 2 * SAMPLE_SECONDS

    def look(self) -> None:
        """Note an open browser: continue sampling, or begin."""
        self._looked_at = monotonic_seconds()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="dashboard-hub")

    async def close(self) -> None:
        """Stop."""
        tasks = [task for task in (self._task, self._measuring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.tails.close()

    async def _run(self) -> None:
        self.rates.clear()
        number = 0
        while monotonic_seconds() - self._looked_at < IDLE_SECONDS:
            started = monotonic_seconds()
            try:
                await self._sample()
                self.problem = None
            except (HighwaterError, OSError, TimeoutError) as error:
                self.problem = str(error) or type(error).__name__
                _log.debug("the dashboard is not sampled", reason=self.problem)
            if number % LAG_EACH == 0 and (self._measuring is None or self._measuring.done()):
                # Separate from the sampling: a broker under load answers it late, and rates continue meanwhile.
                self._measuring = asyncio.create_task(self._measure(), name="dashboard-lag")
            number += 1
            await asyncio.sleep(max(0.0, SAMPLE_SECONDS - (monotonic_seconds() - started)))

    async def _measure(self) -> None:
        try:
            self.lags = await lags(self._quiet, self._services.database.require())
        except (HighwaterError, OSError, TimeoutError) as error:
            _log.debug("the lag is unknown", reason=str(error) or type(error).__name__)

    async def _sample(self) -> None:
        self._services.kafka.require()
        names = [topic.name for topic in all_topics()]
        self.ranges = await log_ranges_of(self._services.admin, names)
        self.rates.add(Sample(monotonic_seconds(), self.ends()))
        self.samples += 1
        self._sampled_at = monotonic_seconds()

    def last_listed_topics(self) -> Sequence[ListedTopic] | None:
        """Return every topic, as it was listed for some browser in the last minutes: shown until a new list comes."""
        found: Sequence[ListedTopic] | None = self.last_shared(_TOPICS, KEPT_SECONDS)
        return found

    async def listed_topics(self) -> Sequence[ListedTopic]:
        """Every topic on the broker, as it was listed in the last ten seconds.

        Raises:
            UnavailableError: the broker does not answer.
        """
        return await self.shared(_TOPICS, LISTED_SECONDS, lambda: all_topics_of_broker(Sources.of(self._services)))

    async def shared(self, name: str, seconds: float, make: Callable[[], Awaitable[T]]) -> T:
        """Return a value that all browsers share, computed again if it is older than `seconds`; a failure is not cached.

        `name` is one of a few that the pages define, so the cache is bounded.
        """
        async with self._sharing[name]:
            kept = self._shared.get(name)
            if kept is None or monotonic_seconds() - kept[0] > seconds:
                kept = (monotonic_seconds(), await make())
                self._shared[name] = kept
            found: T = kept[1]
            return found

    def last_shared(self, name: str, seconds_max: float) -> Any:
        """What was shared under a name in the last `seconds_max`; None: nothing."""
        kept = self._shared.get(name)
        return None if kept is None or monotonic_seconds() - kept[0] > seconds_max else kept[1]

    def ends(self) -> dict[str, int]:
        """Return the total number of events of each topic since its creation."""
        return _sums((topic, held.high) for (topic, _), held in self.ranges.items())

    def held(self) -> dict[str, int]:
        """Return the number of events in each topic."""
        return _sums((topic, held.high - held.low) for (topic, _), held in self.ranges.items())

    def dead_letters(self) -> dict[str, int]:
        """Return dead letters by the topic they came from, if there are any."""
        return {
            topic.removesuffix(DEAD_LETTER_SUFFIX): count
            for topic, count in self.held().items()
            if topic.endswith(DEAD_LETTER_SUFFIX) and count
        }

    def group_lags(self) -> dict[str, GroupLag]:
        """Return how far each consumer is behind."""
        return {lag.group: lag for lag in self.lags}

    def topic_lags(self) -> dict[str, tuple[int, float | None, str]]:
        """Return by topic the consumer that is furthest behind: events, its total lag in seconds, its name."""
        found: dict[str, tuple[int, float | None, str]] = {}
        for lag in self.lags:
            for topic, events in _sums((standing.topic, standing.events) for standing in lag.standings).items():
                if topic not in found or events > found[topic][0]:
                    found[topic] = (events, lag.seconds if events else 0.0, lag.group)
        return found


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, number in pairs:
        found[name] += number
    return dict(found)

"""The load of a run: events of every subsystem in rounds, API requests beside them, and the expected totals.

Invariant: a round's number determines its events. Events that the broker did not acknowledge are sent again until it
does, so that in the end everything is in the log, and some of it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx2

from highwater.api.command.publishing import EventPublisher, Publisher
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import TOPICS
from highwater.streams.access import trusts_nobody
from highwater.streams.clock import ProductClock
from highwater.streams.settings import Settings

INSIGHT, QUERY, JOB = "feeds.insight-ingested", "queries.query-submitted", "jobs.job-submitted"
CHUNK, CHUNKS_END = "chunks.chunk-submitted", "chunks.ingest-finished"
SCHEDULED, FINALIZED, VOTE = "league.match-scheduled", "league.match-finalized", "league.vote-cast"
CHANNELS = tuple(f"channel-{number}" for number in range(6))
READERS = tuple(f"reader-{number}" for number in range(4))
PROBES = "probes"
# One round every half second: 24 insights/s and some of everything else is what two cores can process during faults.
_ROUND_SECONDS = 0.5
_INSIGHTS, _CHUNKS = 12, 6
# A plan allows an organization five decks a month.
_JOBS_PER_ORGANIZATION = 4
_ASKED_SECONDS_MAX = 5.0
_IDS = uuid.UUID("5a0b8f3e-4d4c-4d0e-9a39-6f0a6b0a5c11")
_WORDS = (
    "consumer group rebalance",
    "broker quota throttle",
    "schema registry cache",
    "log segment cleaner",
    "idle lease",
)

Event = tuple[str, Mapping[str, Any]]


def round_of(number: int, now_ms: int) -> list[Event]:
    """Return the events of a round."""
    events: list[Event] = [(INSIGHT, _insight(number * _INSIGHTS + place, now_ms)) for place in range(_INSIGHTS)]
    events.append((SCHEDULED, _match(number)))
    if number % 2:
        events += [(FINALIZED, _result(number - 1)), (VOTE, _vote(number, now_ms))]
    if number % 4 == 0:
        events.append((QUERY, _query(number, now_ms)))
    if number % 8 == 0:
        events.append((JOB, _job(number, now_ms)))
        events += _ingest(number, now_ms)
    return events


def comes_to(rounds: int) -> dict[str, int]:
    """Return the expected totals after a number of rounds."""
    sent = [event for number in range(rounds) for event in round_of(number, 0)]
    counts = Counter(topic for topic, _ in sent)
    return {
        "insights": counts[INSIGHT],
        "queries": counts[QUERY],
        "jobs": counts[JOB],
        "ingests": counts[CHUNKS_END],
        "chunks": counts[CHUNK],
        "matches": counts[SCHEDULED],
        "results": counts[FINALIZED],
        "votes": counts[VOTE],
    }


def _insight(number: int, now_ms: int) -> dict[str, Any]:
    text = f"{_WORDS[number % len(_WORDS)]} changed in part {number // 7}"
    return {"insight_id": f"i-{number}", "channel_id": CHANNELS[number % len(CHANNELS)], "ts": now_ms, "text": text}


def _match(number: int) -> dict[str, Any]:
    return {
        "match_id": f"m-{number}", "season": f"season-{number // 100}", "round": "1", "kickoff": 1_790_000_000_000,
        "home": f"Home {number % 20}", "away": f"Away {number % 20}", "time_unknown": False, "status": "scheduled",
    }  # fmt: skip


def _result(number: int) -> dict[str, Any]:
    return {
        "match_id": f"m-{number}", "season": f"season-{number // 100}", "home_goals": number % 4, "away_goals": 1,
        "finalized_at": 1_790_007_200_000,
    }  # fmt: skip


def _vote(number: int, now_ms: int) -> dict[str, Any]:
    reader = READERS[number % len(READERS)]
    return {"match_id": f"m-{number}", "user_id": reader, "choice": "home", "ts": now_ms}


def _query(number: int, now_ms: int) -> dict[str, Any]:
    asker = uuid.uuid5(_IDS, f"asker-{number % 3}")
    query = f"What changed in the {_WORDS[number % len(_WORDS)]}?"
    return {"request_id": str(uuid.uuid5(_IDS, f"query-{number}")), "user_id": str(asker), "query": query, "ts": now_ms}


def _job(number: int, now_ms: int) -> dict[str, Any]:
    place = number // 8
    return {
        "job_id": str(uuid.uuid5(_IDS, f"job-{number}")), "kind": "generation", "user_id": READERS[0],
        "organization_id": f"organization-{place // _JOBS_PER_ORGANIZATION}", "ts": now_ms,
        "args": json.dumps({"query": f"What is part {place}?", "slides": 2, "source_document_ids": []}),
    }  # fmt: skip


def _ingest(number: int, now_ms: int) -> list[Event]:
    of = {
        "ingest_id": str(uuid.uuid5(_IDS, f"ingest-{number}")),
        "ns": "notes",
        "slot": "main",
        "source_id": f"source-{number}",
    }
    chunks: list[Event] = [
        (CHUNK, {**of, "chunk_no": place, "content": f"{_WORDS[place % len(_WORDS)]}, page {place} of {number}"})
        for place in range(_CHUNKS)
    ]
    end = {**of, "full": True, "expected_count": _CHUNKS, "truncated": False, "ts": now_ms}
    return [*chunks, (CHUNKS_END, end)]


@dataclass(slots=True)
class RequestOutcomes:
    """The outcomes of requests to the API: answered, refused for a while, or without an answer; `wrong` lists forbidden
    outcomes.
    """

    answered: int = 0
    refused: int = 0
    unanswered: int = 0
    wrong: str | None = None

    def note(self, status: int | None, outcome: str = "") -> None:
        """Count one more."""
        if status is None:
            self.unanswered += 1
        elif status < 400:
            self.answered += 1
        elif status in (429, 503):
            self.refused += 1
        else:
            self.wrong = self.wrong or f"{status}: {outcome[:200]}"


class Load:
    """Sends rounds until the `with` block ends, which waits until everything is acknowledged."""

    def __init__(self, settings: Settings, api_url: str, *, rounds: int = 0) -> None:
        """`rounds` is the number of rounds that another process has sent already."""
        self.rounds = rounds
        self.asked = RequestOutcomes()
        self._settings = settings
        self._clock = ProductClock()
        self._codec = asyncio.run(Registry(settings.registry_access()).codec())
        self._http = httpx2.Client(base_url=api_url, timeout=_ASKED_SECONDS_MAX, verify=trusts_nobody())
        self._is_over = threading.Event()
        # Held while a round is sent, and while a request is made.
        self._sending, self._asking = threading.Lock(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._send_rounds, name="load"),
            threading.Thread(target=self._ask, name="requests"),
        ]

    def __enter__(self) -> Self:
        """Subscribe the readers and start."""
        for reader in READERS:
            for method, path, body in (
                ("PUT", "plan", {"plan": "pro"}), ("PUT", "subscriptions", {"channels": [*CHANNELS]}), ("POST", "activity", {}),
            ):  # fmt: skip
                self._http.request(method, f"/api/users/{quote(reader)}/{path}", json=body).raise_for_status()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._http.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Send and ask nothing; all that was sent before is acknowledged."""
        with self._sending, self._asking:
            yield

    @property
    def sent(self) -> dict[str, int]:
        """Return how much of each kind must exist, without probes; subscriptions too."""
        return {**comes_to(self.rounds), "subscriptions": len(READERS) * len(CHANNELS)}

    def _send_rounds(self) -> None:
        while not self._is_over.wait(_ROUND_SECONDS):
            with self._sending:
                self._send(round_of(self.rounds, self._clock()))
                self.rounds += 1

    def _send(self, events: Sequence[Event]) -> None:
        while not is_published(self._settings, self._codec, self._clock, events):
            self._is_over.wait(_ROUND_SECONDS)

    def _ask(self) -> None:
        number = 0
        while not self._is_over.wait(_ROUND_SECONDS / 2):
            number += 1
            with self._asking:
                self._ask_once(number)

    def _ask_once(self, number: int) -> None:
        reader = READERS[number % len(READERS)]
        paths = (f"/api/users/{reader}/feed", f"/api/users/{reader}/pending", f"/api/channels/{CHANNELS[number % 6]}",
                 "/api/chunks/search?ns=notes&q=lease")  # fmt: skip
        path = paths[number % len(paths)]
        try:
            is_write = number % 8 == 0
            written = f"/api/users/{reader}/activity"
            answer = self._http.post(written, json={}) if is_write else self._http.get(path)
        except httpx2.HTTPError:
            self.asked.note(None)
            return
        # Resources that are not built yet are answered with 404.
        self.asked.note(None if answer.status_code == 404 else answer.status_code, answer.text)

    def probe(self, number: int) -> bool:
        """Publish an insight that only `sees` reads; return whether the broker has it."""
        event = {"insight_id": f"probe-{number}", "channel_id": PROBES, "ts": self._clock(), "text": f"probe {number}"}
        return is_published(self._settings, self._codec, self._clock, [(INSIGHT, event)])

    def sees(self, number: int) -> bool:
        """Return whether the API shows the probes up to this one, which are numbered from 1."""
        with contextlib.suppress(httpx2.HTTPError):
            answer = self._http.get(f"/api/channels/{PROBES}")
            return answer.status_code == 200 and int(answer.json()["current_seq"]) >= number
        return False


def is_published(settings: Settings, codec: Codec, clock: ProductClock, events: Sequence[Event]) -> bool:
    """Publish events; return whether the broker has all of them. If not it may have some."""
    publisher = Publisher({**settings.kafka_client(), "log_level": "0"})
    try:
        for name, event in events:
            topic = TOPICS[name]
            EventPublisher(topic, publisher, codec, clock)(event, topic.key_of(event))
        publisher.flush()
    except UnavailableError:
        return False
    return True

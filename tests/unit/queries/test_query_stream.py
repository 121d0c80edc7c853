"""The hub of the sockets without a broker: which sockets get a batch, also those that connect while it waits for its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from highwater.api.queries import stream as query_stream
from highwater.api.queries.stream import TOPIC, QueryHub, RawRecord, Subscriber
from highwater.connectors.queries.read_model import Answer
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnavailableError, UnknownSchemaError
from highwater.schemas.topics import PARTITIONS

ADA, BOB = "11111111-1111-4111-8111-11111111111a", "22222222-2222-4222-8222-22222222222b"


class Hub(QueryHub):
    """A hub at the beginning of every partition, whose answers are the test's."""

    def __init__(self) -> None:
        super().__init__({}, None, lambda: self.codec, self.learn, self.read)  # type: ignore[arg-type]
        self.codec = self._known = Codec({TOPIC: 1})
        self._places = dict.fromkeys(range(PARTITIONS), 0)
        self._task = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
        self.newcomers: list[str] = []
        self.joined: list[Subscriber] = []
        self.reads: list[list[str]] = []
        self.learned: list[int] = []
        self.away = 0

    async def read(self, request_ids: Sequence[str]) -> Mapping[str, Answer]:
        """Answers of runs that are named after their user; another socket may connect meanwhile."""
        self.reads.append(list(request_ids))
        if self.newcomers:
            self.joined.append(await self.join(self.newcomers.pop()))
        if self.away:
            self.away -= 1
            raise UnavailableError
        return {
            run: Answer(run.partition("/")[2], f"answer of {run}") for run in request_ids if not run.startswith("gone")
        }

    async def learn(self, codec: Codec, schema_id: int) -> None:
        """The registry, which knows nothing else."""
        self.learned.append(schema_id)
        raise UnknownSchemaError(schema_id)

    def record(self, offset: int, run: str, user: str, status: str = "COMPLETED", *, of: str = "") -> RawRecord:
        """A record of the log."""
        event = {
            "id": f"{run}/{of or user}", "user_id": user, "status": status, "operation": "UPDATE", "attempt": 0, "at": 1,
            "ordinal": 1, "revision": 2, "waiting": False, "error": None,
        }  # fmt: skip
        return RawRecord(0, offset, user.encode(), self.codec.encode(TOPIC, event))


def published(subscriber: Subscriber) -> list[str]:
    """The ids of what waits for a socket."""
    messages: list[dict[str, Any]] = []
    while not subscriber.waiting.empty():
        messages.append(json.loads(subscriber.waiting.get_nowait()))
    return [message["id"] for message in messages]


def at(*offsets: int) -> list[str]:
    """Ids of a partition."""
    return [f"{TOPIC}/0/{offset}" for offset in offsets]


@pytest.fixture(autouse=True)
def one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user's partition is the first."""
    monkeypatch.setattr(query_stream, "partition_of", lambda _user: 0)


async def test_who_comes_while_a_batch_waits_for_its_answers_is_told_of_all_of_it():
    """This includes a record without listeners at the time when the batch was read."""
    hub = Hub()
    ada = await hub.join(ADA)
    hub.newcomers, hub.away = [BOB], 1
    await hub._tell([hub.record(0, "b", BOB), hub.record(1, "a", ADA), hub.record(2, "c", BOB)])
    assert published(ada) == at(1)
    assert published(hub.joined[0]) == at(0, 2)
    assert hub._places[0] == 3


async def test_a_batch_asks_once_and_of_those_who_listen_only():
    """One read per batch; records without a listener are not even decoded."""
    hub = Hub()
    ada = await hub.join(ADA)
    await hub._tell([hub.record(0, "a", ADA), RawRecord(0, 1, BOB.encode(), b"?"), hub.record(2, "b", ADA)])
    assert (published(ada), hub.reads) == (at(0, 2), [[f"a/{ADA}", f"b/{ADA}"]])


async def test_what_cannot_be_told_is_left_out():
    """A missing run, another user's run under this key, invalid bytes, an unknown schema."""
    hub = Hub()
    ada = await hub.join(ADA)
    unknown = b"\x00\x00\x00\x00\x09rest"
    await hub._tell(
        [
            hub.record(0, "gone", ADA),
            hub.record(1, "a", ADA, of=BOB),
            RawRecord(0, 2, ADA.encode(), b"?"),
            RawRecord(0, 3, ADA.encode(), unknown),
            hub.record(4, "a", ADA, "ANALYZED"),
            hub.record(5, "b", ADA),
        ]
    )
    assert (published(ada), hub.learned, hub._places[0]) == (at(5), [9], 6)


async def test_what_a_socket_knows_already_is_not_told_again():
    """A socket that resumed beyond the live end takes up behind what it knows."""
    hub = Hub()
    ada = await hub.join(ADA)
    ada.next_offset = 2
    await hub._tell([hub.record(1, "a", ADA), hub.record(2, "b", ADA), hub.record(3, "b", ADA)])
    assert published(ada) == at(2)


async def test_a_reader_that_is_too_slow_is_closed_and_told_nothing_more(monkeypatch: pytest.MonkeyPatch):
    """The first that finds no room ends it, so that nothing is left out before what follows."""
    monkeypatch.setattr(query_stream, "WAITING_MAX", 2)
    hub = Hub()
    ada = await hub.join(ADA)
    await hub._tell([hub.record(offset, f"r{offset}", ADA) for offset in range(3)])
    assert ada.closed.result()[0] == 1013
    assert published(ada) == at(0, 1)
    await hub._tell([hub.record(3, "late", ADA)])
    assert published(ada) == []

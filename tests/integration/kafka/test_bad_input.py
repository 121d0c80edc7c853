"""Bad input, sent as strangers send it, between good events: each has its one named outcome, and the good are all stored."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from highwater.api.dashboard.tails import Tail
from highwater.api.dead_letters.reading import LetterBox
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.outbox import Relay
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.slices import ERASURE
from highwater.schemas.avro_files import schema_text
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import to_ms
from tests.conftest import Stack
from tests.integration.commands import run, tail
from tests.integration.connecting import Reader, fresh, running, send, surroundings, until

INGESTED = "feeds.insight-ingested"
DIMENSIONS = 384
STORED, IGNORED = "stored", "ignored"


@dataclass
class Product:
    """The two sinks and a relay, running."""

    stack: Stack
    context: ProcessContext
    channel: str = field(default_factory=lambda: fresh("bad"))

    def insight(self, **more: Any) -> dict[str, Any]:
        """A good insight of this test's channel, except for the changed fields."""
        nothing = dict.fromkeys(("text", "url", "embedding", "embedding_model"))
        return {**nothing, "insight_id": fresh("i"), "channel_id": self.channel, "ts": 1_790_000_000_000, **more}

    def encode(self, event: dict[str, Any], topic: str = INGESTED) -> bytes:
        """Bytes on the wire."""
        return self.context.codec.encode(topic, event)

    async def insights(self) -> dict[str, int]:
        """Stored insights of the channel: id -> seq."""
        rows = await self.context.pool.fetch("SELECT insight_id, seq FROM insights WHERE channel_id = $1", self.channel)
        return {row["insight_id"]: row["seq"] for row in rows}


@pytest.fixture(scope="module")
async def sinks(stack: Stack) -> AsyncIterator[Product]:
    """The sinks for the module."""
    async with surroundings(stack) as context:
        producer = AsyncProducer(context.client, client_id="test")
        insights = InsightsSink(context.codec, context.clock, context.pool, dimensions=DIMENSIONS)
        users = UsersSink(context.codec, context.clock, ERASURE, dimensions=DIMENSIONS)
        try:
            async with running(
                BatchConsumer(insights, context), BatchConsumer(users, context), Relay(stack.database, producer)
            ):
                yield Product(stack, context)
        finally:
            await producer.close()


@pytest.fixture
def product(sinks: Product) -> Product:
    """The running sinks with a channel of the test's own."""
    return Product(sinks.stack, sinks.context)


def vector(number: float, count: int = DIMENSIONS) -> bytes:
    """Little-endian float32, all alike."""
    return struct.pack(f"<{count}f", *[number] * count)


def with_text(good: bytes, placeholder: bytes, raw: bytes) -> bytes:
    """The event with other bytes, of the same length, in the place of a text."""
    assert len(placeholder) == len(raw)
    return good.replace(placeholder, raw)


def wire(schema_id: int, body: bytes) -> bytes:
    """Magic byte, id, body."""
    return struct.pack(">bI", 0, schema_id) + body


CASES: dict[str, Any] = {
    "bytes that are not Avro": (lambda p: b"hello", "not_wire_format"),
    "JSON": (lambda p: b'{"insight_id": "i"}', "not_wire_format"),
    "Avro cut short": (lambda p: p.encode(p.insight(text="long enough"))[:-8], "not_avro"),
    "an unknown schema id": (lambda p: wire(987_654, b"\x02a"), "unknown_schema_id"),
    "the largest schema id": (lambda p: wire(2**32 - 1, b"\x02a"), "unknown_schema_id"),
    "a schema of another subject": (lambda p: p.encode({"number": 1, "now": 2}, "streams.tick"), "not_avro"),
    "NaN in an embedding": (lambda p: p.encode(p.insight(embedding=vector(math.nan))), "bad_embedding"),
    "an embedding of another dimension": (lambda p: p.encode(p.insight(embedding=vector(1, 3))), "bad_embedding"),
    "an empty id": (lambda p: p.encode(p.insight(insight_id="")), "empty_id"),
    "a text of 5 MB": (lambda p: p.encode(p.insight(text="x" * 5_000_000)), "too_long"),
    "a NUL in a text": (lambda p: p.encode(p.insight(text="a\x00b")), "control_character"),
    "a NUL in an id": (lambda p: p.encode(p.insight(insight_id="a\x00b")), "control_character"),
    "invalid UTF-8": (lambda p: with_text(p.encode(p.insight(text="QQQQ")), b"QQQQ", b"\xff\xfe\xfd\xfc"), "not_avro"),
    "a tombstone": (lambda p: None, "empty_value"),
    "a year beyond the calendar": (lambda p: p.encode(p.insight(ts=2**62)), "time_out_of_range"),
    "a time in 1970": (lambda p: p.encode(p.insight(ts=1)), STORED),
    "a time in 2100": (lambda p: p.encode(p.insight(ts=4_102_444_800_000)), STORED),
    "minus infinity": (lambda p: p.encode(p.insight(ts=-62_135_596_800_000)), "time_out_of_range"),
    "the first moment after it": (lambda p: p.encode(p.insight(ts=-62_135_596_799_999)), STORED),
    "the last moment of the calendar": (lambda p: p.encode(p.insight(ts=253_402_300_799_999)), STORED),
    "a vector": (lambda p: p.encode(p.insight(embedding=vector(0.5), embedding_model="m")), STORED),
    "no text at all": (lambda p: p.encode(p.insight(text="")), STORED),
}


@pytest.mark.parametrize("name", CASES)
async def test_each_has_one_outcome(product: Product, name: str):
    """A bad event is dead-lettered by name with its own bytes, an odd one is stored, and both neighbours are stored."""
    make, outcome = CASES[name]
    value = make(product)
    before, after = product.insight(), product.insight()
    records = [(b"k", v, None, 3) for v in (product.encode(before), value, product.encode(after))]
    with Reader(product.stack.kafka, f"{INGESTED}.dlq") as dead:
        _, place, _ = send(product.stack.kafka, INGESTED, records)
        wanted = 3 if outcome == STORED else 2

        async def stored() -> bool:
            return len(await product.insights()) == wanted

        await until(stored, f"{wanted} are stored")
        found = await product.insights()
        assert {before["insight_id"], after["insight_id"]} <= set(found)
        assert sorted(found.values()) == list(range(1, wanted + 1))
        letters = await dead.until(lambda m: origin(m) == str(place), 0 if outcome == STORED else 1, "its dead letter")
    assert [(outcome, b"k", value)] * (outcome != STORED) == [(why(m), m.key(), m.value()) for m in letters]


def origin(letter: Message) -> str:
    """Where a dead letter comes from."""
    return dict(letter.headers())["dlq_origin"].decode()


def why(letter: Message) -> str:
    """Its reason."""
    return dict(letter.headers())["dlq_reason"].decode()


async def test_times_are_stored_as_told(product: Product):
    """1970 and 2100 are returned to the millisecond."""
    times = {fresh("t"): ts for ts in (1, 4_102_444_800_123, -5_000)}
    send(
        product.stack.kafka,
        INGESTED,
        [(b"k", product.encode(product.insight(insight_id=i, ts=ts))) for i, ts in times.items()],
    )

    async def stored() -> dict[str, int]:
        rows = await product.context.pool.fetch(
            "SELECT insight_id, ts FROM insights WHERE channel_id = $1", product.channel
        )
        return {row["insight_id"]: to_ms(row["ts"]) for row in rows} if len(rows) == 3 else {}

    assert times == await until(stored, "all three")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_any_compression_is_read(product: Product, compression: str):
    """Batches of each codec are stored."""
    ids = [fresh("z") for _ in range(50)]
    records = [(b"k", product.encode(product.insight(insight_id=i, text="again and again " * 20))) for i in ids]
    send(product.stack.kafka, INGESTED, records, **{"compression.type": compression, "linger.ms": 50})

    async def stored() -> bool:
        return set(await product.insights()) == set(ids)

    await until(stored, "all are stored")


async def test_what_was_sent_compressed_may_be_huge(product: Product):
    """A text of 20 MB that fits the broker compressed is dead-lettered by its origin, and the relay continues."""
    value = product.encode(product.insight(text="x" * 20_000_000))
    with Reader(product.stack.kafka, f"{INGESTED}.dlq") as dead:
        (place,) = send(product.stack.kafka, INGESTED, [(b"k", value)], **{"compression.type": "zstd"})
        (letter,) = await dead.until(lambda m: origin(m) == str(place), 1, "its dead letter")
        (after,) = send(product.stack.kafka, INGESTED, [(b"k", b"bad")])
        await dead.until(lambda m: origin(m) == str(after), 1, "one after it")
    assert (why(letter), letter.key(), letter.value()) == ("too_long", b"k", None)
    assert str(len(value) + 1).encode() == dict(letter.headers())["dlq_omitted_bytes"]


async def test_a_known_id_changes_nothing_and_a_borrowed_one_is_refused(product: Product):
    """A duplicate leaves the first as it is and no gap; the same id in another channel is dead-lettered by name."""
    first = product.insight(text="first")
    other = fresh("other")
    borrowed = product.encode({**first, "channel_id": other})
    with Reader(product.stack.kafka, f"{INGESTED}.dlq") as dead:
        places = send(
            product.stack.kafka,
            INGESTED,
            [
                (b"k", value, None, 1)
                for value in (
                    product.encode(first),
                    product.encode({**first, "text": "second"}),
                    borrowed,
                    product.encode(product.insight(insight_id="last-" + product.channel)),
                )
            ],
        )
        (letter,) = await dead.until(lambda m: origin(m) == str(places[2]), 1, "the borrowed id")
    assert ("insight_id_in_other_channel", borrowed) == (why(letter), letter.value())
    assert {first["insight_id"]: 1, "last-" + product.channel: 2} == await product.insights()
    text = await product.context.pool.fetchval("SELECT text FROM insights WHERE insight_id = $1", first["insight_id"])
    assert text == "first"
    assert await product.context.pool.fetchval("SELECT current_seq FROM channels WHERE channel_id = $1", other) in (
        0,
        None,
    )


async def test_odd_but_good_events_of_users(product: Product):
    """Leaving a channel without a subscription, and an unknown plan, are stored; the sink continues."""
    user = fresh("u")
    kafka, encode = product.stack.kafka, product.encode
    gone = {"user_id": user, "channel_id": product.channel, "subscribed": False, "ts": 1}
    send(kafka, "feeds.subscription-changed", [(user, encode(gone, "feeds.subscription-changed"))])
    plan = {"user_id": user, "plan": "platinum", "ts": 1}
    send(kafka, "feeds.plan-changed", [(user, encode(plan, "feeds.plan-changed"))])
    query = "SELECT plan FROM user_stats WHERE user_id = $1 AND plan <> 'free'"
    assert await until(lambda: product.context.pool.fetchval(query, user), "the plan") == "platinum"
    have = "SELECT count(*) FROM subscriptions WHERE user_id = $1 AND subscribed"
    assert await product.context.pool.fetchval(have, user) == 0


async def test_kcat_with_its_default_partitioner(product: Product):
    """Events sent by kcat, or by librdkafka with its CRC32 partitioner, are stored from any partition."""
    channels = [fresh("crc") for _ in range(12)]
    values = [(c, product.encode(product.insight(channel_id=c))) for c in channels]
    if shutil.which("kcat"):
        for channel, value in values:
            command = ["kcat", "-b", product.stack.kafka, "-P", "-t", INGESTED, "-k", channel, "-D", "\x1e\x1f\x1e"]
            await asyncio.to_thread(subprocess.run, command, input=value, timeout=20, check=True)
    else:
        send(product.stack.kafka, INGESTED, values, partitioner="consistent_random")
    query = "SELECT count(*) FROM insights WHERE channel_id = ANY ($1::text[])"

    async def stored() -> bool:
        return bool(await product.context.pool.fetchval(query, channels) == len(channels))

    await until(stored, "all are stored")


async def test_headers_may_be_anything(product: Product):
    """Null, binary and repeated headers travel with a dead letter and stop nothing."""
    headers = [("h", None), ("h", b"\xff\xfe"), ("ce_id", b"\x00"), ("ce_causedby", b"nonsense"), ("", b"1")]
    with Reader(product.stack.kafka, f"{INGESTED}.dlq") as dead:
        (place,) = send(product.stack.kafka, INGESTED, [(None, b"bad", headers)])
        (letter,) = await dead.until(lambda m: origin(m) == str(place), 1, "its dead letter")
    assert letter.key() is None
    expected = [("h", b""), ("h", b"\xff\xfe"), ("ce_id", b"\x00"), ("ce_causedby", b"nonsense"), ("", b"1")]
    assert expected == letter.headers()[:5]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="only kcat writes a header name that is no text")
async def test_a_header_name_that_is_no_text(product: Product):
    """A header whose name is not UTF-8 stops nothing: the events around it are stored."""
    good = product.insight()
    command = ["kcat", "-b", product.stack.kafka, "-P", "-t", INGESTED, "-p", "2", "-H", b"\xff\xfe=x"]
    with contextlib.suppress(subprocess.CalledProcessError):
        await asyncio.to_thread(subprocess.run, command, input=b"bad", timeout=20, check=True)
    send(product.stack.kafka, INGESTED, [(b"k", product.encode(good), None, 2)])
    await until(product.insights, "the good one is stored")


# A count of four quintillion items that take no bytes: 38 bytes, and a reader that believes it never ends.
ENDLESS = {"type": "array", "items": "null"}
COUNT = b"\x80\x80\x80\xd9\xd3\xb3\xed\x82o"


@contextlib.contextmanager
def hostile_schema(stack: Stack, of: str) -> Iterator[int]:
    """The id of a schema that the registry accepts: of a foreign subject, or a version of our schema with such a field."""
    with SchemaRegistryClient({"url": stack.schema_registry, "timeout": 10}) as client:
        subject, schema = fresh("foreign"), json.dumps(ENDLESS)
        if of == "ours":
            later = json.loads(schema_text(TOPICS[INGESTED].schema))
            later["fields"].insert(0, {"name": "more", "type": ENDLESS, "default": []})
            subject, schema = TOPICS[INGESTED].subject, json.dumps(later)
        try:
            yield client.register_schema(subject, Schema(schema, "AVRO"))
        finally:  # other tests read the latest version of our schema
            client.delete_version(subject, client.get_latest_version(subject).version)


@pytest.mark.parametrize("of", ["somebody", "ours"])
async def test_an_endless_record_stops_nobody(product: Product, environment: dict[str, str], of: str):
    """It is dead-lettered by name, its neighbours are stored, and `tail`, `replay`, `dlq` and the topic's page answer."""
    with hostile_schema(product.stack, of) as schema_id, Reader(product.stack.kafka, f"{INGESTED}.dlq") as dead:
        value = wire(schema_id, COUNT).ljust(38, b"\0")
        before, after = product.insight(), product.insight()
        records = [(b"k", v, None, 3) for v in (product.encode(before), value, product.encode(after))]
        first, place, last = send(product.stack.kafka, INGESTED, records)

        async def stored() -> bool:
            return len(await product.insights()) == 2

        await until(stored, "both neighbours are stored")
        (letter,) = await dead.until(lambda m: origin(m) == str(place), 1, "its dead letter")
        assert ("unsafe_schema", value) == (why(letter), letter.value())
        whole = await asyncio.to_thread(letter_shown, product.stack, letter)
        assert (whole["as_written"], whole["reason"]) == (None, "unsafe_schema")
        page = Tail(INGESTED, product.context.client, product.stack.schema_registry)
        page.start()
        try:
            found = await until(
                lambda: [one for one in page.records() if one.record.position == place], "the page has it"
            )
        finally:
            await page.close()
        assert "items that take no bytes" in found[0].text
        if of == "ours":  # replay reads into every version of the subject
            await asyncio.gather(
                asyncio.to_thread(tail_shows, environment, place, value),
                asyncio.to_thread(replay_writes, environment, first.offset, last.offset + 1, value),
            )


def tail_shows(environment: dict[str, str], place: Position, value: bytes) -> None:
    """`tail` shows the record with its reason and its bytes."""
    (one,) = [record for record in tail(environment, INGESTED, 5) if record["position"] == str(place)]
    assert "items that take no bytes" in one["undecodable"]
    assert base64.b64encode(value).decode() == one["bytes_base64"]


def replay_writes(environment: dict[str, str], begin: int, end: int, value: bytes) -> None:
    """`replay` writes the events around it, and the record with its bytes."""
    done = run(environment, "replay", INGESTED, "--from", f"3/{begin}", "--to", f"3/{end}")
    lines = [line for line in map(json.loads, done.stdout.splitlines()) if line["partition"] == 3]
    assert ["undecodable" not in line for line in lines] == [True, False, True], done.stderr
    assert base64.b64encode(value).decode() == lines[1]["bytes_base64"]


def letter_shown(stack: Stack, message: Message) -> dict[str, Any]:
    """A dead letter as `dlq show` and its page have it."""
    box = LetterBox(stack.settings().kafka_client(), Registry(stack.schema_registry))
    letters = box.letters([TOPICS[INGESTED]], only=message.offset())
    (found,) = [letter for letter in letters if letter.record.partition == message.partition()]
    return box.shown(found)

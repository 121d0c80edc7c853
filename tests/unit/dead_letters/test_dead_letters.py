"""Dead letters: what is reported about them, what is sent when they are redriven, and the recorded trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from highwater.api.dead_letters.handling import Handler, planned_edit, replaced_bytes
from highwater.api.dead_letters.letter import (
    Action,
    Handling,
    Letter,
    RefusedLetterError,
    apply_edit,
    changes_between,
    dead_letters_of,
    handling_of,
    hex_lines,
    plan_sending,
)
from highwater.api.dead_letters.reading import schema_id_of
from highwater.connectors.kafka.records import Record
from highwater.schemas.avro_files import examples
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import caused_by, header
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.json_events import event_to_json
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS

NOW_MS = 1_790_000_000_000
HANDLED = "streams.dead-letter-handled"
ORIGIN = ("dlq_origin", b"feeds.user-active/2/7")
PARTITIONS = {"feeds.user-active": 8, HANDLED: 1}
CODEC = Codec({"feeds.user-active": 7, HANDLED: 8, "streams.tick": 9})


def letter(*headers: tuple[str, bytes], value: bytes | None = b"v", offset: int = 3, handled: Any = ()) -> Letter:
    """A dead letter with these headers."""
    record = Record("feeds.user-active.dlq", 0, offset, NOW_MS, b"\xffk", value, list(headers))
    return Letter(record, tuple(handled))


def deed(action: Action = Action.REDRIVEN) -> Handling:
    """Something that was done with the letter."""
    return Handling(Position("feeds.user-active.dlq", 0, 3), action, None, "ada", None, NOW_MS)


class Producer:
    """Accepts and remembers everything; records for a topic in `failing` are not acknowledged."""

    def __init__(self, *failing: str) -> None:
        self.taken: list[tuple[str, bytes | None, Any, int | None]] = []
        self.failing = failing

    async def enqueue(
        self, topic: str, value: bytes | None, *, key: Any, headers: Any = None, partition: int | None = None
    ) -> asyncio.Future[Any]:
        """As the real one."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if topic in self.failing and self.taken:
            future.set_exception(UnavailableError("Kafka is away"))
            return future
        self.taken.append((topic, value, headers, partition))
        future.set_result(Position(topic, partition or 0, len(self.taken)))
        return future

    def published(self) -> list[dict[str, Any]]:
        """The events of the traces."""
        return [CODEC.decode(HANDLED, value) for topic, value, _, _ in self.taken if topic == HANDLED]


def handler(producer: Any, **more: Any) -> Handler:
    """Ada at her terminal."""
    return Handler(producer, CODEC, more.pop("partitions", PARTITIONS), lambda: NOW_MS, by="ada@here", **more)


async def each(*letters: Letter) -> AsyncIterator[Letter]:
    """Letters as they are read."""
    for one in letters:
        yield one


def test_a_redriven_letter_is_as_it_was():
    """The headers of the dead-letter topic are removed; origin, sender, time and number of redrives are added."""
    planned = plan_sending(
        letter(("ce_id", b"1"), ("ce_type", b"t"), ("dlq_added", b"ce_type,ce_time"), ("dlq_reason", b"x"), ORIGIN),
        None,
        PARTITIONS,
        by="ada",
        now_ms=NOW_MS,
    )
    assert (planned.topic, planned.partition, planned.key, planned.value) == ("feeds.user-active", 2, b"\xffk", b"v")
    assert planned.headers == [
        ("ce_id", b"1"),
        ("dlq_redriven_from", b"feeds.user-active.dlq/0/3"),
        ("dlq_redriven_by", b"ada"),
        ("dlq_redriven_at", b"2026-09-21T14:13:20Z"),
        ("dlq_redrives", b"1"),
    ]


def test_what_comes_back_again_is_counted():
    """A letter whose event was redriven before shows how often, with any content of that header."""
    planned = plan_sending(letter(ORIGIN, ("dlq_redrives", b"2")), None, PARTITIONS, by="ada", now_ms=NOW_MS)
    assert header(planned.headers, "dlq_redrives") == "3"
    assert [letter(("dlq_redrives", text)).redrives for text in (b"", b"-1", b"1e9", b"9" * 40, "٣".encode())] == [
        0
    ] * 5


def test_a_letter_without_a_good_origin_has_none():
    """A missing, malformed or foreign origin is None; it is refused; bytes that are no text are shown as escapes."""
    for headers in ((), (("dlq_origin", b"nonsense"),), (("dlq_origin", b"somebody.elses/0/1"),)):
        assert letter(*headers).origin is None
        with pytest.raises(RefusedLetterError, match="does not name its origin"):
            plan_sending(letter(*headers), None, PARTITIONS, by="ada", now_ms=NOW_MS)
    assert letter().document()["key"] == "\\xffk"


def test_a_letter_without_its_bytes_is_no_tombstone():
    """An event that was too large for the letter is never sent as an empty value; a real tombstone is."""
    with pytest.raises(RefusedLetterError, match=r"9000000 bytes.*only at feeds.user-active/2/7"):
        plan_sending(letter(ORIGIN, ("dlq_omitted_bytes", b"9000000"), value=None), None, PARTITIONS, by="a", now_ms=0)
    assert plan_sending(letter(ORIGIN, value=None), None, PARTITIONS, by="a", now_ms=0).value is None


def test_a_topic_that_shrank_takes_it_by_its_key():
    """If the partition no longer exists, the partitioner decides."""
    assert plan_sending(letter(ORIGIN), None, {"feeds.user-active": 2}, by="a", now_ms=0).partition is None


async def test_a_redrive_is_traced():
    """Each letter that the broker accepted is published with its new position, reason, principal, time and cause."""
    producer = Producer()
    outcome = await handler(producer, note="mended").redrive(each(letter(ORIGIN, ("dlq_reason", b"x"))), again=False)
    assert outcome.redriven == [(Position("feeds.user-active.dlq", 0, 3), Position("feeds.user-active", 2, 1))]
    assert producer.published() == [
        {
            "topic": "feeds.user-active", "letter": "feeds.user-active.dlq/0/3", "action": "redriven", "count": 1,
            "position": "feeds.user-active/2/1", "reason": "x", "changed": [], "by": "ada@here", "note": "mended",
            "handled_at": NOW_MS,
        }
    ]  # fmt: skip
    assert caused_by(producer.taken[1][2]) == Position("feeds.user-active.dlq", 0, 3)


async def test_what_was_sent_before_is_left_alone():
    """A letter that was redriven or edited is sent only with `again`; one beside it that was not is sent."""
    letters = [letter(ORIGIN, handled=[deed(one)]) for one in (Action.REDRIVEN, Action.EDITED)]
    fresh = letter(ORIGIN, offset=4)
    outcome = await handler(Producer()).redrive(each(*letters, fresh), again=False)
    assert ([old.offset for old, _ in outcome.redriven], dict(outcome.skipped)) == ([4], {"sent_before": 2})
    assert len((await handler(Producer()).redrive(each(*letters, fresh), again=True)).redriven) == 3


async def test_what_cannot_be_sent_is_counted_and_the_rest_is_sent():
    """Letters without origin or bytes do not block others."""
    omitted = letter(ORIGIN, ("dlq_omitted_bytes", b"9"), value=None)
    outcome = await handler(Producer()).redrive(each(letter(), omitted, letter(ORIGIN)), again=False)
    assert (len(outcome.redriven), len(outcome.refused)) == (1, 2)
    assert dict(outcome.skipped) == {"without_origin": 1, "without_bytes": 1}


async def test_what_the_broker_took_is_told_though_it_did_not_take_all():
    """A redrive that fails in the middle leaves the traces of the sent letters, and reports their number."""
    producer = Producer("feeds.user-active")
    with pytest.raises(UnavailableError, match="1 dead letter was sent again"):
        await handler(producer).redrive(each(letter(ORIGIN), letter(ORIGIN, offset=4)), again=False)
    assert [event["letter"] for event in producer.published()] == ["feeds.user-active.dlq/0/3"]


async def test_a_reading_that_fails_leaves_the_traces_of_what_was_sent():
    """Letters that were sent before reading was interrupted are still recorded."""
    producer = Producer()

    async def broken() -> AsyncIterator[Letter]:
        yield letter(ORIGIN)
        raise UnavailableError("Kafka sent nothing")

    with pytest.raises(UnavailableError, match="Kafka sent nothing"):
        await handler(producer).redrive(broken(), again=False)
    assert len(producer.published()) == 1


def test_nothing_is_done_where_no_trace_can_be_left():
    """A broker without the topic of traces is reported before anything is sent."""
    with pytest.raises(UnavailableError, match="highwater init"):
        handler(Producer(), partitions={"feeds.user-active": 8})


async def test_an_edit_is_checked_keyed_and_traced():
    """The edited event goes where its key belongs, with the changed fields in header and trace."""
    event = {"user_id": "ada", "ts": 1000}
    mended = planned_edit(letter(ORIGIN), event_to_json("feeds.user-active", event), {"user_id": "x"}, CODEC, 384)
    assert (mended.key, mended.changed) == (b"ada", ("user_id", "ts"))
    assert CODEC.decode("feeds.user-active", mended.value) == event
    producer = Producer()
    await handler(producer).edit(letter(ORIGIN, ("ce_id", b"1")), mended)
    topic, _, headers, partition = producer.taken[0]
    assert (topic, partition) == ("feeds.user-active", None)
    assert (header(headers, "dlq_edited"), header(headers, "ce_id")) == ("user_id,ts", f"1-edited-{NOW_MS}")
    told = producer.published()[0]
    assert (told["action"], told["changed"]) == ("edited", ["user_id", "ts"])


@pytest.mark.parametrize(
    ("document", "field"),
    [({"user_id": "ada"}, "ts"), ({"user_id": "", "ts": 0}, "user_id"), ({"user_id": "a", "ts": 0, "no": 1}, "no")],
)
def test_an_edit_that_would_come_back_is_refused(document: dict[str, Any], field: str):
    """Schema and rules of the topic hold for an edited event; the field is named."""
    with pytest.raises(InvalidEventError) as refused:
        planned_edit(letter(ORIGIN), document, {}, CODEC, 384)
    assert refused.value.field == field


def test_an_edit_of_another_key_is_a_change():
    """A key that did not fit its event is corrected with it, and that is reported; a topic without a key field keeps its own."""
    document = {"user_id": "ada", "ts": "2020-01-01T00:00:00Z"}
    assert planned_edit(letter(ORIGIN), document, document, CODEC, 384).changed == ("key",)
    tick = Letter(Record("streams.tick.dlq", 0, 1, NOW_MS, b"k", b"v", []))
    assert planned_edit(tick, examples("streams/Tick.v1")[0], {}, CODEC, 384).key == b"k"


def test_raw_bytes_are_sent_as_they_are():
    """Replaced bytes keep the key, and so the partition, and are not judged."""
    mended = replaced_bytes(letter(ORIGIN), b"anything")
    planned = plan_sending(letter(ORIGIN), mended, PARTITIONS, by="ada", now_ms=NOW_MS)
    assert (planned.partition, planned.value, header(planned.headers, "dlq_edited")) == (2, b"anything", "value")


def test_changes_are_told_by_field():
    """Set, changed and removed fields, and nothing else."""
    before = {"a": 1, "b": 2, "c": 3}
    after = apply_edit(before, [("b", 5), ("d", 6)], ["c"])
    assert after == {"a": 1, "b": 5, "d": 6}
    assert [(one.field, one.before, one.after) for one in changes_between(before, after)] == [
        ("b", 2, 5), ("d", None, 6), ("c", 3, None),
    ]  # fmt: skip


def test_a_deed_reads_back():
    """An event of the traces is decoded to its action; an unknown action is refused."""
    event = event_to_json(HANDLED, examples("streams/DeadLetterHandled.v1")[0])
    one = handling_of(event)
    assert (one.letter.offset, one.action, one.handled_at) == (41, Action.EDITED, NOW_MS)
    assert one.document()["position"] == "feeds.insight-ingested/3/9120"
    with pytest.raises(ValueError, match="burnt"):
        handling_of({**event, "action": "burnt"})


def test_either_name_means_the_dead_letter_topic():
    """A topic and its dead-letter topic name the same letters."""
    topic = TOPICS["feeds.user-active"]
    assert dead_letters_of(topic) == dead_letters_of(dead_letters_of(topic))


def test_bytes_are_shown_as_people_read_them():
    """Offset, hexadecimal and text; the rest beyond one screen is counted."""
    assert hex_lines(b"ab\x00" + b"x" * 20, bytes_max=16) == [
        "000000  61 62 00 78 78 78 78 78 78 78 78 78 78 78 78 78  ab.xxxxxxxxxxxxx",
        "… 7 more bytes",
    ]
    assert [schema_id_of(raw) for raw in (b"", b"\x00\x00\x00\x00\x09x", b"\x01\x00\x00\x00\x09")] == [None, 9, None]

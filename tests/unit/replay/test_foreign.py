"""Values of topics that the catalogue does not have: Avro, JSON and text as they are, other bytes with the reason."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import fastavro
import pyarrow.parquet as pq
import pytest

from highwater.connectors.kafka.foreign_values import UNKNOWN_SCHEMAS_MAX, ForeignValues
from highwater.connectors.kafka.registry import unknown_schema
from highwater.connectors.replay.counting import Counting
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.foreign import ForeignDecoder, decoder_of
from highwater.connectors.replay.running import Chooser
from highwater.connectors.replay.subject import source_of
from highwater.connectors.replay.table import table_of
from highwater.connectors.replay.text import documents, json_lines
from highwater.connectors.replay.writers import writer_of
from highwater.schemas.avro_files import schema_text
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.exact_json import read_json, write_json
from highwater.schemas.topics import all_topics, foreign_topic, is_topic_name
from tests.unit.replay.making import batch, encoded

ORDER = json.dumps({
    "type": "record", "name": "Order",
    "fields": [{"name": "text", "type": "string"}, {"name": "raw", "type": ["null", "bytes"], "default": None}],
})  # fmt: skip
VALUES = [b'{"n": 1, "at": {"x": "straw"}}', b"a plain text", b"\x00\xff\xfe\x01\x02", None, b"[2]", b"5"]


def values_of(schemas: Mapping[Any, str], asked: list[Any] | None = None) -> ForeignValues:
    """Values of a registry with these schemas; `asked` collects the requested ids."""

    def text_of(schema: int | UUID) -> str:
        if asked is not None:
            asked.append(schema)
        if schema not in schemas:
            raise unknown_schema(schema)
        return schemas[schema]

    return ForeignValues(text_of)


class Decoder(ForeignDecoder):
    """The decoder of an empty registry."""

    def _text_of(self, schema: int | UUID) -> str:
        raise unknown_schema(schema)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (encoded({"text": "a", "raw": b"\x01"}, ORDER, 9), {"text": "a", "raw": "AQ=="}),
        (encoded("plain", '"string"', 8), "plain"),
        (b'\x00\x00\x00\x00\x05{"n": 1}', {"n": 1}),
        (b'{"n": 1}', {"n": 1}),
        (b"null", None),
        ("Größe\t1\n".encode(), "Größe\t1\n"),
        (b"", ""),
    ],
)
def test_what_a_value_is_read_as(raw: bytes, value: Any) -> None:
    """Avro of a registered schema, JSON with and without a prefix of the registry, and text."""
    values = values_of({9: ORDER, 8: '"string"'})
    assert values.value(raw) == json.loads(values.json(raw)) == value


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\x00b", b"\x00\x00\x00\x00\x09\x01", b"\x00"])
def test_other_bytes_are_refused(raw: bytes) -> None:
    """Bytes that are no text, and those that do not fit the schema that they name."""
    for read in (values_of({9: ORDER}).value, values_of({9: ORDER}).json):
        with pytest.raises(InvalidEventError):
            read(raw)


GUID = UUID("0a52c5a1-63b4-4bb4-9a3b-94fe5b7a3f58")


@pytest.mark.parametrize("framed", [b"\0\0\0\0\x09", b"\1" + GUID.bytes])
def test_a_header_names_the_schema(framed: bytes) -> None:
    """By id or by GUID; the value has no prefix. One of which the registry has no schema is named, and never shown as text."""
    raw, headers = encoded({"text": "Harbour", "raw": None}, ORDER, 9)[5:], [("__value_schema_id", framed)]
    values = values_of({9: ORDER, GUID: ORDER})
    assert values.value(raw, headers) == json.loads(values.json(raw, headers)) == {"text": "Harbour", "raw": None}
    name = str(GUID) if framed[0] else "9"
    with pytest.raises(InvalidEventError, match=f"__value_schema_id names the schema with the (id|GUID) {name}"):
        values_of({}).value(b":Harbour", headers)
    assert values_of({}).value(b'{"text": "JSON Schema"}', headers) == {"text": "JSON Schema"}
    assert values_of({}).value(b"text", [("__value_schema_id", b"another application's")]) == "text"


# The second is shorter than a double of 16 digits, the third longer than an integer of 64 bits, the last a double as it is.
NUMBERS = ["73314510714175488", "23958446825181076828", "-9223372036854775809", "0.12345678901234567890123", "0.1"]


def test_numbers_keep_their_digits() -> None:
    """In lines, files, counts and searches; a condition compares them as doubles."""
    raw = ('{"n": [' + ", ".join(NUMBERS) + "]}").encode()
    decoded = Decoder(None).decode(batch([raw], topic="orders"))
    shown = {"lines": bytes(json_lines(decoded)).decode(), "column": decoded.column.to_pylist()[0]["json"]}
    assert {kind: [number for number in NUMBERS if number not in text] for kind, text in shown.items()} == {
        "lines": [],
        "column": [],
    }
    (document,) = documents(decoded)
    assert read_json(write_json(document["value"])) == document["value"]
    assert len(Chooser("orders", Decoder(None), Counts(), words=NUMBERS[1]).decoded(batch([raw]))) == 1
    assert len(Chooser("orders", Decoder(None), Counts(), condition="value.n[1] > 2.3e19").decoded(batch([raw]))) == 1
    counting = Counting("value.at.n", decoded.arrow_type, "orders", is_open=True)
    counting.add(Decoder(None).decode(batch([b'{"at": {"n": %s}}' % number.encode() for number in NUMBERS[1:4]])))
    assert {str(value) for value, _ in counting.top(9)} == set(NUMBERS[1:4])


def test_the_registry_is_not_asked_for_schemas_without_end() -> None:
    """Once for each, and no more after many that it does not have."""
    asked: list[int] = []
    values = values_of({}, asked)
    for schema_id in [*range(UNKNOWN_SCHEMAS_MAX * 2), 0, 1]:
        with pytest.raises(InvalidEventError):
            values.value(struct.pack(">bI", 0, schema_id) + b"\xff")
    assert asked == list(range(UNKNOWN_SCHEMAS_MAX))


def test_records_are_shown_chosen_and_searched_as_they_are() -> None:
    """A condition reads fields that no schema declares; a value without them has no answer and is left out."""
    shown = documents(Decoder(None).decode(batch(VALUES)))
    assert [one["value"] for one in shown] == [{"n": 1, "at": {"x": "straw"}}, "a plain text", None, None, [2], 5]
    assert [("undecodable" in one, one.get("bytes_base64")) for one in shown[2:4]] == [
        (True, "AP/+AQI="),
        (False, None),
    ]
    counts = Counts()
    chosen = Chooser("orders", Decoder(None), counts, condition="value.n == 1").decoded(batch(VALUES))
    assert [one["value"]["n"] for one in documents(chosen)] == [1]
    assert counts.unanswered > 0
    for words, count in (("STRAW", 1), ("plain", 1), ("nothing", 0)):
        assert len(Chooser("orders", Decoder(None), counts, words=words).decoded(batch(VALUES))) == count


def test_null_in_json_is_no_tombstone() -> None:
    """In lines and in `tail` it has its bytes; files have its text."""
    decoded = Decoder(None).decode(batch([b"null", None]))
    assert [(one["value"], one.get("bytes_base64")) for one in documents(decoded)] == [(None, "bnVsbA=="), (None, None)]
    assert [row and row["json"] for row in decoded.column.to_pylist()] == ["null", None]


def test_headers_of_one_name_are_all_shown() -> None:
    """As a list; a column of texts has the list as JSON, and a condition compares the last."""
    headers = [("a", b"1"), ("b", b"2"), ("a", b"3")]
    given = batch([b"1", b"2"], headers=[headers, None])
    decoded = Decoder(None).decode(given)
    assert [one["headers"] for one in documents(decoded)] == [{"a": ["1", "3"], "b": "2"}, {}]
    assert table_of(decoded)["headers"].to_pylist()[0] == [("a", '["1","3"]'), ("b", "2")]
    condition = "headers.a == '3' && headers.b == '2'"
    assert len(Chooser("orders", Decoder(None), Counts(), condition=condition).decoded(given)) == 1


def test_files_have_the_values_as_json() -> None:
    """Each format has the JSON; invalid values have their bytes."""
    written = {}
    for kind in ("jsonl", "csv", "parquet", "avro"):
        file = io.BytesIO()
        decoder = Decoder(None)
        with writer_of(kind, file, decoder) as writer:
            writer.write(decoder.decode(batch(VALUES)))
        written[kind] = file.getvalue()
    texts = ['{"n":1,"at":{"x":"straw"}}', '"a plain text"', None, None, "[2]", "5"]
    assert [json.loads(line)["value"] for line in written["jsonl"].splitlines()][4:] == [[2], 5]
    assert [row["value.json"] or None for row in csv.DictReader(io.StringIO(written["csv"].decode()))] == texts
    column = pq.read_table(io.BytesIO(written["parquet"])).column("value").to_pylist()
    assert [one and one["json"] for one in column] == texts
    rows: list[Any] = list(fastavro.reader(io.BytesIO(written["avro"])))
    assert [one["value"] and one["value"]["json"] for one in rows] == texts
    assert [one["bytes"] for one in rows] == [None, None, VALUES[2], None, None, None]


def test_a_topic_of_others_is_known_by_its_name_alone() -> None:
    """A name that Kafka does not permit is refused. All topics of the catalogue have a schema, also dead letters without
    records.
    """
    assert all(one.is_catalogued for one in all_topics())
    assert all(schema_text(source_of(one).schema) for one in all_topics())
    assert isinstance(decoder_of(foreign_topic("orders"), None), ForeignDecoder)
    assert [is_topic_name(one) for one in ("orders-1.v_2", "..", "a/b", "", "x" * 250)] == [
        True,
        False,
        False,
        False,
        False,
    ]

"""Events read at once and one by one: the same events, the same refusals."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.connectors.replay.decoding import Decoded
from highwater.connectors.replay.subject import merged_schema
from highwater.connectors.replay.text import json_lines
from highwater.schemas.avro_files import examples, schema_names
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_to_json
from highwater.schemas.topics import TOPICS
from tests.unit.replay.making import OWN_ID, TOPIC, batch, changed, decoder_of, encoded, insight, own_text

# Every flat type, plain and beside null, null first and last.
_KINDS: dict[str, Any] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=20),
    "bytes": st.binary(max_size=20),
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "boolean": st.booleans(),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
}
_TIMES = {"type": "long", "logicalType": "timestamp-millis"}


def _flat() -> str:
    fields: list[Any] = [{"name": "ts", "type": _TIMES}, {"name": "ts_or_null", "type": ["null", _TIMES]}]
    for kind in _KINDS:
        fields += [
            {"name": kind, "type": kind},
            {"name": f"{kind}_or_null", "type": ["null", kind]},
            {"name": f"null_or_{kind}", "type": [kind, "null"]},
        ]
    return json.dumps({"type": "record", "name": "Flat", "namespace": "t", "fields": fields})


FLAT = _flat()


def _value_of(name: str) -> Any:
    kind = "long" if name.startswith("ts") else name.removesuffix("_or_null").removeprefix("null_or_")
    return st.none() | _KINDS[kind] if "null" in name else _KINDS[kind]


EVENTS = st.lists(
    st.fixed_dictionaries({field["name"]: _value_of(field["name"]) for field in json.loads(FLAT)["fields"]}),
    min_size=1,
    max_size=12,
)


def flat_decoder():
    """A decoder whose topic has the flat schema."""
    decoder = decoder_of()
    subject = decoder._subject
    subject.schema = json.loads(FLAT)
    subject.versions[OWN_ID] = FLAT
    return type(decoder)(subject, at_once_min=1)


@settings(deadline=None)
@given(EVENTS)
def test_all_at_once_gives_what_one_by_one_gives(events: list[dict[str, Any]]):
    """Values, the Arrow column and the JSON lines are the same both ways, for any events."""
    values = [encoded(event, FLAT) for event in events]
    decoder = flat_decoder()
    at_once = decoder.decode(batch(values))
    assert at_once.made_column is not None, "the quick way was refused"
    one_by_one = Decoded(at_once.batch, at_once.arrow_type, {}, made_rows=[decoder.decode_one(v) for v in values])
    assert one_by_one.rows == at_once.rows
    assert one_by_one.column.equals(at_once.column)
    assert bytes(json_lines(one_by_one)) == bytes(json_lines(at_once))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(0, 5))
def test_any_bytes_give_an_event_or_a_reason(bodies: list[bytes], good: int):
    """With any bytes after the magic byte, nothing is raised and both ways agree on which records are events."""
    values = [struct.pack(">bI", 0, OWN_ID) + body for body in bodies]
    values.insert(min(good, len(values)), encoded(insight(text="fine"), own_text()))
    decoder = decoder_of()
    found = decoder.decode(batch(values))
    alone = [decoder.decode(batch([value])) for value in values]
    assert [one.rows[0] for one in alone] == found.rows
    assert sum(bool(one.problems) for one in alone) == len(found.problems)
    assert found.rows[min(good, len(bodies))]["text"] == "fine"
    json_lines(found)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_a_batch_of_one_kind_of_garbage_is_refused_as_its_records_are(body: bytes):
    """The quick way never takes for an event what the Avro library refuses."""
    values = [struct.pack(">bI", 0, OWN_ID) + body] * 3
    decoder = decoder_of()
    try:
        expected = decoder.decode_one(values[0])
    except InvalidEventError:
        expected = None
    assert decoder.decode(batch(values)).rows == [expected] * 3


@pytest.mark.parametrize("name", [topic for topic, entry in TOPICS.items() if entry.schema])
def test_every_topic_of_the_catalogue_is_read_as_tail_reads_it(name: str):
    """The examples of each schema are returned as JSON exactly as the API shows them."""
    events = examples(TOPICS[name].schema)
    found = decoder_of(name).decode(batch([encoded(event, own_text(name)) for event in events], topic=name))
    shown = [json.loads(line)["value"] for line in bytes(json_lines(found)).splitlines()]
    assert shown == [json.loads(json.dumps(event_to_json(name, event))) for event in events]
    assert found.column.type == found.arrow_type
    assert found.column.null_count == 0


def test_the_catalogue_was_covered():
    """The test above has something to read."""
    assert len(schema_names()) > 40


def test_three_versions_of_a_schema_in_one_topic():
    """An old event takes defaults, a newer one keeps the field that the catalogue does not know."""
    old = changed(own_text(), embedding_model=None, url=None)
    new = changed(own_text(), mood={"type": ["null", "string"], "default": None})
    decoder = decoder_of(versions={5: old, OWN_ID: own_text(), 9: new})
    values = [
        encoded(insight(text="1"), old, 5),
        encoded(insight(text="2", url="u"), own_text(), OWN_ID),
        encoded(insight(text="3", url="v", mood="glad"), new, 9),
    ]
    found = decoder.decode(batch(values))
    assert found.problems == {}
    assert [(row["text"], row["url"], row["mood"]) for row in found.rows] == [
        ("1", None, None),
        ("2", "u", None),
        ("3", "v", "glad"),
    ]
    assert found.column.field("mood").to_pylist() == [None, None, "glad"]


def test_fields_of_other_versions_follow_those_of_the_catalogue():
    """The newest version's form of a field counts, and a schema without a default cannot be read into."""
    one = changed(own_text(), mood={"type": ["null", "string"], "default": None}, odd={"type": "string"})
    two = changed(own_text(), depth={"type": "int", "default": 0})
    names = [field["name"] for field in merged_schema(own_text(), [one, two])["fields"]]
    assert names == [*[field["name"] for field in json.loads(own_text())["fields"]], "depth", "mood"]


def test_versions_that_are_not_decoded_add_nothing():
    """A version with an array of nulls has its records refused by name; the fields of the others are kept."""
    endless = changed(own_text(), more={"type": {"type": "array", "items": "null"}, "default": []})
    mood = changed(own_text(), mood={"type": ["null", _TIMES], "default": None})
    decoder = decoder_of(versions={5: mood, OWN_ID: own_text(), 9: endless, 10: "[" * 5_000, 11: '["null"]'})
    names = [field["name"] for field in decoder.schema["fields"]]
    assert names == [*[field["name"] for field in json.loads(own_text())["fields"]], "mood"]
    assert pa.types.is_timestamp(decoder.arrow_type.field("mood").type)
    values = [encoded(insight(mood=7), mood, 5), *(struct.pack(">bI", 0, n) + b"\0" * 20 for n in (9, 10, 11))]
    found = decoder.decode(batch(values))
    assert [row is None for row in found.rows] == [False, True, True, True]
    assert "items that take no bytes" in found.problems[1]
    assert "nested deeper" in found.problems[2]
    assert "is not a record" in found.problems[3]


def test_versions_that_are_too_much_together_add_what_fits():
    """Versions with hundreds of fields each: fields are added while the whole can still be decoded."""
    many = [
        changed(own_text(), **{f"f{v}_{n}": {"type": "int", "default": 0} for n in range(400)}) for v in range(3)
    ]  # fmt: skip
    decoder = decoder_of(versions={OWN_ID: own_text(), **dict(enumerate(many, start=20))})
    assert 900 < len(decoder.schema["fields"]) < 1_000


def test_tombstones_and_bad_bytes_stand_beside_events():
    """A tombstone has no value and no problem; bad bytes and unknown schemas have a reason."""
    values = [encoded(insight(), own_text()), None, b"", b"nonsense", encoded(insight(), own_text(), 99), b"\0\0\0\0\7"]
    found = decoder_of().decode(batch(values))
    assert [row is None for row in found.rows] == [False, True, True, True, True, True]
    assert sorted(found.problems) == [2, 3, 4, 5]
    assert "magic byte" in found.problems[3]
    assert "schema id 99" in found.problems[4]


@pytest.mark.parametrize("rest", [b"\0", b"x" * 300])
def test_bytes_left_over_are_no_event(rest: bytes):
    """Bytes after an event are noticed in a batch too, even if all have them."""
    value = encoded(insight(), own_text()) + rest
    found = decoder_of().decode(batch([value] * 3))
    assert sorted(found.problems) == [0, 1, 2]
    assert "left over" in found.problems[0]


def test_a_record_that_reaches_into_the_next_is_no_event():
    """Two values whose bytes together are two events, cut in the wrong place, are both invalid."""
    good = encoded(insight(text="long enough"), own_text())
    found = decoder_of().decode(batch([good[:-2], good]))
    assert sorted(found.problems) == [0]
    assert found.rows[1]["text"] == "long enough"


def test_a_selection_keeps_what_belongs_together():
    """Rows, columns, keys and reasons of the kept records only."""
    values = [encoded(insight(text="a"), own_text()), b"bad", encoded(insight(text="b"), own_text())]
    kept = decoder_of().decode(batch(values, keys=[b"0", b"1", b"2"])).only([1, 2])
    assert (kept.batch.keys, list(kept.problems), kept.rows[1]["text"]) == ([b"1", b"2"], [0], "b")
    assert kept.batch.offsets.tolist() == [101, 102]


def test_what_arrow_cannot_hold_becomes_a_problem():
    """Avro's int is not checked by its reader; beyond 32 bits it has no place in an int column."""
    text = changed(own_text(), depth={"type": "int", "default": 0})
    as_long = changed(own_text(), depth={"type": "long", "default": 0})
    decoder = decoder_of(versions={5: text})
    found = decoder.decode(batch([encoded(insight(depth=3), as_long, 5), encoded(insight(depth=2**40), as_long, 5)]))
    assert found.column.is_valid().to_pylist() == [True, False]
    assert list(found.problems) == [1]
    assert pa.types.is_int32(found.arrow_type.field("depth").type)
    assert TOPIC in TOPICS

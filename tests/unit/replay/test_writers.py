"""The four formats contain the same records, and a file is complete or absent."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from highwater.connectors.replay.output import whole_file
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.writers import FORMATS, writer_of
from tests.unit.replay.making import TOPIC, batch, decoder_of, encoded, insight, own_text

TEXTS = [
    "plain",
    "",
    None,
    'a "quote"',
    "back\\slash",
    "line\nand\rreturn\ttab",
    "\x00\x1f\x7f",
    "Ünïcödé 🌊 \u2028",
    ",;",
]
TIMES_MS = [0, 1, 999, 1_000, 1_700_000_000_123, 253_402_300_799_999, 86_400_000, 7, 8]


def batches() -> list[Batch]:
    """One that is read at once, and one with a tombstone, bad bytes, no key, a key that is not text, and headers."""
    good = [
        encoded(insight(text=text, ts=TIMES_MS[i], embedding=b"\x00\xff" if i % 2 else None), own_text())
        for i, text in enumerate(TEXTS)
    ]
    mixed: list[Any] = [good[0], None, b"garbage", good[3]]
    return [
        batch(good, times_ms=TIMES_MS, keys=[text.encode() if text is not None else None for text in TEXTS]),
        batch(
            mixed,
            keys=[None, b"k", b"\xff", b"k"],
            headers=[[("a", b"1"), ("a", b"2"), ("n", None)], None, [("b", b"\xff")], []],
        ),
    ]


def written(kind: str, decoder: Any = None) -> bytes:
    """The file of both batches."""
    file, decoder = io.BytesIO(), decoder or decoder_of()
    writer = FORMATS[kind](file, decoder)
    for one in batches():
        writer.write(decoder.decode(one))
    # The library closes what it wrote to; its bytes are kept.
    file.close = lambda: None  # type: ignore[method-assign]
    writer.close()
    return file.getvalue()


def expected() -> list[dict[str, Any]]:
    """The records as JSON documents."""
    return [json.loads(line) for line in written("jsonl").splitlines()]


def texts(line: dict[str, Any]) -> dict[str, str | None]:
    """The headers of a record as a column of texts has them: several of one name as JSON."""
    headers = line["headers"].items()
    return {name: orjson.dumps(one).decode() if isinstance(one, list) else one for name, one in headers}


def test_json_lines_say_everything_of_a_record():
    """Position, time, key, headers and value; a tombstone's value is null; an invalid event has its reason and its bytes."""
    lines = expected()
    assert [line["value"]["text"] for line in lines[: len(TEXTS)]] == TEXTS
    assert [line["key"] for line in lines[: len(TEXTS)]] == TEXTS
    assert lines[4] == {
        "topic": TOPIC,
        "partition": 3,
        "offset": 104,
        "timestamp": "2023-11-14T22:13:20.123Z",
        "key": "back\\slash",
        "headers": {},
        "value": {
            "insight_id": "i",
            "channel_id": "c",
            "ts": "2023-11-14T22:13:20.123Z",
            "text": "back\\slash",
            "url": None,
            "embedding": None,
            "embedding_model": None,
        },
    }
    assert lines[1]["value"]["embedding"] == "AP8="
    assert (lines[0]["timestamp"], lines[2]["timestamp"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.999Z")
    tombstone, garbage = lines[-3:-1]
    assert (tombstone["value"], "undecodable" in tombstone) == (None, False)
    assert (garbage["value"], garbage["key"], garbage["bytes_base64"]) == (None, "\\xff", "Z2FyYmFnZQ==")
    assert "magic byte" in garbage["undecodable"]
    assert lines[-4]["headers"] == {"a": ["1", "2"], "n": None}
    assert lines[-2]["headers"] == {"b": "\\xff"}


def test_parquet_keeps_avros_types_and_is_read_by_duckdb(tmp_path):
    """Times are times, bytes bytes; DuckDB gives what the JSON lines say, record by record."""
    path = tmp_path / "f.parquet"
    path.write_bytes(written("parquet"))
    value = pq.read_schema(path).field("value").type
    assert value.field("ts").type == pa.timestamp("ms", "UTC")
    assert pa.types.is_binary(value.field("embedding").type)
    rows = duckdb.sql(
        f'SELECT topic, partition, "offset", epoch_ms(timestamp), key, value.text, epoch_ms(value.ts), value IS NULL,'
        f" undecodable, bytes, value.embedding FROM '{path}'"
    ).fetchall()
    lines = expected()
    assert [row[:3] for row in rows] == [(line["topic"], line["partition"], line["offset"]) for line in lines]
    assert [row[3] for row in rows[: len(TIMES_MS)]] == TIMES_MS
    assert [row[6] for row in rows[: len(TIMES_MS)]] == TIMES_MS
    assert [row[4] for row in rows] == [line["key"] for line in lines]
    assert [row[5] for row in rows] == [(line["value"] or {}).get("text") for line in lines]
    assert [row[7] for row in rows] == [line["value"] is None for line in lines]
    assert [row[8] for row in rows] == [line.get("undecodable") for line in lines]
    assert rows[-2][9] == b"garbage"
    assert rows[1][10] == b"\x00\xff"
    assert [dict(one) for one in pq.read_table(path)["headers"].to_pylist()] == [texts(line) for line in lines]


def test_csv_keeps_null_and_empty_text_apart(tmp_path):
    """Every cell is that of the JSON lines; null is nothing, an empty text is in quotes."""
    raw = written("csv").decode()
    rows = list(csv.DictReader(io.StringIO(raw, newline="")))
    lines = expected()
    assert [row["offset"] for row in rows] == [str(line["offset"]) for line in lines]
    assert [row["timestamp"] for row in rows] == [line["timestamp"] for line in lines]
    assert [json.loads(row["headers"]) for row in rows] == [line["headers"] for line in lines]
    for name in ("text", "ts", "embedding", "channel_id"):
        assert [row[f"value.{name}"] for row in rows] == [(line["value"] or {}).get(name) or "" for line in lines]
    assert [row["bytes_base64"] for row in rows] == [line.get("bytes_base64") or "" for line in lines]
    path = tmp_path / "f.csv"
    path.write_text(raw, encoding="utf-8", newline="")
    import pyarrow.csv as pacsv

    read = pacsv.read_csv(
        path,
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
    )
    assert read["value.text"].to_pylist()[:3] == ["plain", "", None]


def test_avro_files_read_back():
    """The container holds each record under the event's own schema."""
    records = list(fastavro.reader(io.BytesIO(written("avro"))))
    lines = expected()
    assert [(one["partition"], one["offset"], one["key"]) for one in records] == [
        (line["partition"], line["offset"], line["key"]) for line in lines
    ]
    assert [(one["value"] or {}).get("text") for one in records] == [
        (line["value"] or {}).get("text") for line in lines
    ]
    assert [one["headers"] for one in records] == [texts(line) for line in lines]
    assert records[-2]["bytes"] == b"garbage"
    assert records[4]["timestamp"].timestamp() * 1000 == TIMES_MS[4]


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_replay_is_a_file_that_reads_back(kind: str, tmp_path):
    """No record gives an empty file of the format, not no file."""
    with whole_file(tmp_path / "f") as file:
        FORMATS[kind](file, decoder_of()).close()
    raw = (tmp_path / "f").read_bytes()
    if kind == "parquet":
        assert pq.read_metadata(tmp_path / "f").num_rows == 0
    elif kind == "avro":
        assert list(fastavro.reader(io.BytesIO(raw))) == []
    else:
        assert raw.count(b"\n") == (kind == "csv")


def test_nested_events_are_written_in_every_format(tmp_path):
    """Arrays of records are lists of structs in Parquet and JSON in CSV."""
    from highwater.schemas.avro_files import examples
    from highwater.schemas.topics import TOPICS

    topic = "chunks.chunk-changed"
    events = examples(TOPICS[topic].schema)
    decoder = decoder_of(topic)
    decoded = decoder.decode(batch([encoded(event, own_text(topic)) for event in events], topic=topic))
    found = {}
    for kind, make in FORMATS.items():
        with whole_file(tmp_path / kind) as file:
            writer = make(file, decoder)
            writer.write(decoded)
            writer.close()
        found[kind] = tmp_path / kind
    changes = [event["changes"] for event in events]
    assert [one["changes"] for one in pq.read_table(found["parquet"])["value"].to_pylist()] == changes
    assert [one["value"]["changes"] for one in fastavro.reader(io.BytesIO(found["avro"].read_bytes()))] == changes
    rows = csv.DictReader(io.StringIO(found["csv"].read_text(encoding="utf-8"), newline=""))
    assert [json.loads(row["value.changes"]) for row in rows] == changes


def names(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def break_off(path: Path, error: type[BaseException]) -> None:
    """Half a file, and then something happens."""
    with whole_file(path) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_replay_that_breaks_off_leaves_what_was_there(error: type[BaseException], tmp_path):
    """Nothing under the final name, nothing beside it; an older file stays as it was."""
    path = tmp_path / "out.jsonl"
    with pytest.raises(error):
        break_off(path, error)
    assert names(tmp_path) == []
    path.write_bytes(b"old")
    with pytest.raises(error):
        break_off(path, error)
    assert (names(tmp_path), path.read_bytes()) == (["out.jsonl"], b"old")


def test_a_file_is_not_there_under_its_name_before_it_is_whole(tmp_path):
    """A reader sees no file until it is complete."""
    path = tmp_path / "out.jsonl"
    with whole_file(path) as file:
        file.write(b"all")
        assert not path.exists()
    assert (names(tmp_path), path.read_bytes()) == (["out.jsonl"], b"all")


def test_a_link_stays_a_link(tmp_path):
    """The file that a link names is replaced, not the link."""
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_device_is_written_as_it_comes():
    """A full one says so; nothing is renamed onto it."""
    with whole_file(Path("/dev/null")) as file:
        file.write(b"x")
    with pytest.raises(OSError, match="No space left"), whole_file(Path("/dev/full")) as file:
        file.write(b"x")
    assert not Path("/dev/full").is_file()


def write_one(path: Path, kind: str, decoder: Any, decoded: Any) -> None:
    """One batch as the command writes it."""
    with whole_file(path) as file, writer_of(kind, file, decoder) as writer:
        writer.write(decoded)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_may_not_grow_is_removed(kind: str, tmp_path):
    """No room in the middle of a format leaves neither a part nor a complaint at exit."""
    decoder = decoder_of()
    text = os.urandom(3_000_000).hex()
    decoded = decoder.decode(batch([encoded(insight(text=text), own_text())]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_one(tmp_path / "out", kind, decoder, decoded)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == []


def test_memory_of_parquet_is_bounded_by_its_row_group(tmp_path):
    """Long texts are written long before a row group's number of rows is reached."""
    decoder = decoder_of()
    decoded = decoder.decode(batch([encoded(insight(text=os.urandom(500_000).hex()), own_text()) for _ in range(8)]))
    with whole_file(tmp_path / "f") as file:
        writer = FORMATS["parquet"](file, decoder)
        for _ in range(9):
            writer.write(decoded)
        writer.close()
    found = pq.read_metadata(tmp_path / "f")
    assert (found.num_rows, found.num_row_groups) == (72, 5)
    assert orjson.dumps(found.num_rows) == b"72"

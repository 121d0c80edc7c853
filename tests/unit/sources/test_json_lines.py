"""JSON lines as documents and chunks."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from highwater.connectors.sources.json_lines import JsonLines
from tests.unit.sources.origins import submitted


def lines(*said: Any) -> JsonLines:
    """The origin of these lines; bytes and None as they are."""
    return JsonLines(
        (n, row if isinstance(row, bytes | None) else json.dumps(row).encode()) for n, row in enumerate(said, 1)
    )


async def test_a_document_is_cut_by_its_media_type():
    """Its title stands above its headings; address and time are those of each chunk."""
    row = {"source_id": "faq", "text": "# Why\n\nso", "media_type": "text/markdown", "title": "FAQ", "url": "https://x"}
    chunks, ends, faults = await submitted(lines({**row, "published_at": "2024-05-01"}), asks_full=True)
    assert [(c["title"], c["content"], c["url"], c["published_at"]) for c in chunks] == [
        ("FAQ > Why", "so", "https://x", 1_714_521_600_000)
    ]
    assert (ends["faq"]["full"], faults) == (True, [])


async def test_chunks_are_handed_on_as_they_are():
    """A vector of numbers becomes float32, the text is not touched; ends come last and count."""
    row = {"source_id": "faq", "content": "  as it is\n", "embedding": [0.5, 1.0]}
    chunks, ends, faults = await submitted(lines({**row, "chunk_no": 7}, {**row, "chunk_no": 3, "embedding": None}))
    assert [("  as it is\n", array("f", [0.5, 1]).tobytes()), ("  as it is\n", None)] == [
        (c["content"], c["embedding"]) for c in chunks
    ]
    assert (ends["faq"]["expected_count"], ends["faq"]["full"], faults) == (2, False, [])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"{", "not_json"),
        (None, "too_long"),
        ([1], "not_an_object"),
        ({"text": "x"}, "empty_id"),
        ({"source_id": "a|b", "text": "x"}, "separator"),
        ({"source_id": "a"}, "wrong_type"),
        ({"source_id": "a", "text": "x", "colour": "red"}, "unknown_field"),
        ({"source_id": "a", "text": "x", "published_at": "soon"}, "not_a_time"),
        ({"source_id": "a", "chunk_no": 0}, "missing_field"),
        ({"source_id": "a", "chunk_no": -1, "content": "x"}, "bad_number"),
        ({"source_id": "a", "chunk_no": 0, "content": "x", "ns": "b"}, "unknown_field"),
        ({"source_id": "a", "chunk_no": 0, "content": "x", "embedding": [0.0]}, "bad_embedding"),
        (b'{"source_id": "a", "chunk_no": 0, "content": "x", "embedding": [NaN]}', "not_json"),
        (b'{"source_id": "a", "text": "\xff"}', "not_json"),
    ],
)
async def test_a_bad_line_is_named_and_the_others_are_handed_on(row, why):
    """Its number and the reason; a good source beside it comes through."""
    chunks, ends, faults = await submitted(lines({"source_id": "good", "text": "text"}, row))
    assert ([c["source_id"] for c in chunks], [fault.where for fault in faults]) == (["good"], ["line 2"])
    assert why in faults[0].why
    assert ends["good"]["expected_count"] == 1


async def test_a_file_that_ends_too_soon_makes_its_chunks_truncated():
    """The source is ended, with a mark that there was more."""

    def torn():
        yield 1, b'{"source_id": "a", "chunk_no": 0, "content": "x"}'
        raise EOFError("the file ended")

    origin = JsonLines(torn())
    _, ends, _ = await submitted(origin, asks_full=True)
    assert (ends["a"]["full"], ends["a"]["truncated"]) == (False, True)
    assert "the file ended" in str(origin.reading.why)


async def test_a_document_and_chunks_of_one_source_do_not_mix():
    """Whichever comes second is a fault; chunks that it interrupts are truncated."""
    document, chunk = {"source_id": "a", "text": "x"}, {"source_id": "a", "chunk_no": 0, "content": "y"}
    chunks, ends, faults = await submitted(lines(document, chunk), asks_full=True)
    assert ([c["content"] for c in chunks], ends["a"]["full"], len(faults)) == (["x"], True, 1)
    chunks, ends, faults = await submitted(lines(chunk, document), asks_full=True)
    assert ([c["content"] for c in chunks], ends["a"]["full"], len(faults)) == (["y"], False, 1)

"""The end event of a source, and the handling of documents that cannot be submitted."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence

import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.documents.reading import DocumentReader
from highwater.connectors.jobs.pptx_file import write_pptx
from highwater.connectors.sources.chunked import (
    Ending,
    Fault,
    Item,
    Piece,
    Reading,
    SourceDocument,
    Submission,
    Target,
    Whole,
    cut_all,
    ending,
)
from highwater.schemas.chunks import INGEST_FINISHED
from highwater.streams.documents.chunking import Chunk
from highwater.streams.jobs.layout import Deck, Slide
from tests.unit.sources.origins import NOW_MS, submitted


class Given:
    """An origin of these items."""

    identity = ("given",)

    def __init__(self, *items: Item, is_paged: bool = False, reading: Reading | None = None) -> None:
        self.items = items
        self.is_paged = is_paged
        self.reading = reading or Reading()

    async def documents(self) -> AsyncIterator[Item]:
        """The items."""
        for item in self.items:
            yield item

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """None."""
        return []


def said(end: dict[str, object]) -> tuple[object, object, object, object]:
    """The facts that decide an end."""
    return end["full"], end["truncated"], end["force"], end["expected_count"]


@given(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3))
def test_an_end_is_full_only_when_all_was_asked_for_and_read(asks_full, forces, is_whole, count):
    """R3.20: an incomplete end is never full or forced, but truncated, and force is for an empty source."""
    end = ending(asks_full=asks_full, forces=forces, is_whole=is_whole, count=count)
    assert end.full == (asks_full and is_whole)
    assert end.truncated is not is_whole
    assert not end.force or (end.full and forces and count == 0)
    assert end.force or not (end.full and forces and count == 0)


async def test_a_document_is_cut_and_ended_at_once():
    """Chunks are numbered from 0, carry the document's address and time, and the end counts them."""
    found = SourceDocument(
        "a.md", b"# One\n\nfirst\n\n# Two\n\nsecond\n", "text/markdown", url="https://x/a.md", published_at=7
    )
    chunks, ends, faults = await submitted(Given(found), asks_full=True)
    assert [(c["chunk_no"], c["title"], c["content"]) for c in chunks] == [(0, "One", "first"), (1, "Two", "second")]
    assert {(c["ingest_id"], c["ns"], c["slot"], c["url"], c["published_at"]) for c in chunks} == {
        ("i", "docs", "main", "https://x/a.md", 7)
    }
    assert said(ends["a.md"]) == (True, False, False, 2)
    assert (ends["a.md"]["ts"], ends["a.md"]["window"], faults) == (NOW_MS, None, [])


async def test_what_is_left_out_is_counted():
    """Of a file and of a text; a table keeps its title."""
    page, more = "---\nname: x\n---\n# One\n\n* [One](#one)\n\ntext\n", b"\nmore\n" * 20
    found = [
        SourceDocument("short", page.encode(), "text/markdown"),
        SourceDocument("long", page.encode() + more, "text/markdown"),
        SourceDocument("text", page, "text/markdown"),
        SourceDocument("table", b"word,count\n" + b"many,1\n" * 20, "text/csv", "Words"),
    ]
    items = [item async for item in cut_all(Given(*found).documents(), DocumentReader())]
    by_source = {item.found.source_id: item for item in items if isinstance(item, Whole)}
    expected = [("front_matter", "name: x"), ("contents", "* [One](#one)")]
    assert all(list(by_source[name].left_out) == expected for name in ("short", "long", "text"))
    assert {chunk.title for chunk in by_source["table"].chunks} == {"Words"}
    submission = Submission(Target("i", "docs", "main"), lambda *_: None, lambda: 0)
    submission.take(by_source["short"])
    assert submission.left_out == {"front_matter": 1, "contents": 1}
    (kept,) = [item async for item in cut_all(Given(found[0]).documents(), DocumentReader(), keeps_all=True)]
    assert isinstance(kept, Whole)
    assert (list(kept.left_out), "name: x" in kept.chunks[0].content) == ([], True)


async def test_a_title_beside_a_text_stands_above_its_headings():
    """An issue's title is the outermost heading; one without a text is a chunk of its own."""
    items = (
        SourceDocument("1", "## Why\n\nbecause", "text/markdown", "Broken\n pipe"),
        SourceDocument("2", "", "text/markdown", "Only this"),
    )
    chunks, ends, faults = await submitted(Given(*items))
    assert [(c["title"], c["content"]) for c in chunks] == [("Broken pipe > Why", "because"), (None, "Only this")]
    assert (faults, len(ends)) == ([], 2)


async def test_a_text_that_mentions_a_format_is_still_text():
    """`%PDF-` in a text that came as text makes it no PDF; in a file it does."""
    items = (
        SourceDocument("1", "A file begins with %PDF-1.7.", "text/markdown"),
        SourceDocument("2", b"A file begins with %PDF-1.7.", "text/plain"),
    )
    chunks, ends, faults = await submitted(Given(*items))
    assert [c["source_id"] for c in chunks] == ["1"] == list(ends)
    assert [fault.source_id for fault in faults] == ["2"]
    assert "not a readable PDF" in faults[0].why


async def test_slides_are_read_in_a_process_of_their_own():
    """A deck's slides are chunks under their titles; a file that only says that it is one is a fault and ends nothing."""
    deck = write_pptx(Deck("Streams", (Slide("Logs", ("A log is ordered.",), "Say so."),)))
    media_type = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
    items = (SourceDocument("a.pptx", deck, media_type), SourceDocument("b.pptx", b"PK\x03\x04 no archive", media_type))
    chunks, ends, faults = await submitted(Given(*items))
    assert (chunks[-1]["title"], "A log is ordered." in chunks[-1]["content"]) == ("Logs", True)
    assert (list(ends), [fault.where for fault in faults]) == (["a.pptx"], ["b.pptx"])


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({}, {}),
        ({"asks_full": True}, {"a": (True, False, False, 0)}),
        ({"asks_full": True, "forces": True}, {"a": (True, False, True, 0)}),
    ],
    ids=["not full", "full", "forced"],
)
async def test_a_document_with_nothing_in_it_is_told_as_it_is(options, ends):
    """R3.20: its end is forced only if that was requested; otherwise it is reported as a fault."""
    chunks, told, faults = await submitted(Given(SourceDocument("a", b" \n\t\n", "text/plain")), **options)
    assert ([], ends) == (chunks, {source_id: said(end) for source_id, end in told.items()})
    assert len(faults) == (0 if options.get("forces") else 1)


async def test_a_source_that_is_there_twice_counts_once():
    """The second document of an id is a fault: its chunks would be taken for the first one's."""
    chunks, ends, faults = await submitted(
        Given(SourceDocument("a", b"one", "text/plain"), SourceDocument("a", b"two", "text/plain"))
    )
    assert ([c["content"] for c in chunks], len(ends), [fault.where for fault in faults]) == (["one"], 1, ["a"])


@pytest.mark.parametrize("source_id", ["a|b", "a\nb", "", "x" * 513, "a\udcff"])
async def test_a_name_that_cannot_be_a_source_is_a_fault(source_id):
    """A `|`, a control character, an empty name, a name that is too long and invalid UTF-8 are reported and skipped."""
    chunks, ends, faults = await submitted(Given(SourceDocument(source_id, b"text", "text/plain")))
    assert (chunks, ends, len(faults)) == ([], {}, 1)


def test_a_chunk_that_is_refused_makes_its_source_truncated():
    """Its end counts the published chunks, and marks nothing."""
    events: list[tuple[str, object]] = []
    faults: list[Fault] = []
    target = Target("i", "docs", "main", asks_full=True)
    submission = Submission(target, lambda *event: events.append(event), lambda: 0, report=faults.append)
    submission.take(
        Whole(SourceDocument("a", b"", "text/plain"), [Chunk("good"), Chunk("x" * (1 << 21)), Chunk("good too")])
    )
    end = events[-1]
    assert (end[0], said(end[1])) == (INGEST_FINISHED, (False, True, False, 2))
    assert [fault.where for fault in faults] == ["a, chunk 1"]


@pytest.mark.requirement("R3.24")
@pytest.mark.parametrize(
    ("reading", "items", "full"),
    [
        (Reading(window={"truncated": False}), (), True),
        (Reading(is_whole=False, window={"truncated": True}), (), False),
        (Reading(window={"truncated": False}), (Fault("page 1, entry 3", "no number"),), False),
        (Reading(window={"truncated": False}), (Fault("b", "broken", "b"),), True),
    ],
    ids=["whole", "cut off", "an entry of nobody", "a fault of another"],
)
async def test_ends_of_a_paged_origin_wait_for_its_last_page(reading, items, full):
    """R3.24: they carry its window, and are full only when the whole listing was read and every entry's source is known."""
    origin = Given(SourceDocument("a", "text", "text/plain"), *items, is_paged=True, reading=reading)
    _, ends, _ = await submitted(origin, asks_full=True)
    assert (full, not full, False, 1) == said(ends["a"])
    assert ends["a"]["window"].startswith('{"truncated":')


def piece(number: int, source_id: str, chunk_no: int) -> Piece:
    """A chunk's line."""
    fields = {"source_id": source_id, "chunk_no": chunk_no, "content": "text", "title": None, "url": None}
    return Piece(number, {**fields, "embedding": None, "published_at": None})


async def test_chunks_that_come_apart_are_ended_at_the_end():
    """Each source's end counts its distinct chunks; one with a bad line, or repeated, is truncated, the others are full."""
    items = (
        piece(1, "a", 0),
        piece(2, "b", 0),
        piece(3, "a", 1),
        piece(4, "b", 0),
        piece(5, "c", 0),
        piece(6, "c", -1),
    )
    chunks, ends, faults = await submitted(Given(*items), asks_full=True)
    told = {source_id: said(end) for source_id, end in ends.items()}
    assert told == {"a": (True, False, False, 2), "b": (False, True, False, 1), "c": (False, True, False, 1)}
    assert (len(chunks), [fault.where for fault in faults]) == (4, ["line 4", "line 6"])


@pytest.mark.parametrize("first", [0, 2], ids=["before", "after"])
async def test_a_bad_line_of_a_source_harms_that_source(first):
    """Wherever it stands: its end is truncated, also when all that is known of it comes later; the others are full."""
    items: list[Item] = [piece(1, "a", 0), piece(2, "b", 0)]
    items.insert(first, Fault("line 3", "no text", "a"))
    _, ends, _ = await submitted(Given(*items), asks_full=True)
    assert (ends["a"]["truncated"], ends["a"]["full"], ends["b"]["full"]) == (True, False, True)


async def test_a_line_of_nobody_makes_all_that_come_apart_truncated():
    """It may have been a chunk of any of them."""
    _, ends, _ = await submitted(Given(piece(1, "a", 0), Fault("line 2", "not JSON")), asks_full=True)
    assert said(ends["a"]) == (False, True, False, 1)


def test_the_end_of_what_is_gone_is_full_empty_and_forced():
    """All its chunks are orphans."""
    events: list[tuple[str, object]] = []
    submission = Submission(Target("i", "docs", "main", asks_full=True), lambda *event: events.append(event), lambda: 5)
    submission.end_gone(["a"])
    assert (Ending(True, False, True), 0) == (
        Ending(*said(events[0][1])[:3]),
        events[0][1]["expected_count"],
    )
    assert submission.gone == ["a"]


def test_an_interrupted_import_marks_nothing():
    """The sources read from a paged origin are ended as truncated."""
    events: list[tuple[str, object]] = []
    target = Target("i", "docs", "main", asks_full=True)
    submission = Submission(target, lambda *event: events.append(event), lambda: 5, is_paged=True)
    submission.take(Whole(SourceDocument("a", "", "text/plain"), [Chunk("text")]))
    submission.conclude(Reading(), is_interrupted=True)
    assert said(events[-1][1]) == (False, True, False, 1)


async def test_a_document_that_grows_is_a_fault():
    """Its text is up to 32 times as long, or a million letters. A table is not filled up, and a fault ends no other document."""
    found = [
        SourceDocument("csv", b"a," * 3_000 + b"a\n" + b"a,b\n" * 3_000, "text/csv"),
        SourceDocument(
            "html", b"<table><th>a<th colspan=62>b" + b"<tr><td rowspan=64 colspan=62>a<td>b" * 500, "text/html"
        ),
        SourceDocument("deck", _deck_of("a" * 1_500_000), "application/octet-stream"),
        SourceDocument("fine", b"Fine.", "text/plain"),
    ]
    items = [item async for item in cut_all(Given(*found).documents(), DocumentReader())]
    sizes = {
        item.found.source_id: sum(len(chunk.content) for chunk in item.chunks) / len(item.found.raw)
        for item in items
        if isinstance(item, Whole)
    }
    assert sizes["csv"] < 8
    assert sizes["html"] < 32
    assert sizes["fine"] == 1
    faults = {item.where: item.why for item in items if isinstance(item, Fault)}
    assert faults.keys() == {"deck"}
    assert faults["deck"].endswith("become a text of 1,500,000 characters")


def _deck_of(text: str) -> bytes:
    """A deck whose one slide has this text, compressed."""
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = text
    out = io.BytesIO()
    deck.save(out)
    return out.getvalue()

"""Reading in limited processes: what one process reads, and what it gives back."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from highwater.connectors.documents import reading
from highwater.connectors.documents.reading import DocumentReader
from highwater.connectors.jobs import blobs
from highwater.schemas.errors import UnavailableError
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.documents.structure import markdown_blocks

# Held a process for minutes when it was read there: each link was tried with each other one.
LINKS = "# " + "[a](" * 60_000 + "\n\ntext\n"


async def test_a_process_reads_short_texts_only():
    """One after another; one that could not read a document, or read another format, ends."""
    async with DocumentReader() as reader:
        (await reader.read("one", "text/plain")).close()
        (first,) = reader._idle
        (await reader.read("two", "text/plain")).close()
        (child,) = reader._idle
        assert child is first
        with pytest.raises(UnreadableDocumentError, match="it is not a readable PDF"):
            await reader.read(b"%PDF-1.7 and no more", "application/pdf")
        assert reader._idle == []
        assert child.process.returncode is not None
        (await reader.read("three", "text/plain")).close()
        (child,) = reader._idle
    assert child.process.returncode is not None


async def test_a_text_for_a_deck_is_read_in_the_process_too():
    """Its blocks are those of its Markdown; a text that is not text has a reason."""
    reader = DocumentReader()
    assert await reader.blocks(LINKS.encode(), "text/markdown", is_cut=False) == markdown_blocks(LINKS)
    with pytest.raises(UnreadableDocumentError, match="it is not text in utf-8"):
        await reader.blocks("é".encode("latin-1"), "text/markdown", is_cut=False)


async def test_a_short_document_has_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes that take minutes on purpose do not hold a place for as long as 50 MB of text may."""
    monkeypatch.setattr(reading, "PROCESSOR_SECONDS_FIRST", 1.0)
    with pytest.raises(UnreadableDocumentError, match=r"took over 1\.\d* s of processor time"):
        await DocumentReader().read(b"<p/" * 15_000, "text/html")


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """Limits the files of this process, and of those that it starts, to a size: to them the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room_bytes", [1_000, 4_000])
async def test_a_full_folder_is_no_fault_of_a_document(room_bytes: int) -> None:
    """There is no room for the document, or only for its chunks (each quotation mark takes two bytes): it is read later."""
    document = b'"' * 3_000
    reader = DocumentReader()
    with files_up_to(room_bytes), pytest.raises(UnavailableError, match="cannot be written"):
        await reader.read(document, "text/plain")
    (await reader.read(document, "text/plain")).close()


async def test_a_full_folder_refuses_an_upload() -> None:
    """The answer says that the service is unavailable, as for a database without room."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a" * 3_000

    with files_up_to(1_000), pytest.raises(UnavailableError, match="cannot be written"):
        async with blobs.spooled(pieces(), 10_000):
            pass

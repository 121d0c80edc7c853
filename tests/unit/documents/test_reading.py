"""Reading in limited processes: what one process reads, and what it gives back."""

from __future__ import annotations

import pytest

from highwater.connectors.documents.reading import DocumentReader
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

"""Detects what a document is, and returns its blocks.

Invariant: the bytes take precedence over the declared type. A document that cannot be read, or has no text, gives the
reason.
"""

from __future__ import annotations

import io
import logging
import math
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from highwater.streams.documents.chunking import Block
from highwater.streams.documents.structure import (
    Run,
    UnreadableDocumentError,
    clean,
    csv_blocks,
    decoded,
    markdown_blocks,
    plain_blocks,
    sized_blocks,
)
from highwater.streams.documents.tables import markdown_table
from highwater.streams.documents.web_page import html_blocks, html_charset

# Limit of an unpacked archive: a deck of 50 MB is mostly pictures, which hardly compress; tenfold growth is an attack.
_UNPACKED_BYTES_MAX = 512 << 20
_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
_PDF, _ZIP = b"%PDF-", b"PK\x03\x04"
# Encodings that an HTML document may declare. Some of the other codecs take quadratic time (punycode).
_QUICK = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "windows-1252", "utf-16"})
# A PDF may have bytes before its first line; its readers search this far.
_PDF_WITHIN = 1_024


def blocks_of(raw: bytes, media_type: str) -> list[Block]:
    """Return the blocks of a document.

    Raises:
        UnreadableDocumentError: it cannot be read, or has no text.
    """
    blocks = [block for block in _reader(raw, media_type)(raw) if block.text.strip()]
    if not blocks:
        raise UnreadableDocumentError("it has no text")
    return blocks


def is_plain(raw: bytes) -> bool:
    """Return whether a document is text that needs no library and takes only linear time to read."""
    is_text = _PDF not in raw[:_PDF_WITHIN] and not raw.startswith(_ZIP)
    return is_text and (html_charset(raw) or "utf-8").lower() in _QUICK


def _reader(raw: bytes, media_type: str) -> Callable[[bytes], list[Block]]:
    if _PDF in raw[:_PDF_WITHIN]:
        return _pdf
    if raw.startswith(_ZIP):
        return _pptx
    name = media_type.partition(";")[0].strip().lower()
    if name == "application/pdf" or "presentationml" in name:
        raise UnreadableDocumentError(f"it is not {name}")
    charset = html_charset if _TEXTS.get(name) is html_blocks else lambda _: None
    return lambda raw: text_blocks(decoded(raw, charset(raw)), name)


def text_blocks(text: str, media_type: str) -> list[Block]:
    """Return the blocks of clean text."""
    return _TEXTS.get(media_type.partition(";")[0].strip().lower(), plain_blocks)(text)


_TEXTS: Mapping[str, Callable[[str], list[Block]]] = {
    "text/html": html_blocks,
    "application/xhtml+xml": html_blocks,
    "text/markdown": markdown_blocks,
    "text/x-markdown": markdown_blocks,
    "text/csv": csv_blocks,
    "text/tab-separated-values": csv_blocks,
}


def _pdf(raw: bytes) -> list[Block]:
    import pypdf  # noqa: PLC0415 (half a second, in processes that often read something else)

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs each oddity of a file; important faults are raised
    try:
        file = pypdf.PdfReader(io.BytesIO(raw))
        _check(is_good=not file.is_encrypted or bool(file.decrypt("")), problem="it is encrypted")
        return sized_blocks([_runs(page) for page in file.pages])
    except (UnreadableDocumentError, MemoryError):
        raise
    except Exception as error:  # (a broken file may hit any line of the library)
        raise UnreadableDocumentError(f"it is not a readable PDF: {_line(error)}") from error


def _runs(page: Any) -> list[Run]:
    """Return the text of a page with its font sizes, if the library gives them for the same text."""
    runs: list[Run] = []

    def note(text: str, page_matrix: Sequence[float], text_matrix: Sequence[float], _font: Any, size: float) -> None:
        # Text scaled by a matrix has its visible size; a rotated line has its scale in the other element.
        scales = [math.hypot(matrix[1], matrix[3]) for matrix in (page_matrix, text_matrix)]
        runs.append(Run(clean(text), abs(size) * math.prod(scales)))

    whole = clean(page.extract_text(visitor_text=note))
    return runs if "".join(run.text for run in runs) == whole else [Run(whole, 0)]


def _pptx(raw: bytes) -> list[Block]:
    import pptx  # noqa: PLC0415 (as above)

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            folders = {name.partition("/")[0] for name in archive.namelist()}
        _check(is_good="ppt" in folders, problem=_other_archive(folders))
        _check(
            is_good=unpacked <= _UNPACKED_BYTES_MAX,
            problem=f"unpacked it is larger than {_UNPACKED_BYTES_MAX >> 20} MiB",
        )
        return [block for slide in pptx.Presentation(io.BytesIO(raw)).slides for block in _slide(slide)]
    except (UnreadableDocumentError, MemoryError):
        raise
    except Exception as error:
        raise UnreadableDocumentError(f"it is not a readable PPTX: {_line(error)}") from error


def _other_archive(folders: Collection[str]) -> str:
    """Return what an archive is that is not a PPTX, and what can be read instead."""
    for folder, name, instead in (("word", "a Word document", "PDF"), ("xl", "an Excel workbook", "CSV")):
        if folder in folders:
            return f"it is {name}: save it as {instead}"
    return "it is an archive and not a PPTX"


def _slide(slide: Any) -> Iterator[Block]:
    title = slide.shapes.title
    if title is not None:
        yield Block(clean(title.text_frame.text), 1)
    for text in _texts(shape for shape in slide.shapes if title is None or shape.shape_id != title.shape_id):
        yield Block(clean(text))
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        yield Block(clean(slide.notes_slide.notes_text_frame.text))


def _texts(shapes: Iterable[Any]) -> Iterator[str]:
    for shape in shapes:
        if shape.has_text_frame:
            # A field (slide number, date) is filled in when the deck is shown; its text here is a placeholder.
            has_field = shape.element.find(f".//{{{_DRAWING}}}fld") is not None
            for one in shape.text_frame.paragraphs:
                yield "".join(run.text for run in one.runs) if has_field else one.text
        elif getattr(shape, "has_table", False):
            yield _table([[cell.text for cell in row.cells] for row in shape.table.rows])
        elif hasattr(shape, "shapes"):
            yield from _texts(shape.shapes)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table of a slide; a single row or column is a list."""
    is_table = len(rows) > 1 and len(rows[0]) > 1
    return (
        markdown_table([[clean(cell) for cell in row] for row in rows]) if is_table else "\n".join(map("\t".join, rows))
    )


def _check(*, is_good: bool, problem: str) -> None:
    if not is_good:
        raise UnreadableDocumentError(problem)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]

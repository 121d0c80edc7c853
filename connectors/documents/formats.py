"""Detects what a document is, and returns its blocks.

Invariant: the bytes take precedence over the declared type. A document that cannot be read, or has no text, gives the
reason.
"""

from __future__ import annotations

import io
import logging
import math
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from highwater.connectors.documents.slides import slide_blocks
from highwater.streams.documents.chunking import Block, LeftOut, counts_of, kept, left_out_of
from highwater.streams.documents.decoding import MAIL, UnreadableDocumentError, clean, decoded, html_charset
from highwater.streams.documents.structure import Run, csv_blocks, markdown_blocks, plain_blocks, sized_blocks
from highwater.streams.documents.web_page import html_blocks

# Limit of an unpacked archive: a deck of 50 MB is mostly pictures, which hardly compress; tenfold growth is an attack.
_UNPACKED_BYTES_MAX = 512 << 20
_PDF, _ZIP = b"%PDF-", b"PK\x03\x04"
# A PDF may have bytes before its first line; its readers search this far.
_PDF_WITHIN = 1_024
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]{1,40})", re.IGNORECASE)
# The first bytes of the file in an OpenDocument archive or a book that names its format.
_NAME_BYTES_MAX = 100


def blocks_of(raw: bytes, media_type: str, *, keeps_all: bool = False) -> list[Block]:
    """Return the blocks of a document, those that are left out included; with `keeps_all` they are parts of the text.

    Raises:
        UnreadableDocumentError: it cannot be read, or has no text.
    """
    blocks = kept(_reader(raw, media_type)(raw)) if keeps_all else _reader(raw, media_type)(raw)
    blocks = [block for block in blocks if block.text.strip()]
    if all(block.left_out is not None for block in blocks):
        told = ", ".join(f"{reason}: {count}" for reason, count in counts_of(left_out_of(blocks)).items())
        raise UnreadableDocumentError(f"it has no text{f' beside what is left out ({told})' if told else ''}")
    return blocks


def is_plain(raw: bytes) -> bool:
    """Return whether a document is text, which needs no library to be read."""
    return _PDF not in raw[:_PDF_WITHIN] and not raw.startswith(_ZIP)


def _reader(raw: bytes, media_type: str) -> Callable[[bytes], list[Block]]:
    if _PDF in raw[:_PDF_WITHIN]:
        return _pdf
    if raw.startswith(_ZIP):
        return _pptx
    name = _name_of(media_type)
    if name == "application/pdf" or "presentationml" in name:
        raise UnreadableDocumentError(f"it is not {name}")
    if name == "message/rfc822":
        raise UnreadableDocumentError(f"it is {MAIL}")
    return lambda raw: text_blocks(text_of(raw, media_type), name)


def text_of(raw: bytes, media_type: str, *, is_cut: bool = False) -> str:
    """Return the text of a document that is text, by the charset in its media type, else by the one that it declares.

    `is_cut`: its end is missing. Raises the errors of `decoded`.
    """
    named = _CHARSET.search(media_type)
    charset = named[1] if named else html_charset(raw) if _TEXTS.get(_name_of(media_type)) is html_blocks else None
    return decoded(raw, charset, is_cut=is_cut)


def text_blocks(text: str, media_type: str) -> list[Block]:
    """Return the blocks of clean text."""
    return _TEXTS.get(_name_of(media_type), plain_blocks)(text)


def _name_of(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


_TEXTS: Mapping[str, Callable[[str], list[Block]]] = {
    "text/html": html_blocks,
    "application/xhtml+xml": html_blocks,
    "text/markdown": markdown_blocks,
    "text/x-markdown": markdown_blocks,
    "text/csv": csv_blocks,
    "text/tab-separated-values": csv_blocks,
    "application/vnd.ms-excel": csv_blocks,  # what Windows names a CSV file; a workbook is recognized by its bytes
}


def _pdf(raw: bytes) -> list[Block]:
    import pypdf  # noqa: PLC0415 (half a second, in processes that often read something else)

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs each oddity of a file; important faults are raised
    try:
        file = pypdf.PdfReader(io.BytesIO(raw))
        _check(is_good=not file.is_encrypted or bool(file.decrypt("")), problem="it is encrypted")
        pages = sized_blocks([_runs(page) for page in file.pages])
        blocks = [
            block for page, read in zip(file.pages, pages, strict=True) for block in (*read, *_beside(page, read))
        ]
        return [*blocks, *(Block(clean(name), 0, LeftOut.ATTACHMENT) for name in file.attachments)]
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


def _beside(page: Any, read: Sequence[Block]) -> Iterator[Block]:
    """Yield what stands on a page beside its text: fields that were filled in, texts that were written onto it, remarks; and
    that it has only pictures.
    """
    for one in _at(page, "/Annots") or ():
        note = one.get_object()
        kind = _at(note, "/Subtype")
        if kind == "/Widget":
            yield from (Block(clean(text)) for text in _values(note))
        elif kind not in ("/Link", "/Popup") and isinstance(text := _at(note, "/Contents"), str):
            yield Block(clean(text), 0, None if kind == "/FreeText" else LeftOut.REMARK)
    pictures = _at(_at(page, "/Resources") or {}, "/XObject") or {}
    if pictures and not any(block.text.strip() for block in read):
        yield Block(f"page {page.page_number + 1}", 0, LeftOut.PICTURE_PAGE)


def _values(field: Any) -> list[str]:
    """Return what was typed into a field of a form, or chosen in it; a field inherits from the one above (PDF 12.7.3)."""
    kind = value = None
    for _ in range(_FIELDS_MAX):
        kind, value = kind or _at(field, "/FT"), value if value is not None else _at(field, "/V")
        field = _at(field, "/Parent")
        if field is None:
            break
    told = value if isinstance(value, list) else [value]
    return [one for one in told if isinstance(one, str)] if kind in ("/Tx", "/Ch") else []


# Fields within fields; more is a circle.
_FIELDS_MAX = 32


def _at(owner: Any, name: str) -> Any:
    """Return a member, wherever in the file it is; None if there is none."""
    return owner[name] if name in owner else None  # noqa: SIM401 (`get` does not follow a reference)


def _pptx(raw: bytes) -> list[Block]:
    import pptx  # noqa: PLC0415 (as above)

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            folders = {name.partition("/")[0] for name in archive.namelist()}
            _check(is_good="ppt" in folders, problem=_other_archive(folders, archive))
        _check(
            is_good=unpacked <= _UNPACKED_BYTES_MAX,
            problem=f"unpacked it is larger than {_UNPACKED_BYTES_MAX >> 20} MiB",
        )
        return [block for slide in pptx.Presentation(io.BytesIO(raw)).slides for block in slide_blocks(slide)]
    except (UnreadableDocumentError, MemoryError):
        raise
    except Exception as error:
        raise UnreadableDocumentError(f"it is not a readable PPTX: {_line(error)}") from error


def _other_archive(folders: Collection[str], archive: zipfile.ZipFile) -> str:
    """Return what an archive is that is not a PPTX, and what can be read instead."""
    for folder, name, instead in (("word", "a Word document", "PDF"), ("xl", "an Excel workbook", "CSV")):
        if folder in folders:
            return f"it is {name}: save it as {instead}"
    if "mimetype" in folders:  # OpenDocument, EPUB
        with archive.open("mimetype") as file:
            name = clean(file.read(_NAME_BYTES_MAX).decode("ascii", "replace")).strip()
        return f"it is {name}: save it as PDF"
    return "it is an archive and not a PPTX"


def _check(*, is_good: bool, problem: str) -> None:
    if not is_good:
        raise UnreadableDocumentError(problem)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]

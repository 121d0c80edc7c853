"""The process that reads documents: each from a file that its parent passes to it, into another.

Invariant: a document comes from outside and may break the libraries that read it. So it is read in a separate process
that has limited memory and ends with its parent. The first line of its output says how many parts follow, or why there are
none; after them are the parts that are left out. A process that read anything but a short text reads nothing more: what a
library keeps of one document does not reach another.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

import orjson

from highwater.connectors.children import EX_IOERR, die_with_parent, limit_memory
from highwater.connectors.documents.formats import blocks_of, is_plain, text_blocks, text_of
from highwater.streams.documents.chunking import Block, below, counts_of, cut, kept, left_out_of
from highwater.streams.documents.decoding import UnreadableDocumentError, clean
from highwater.streams.documents.structure import markdown_blocks
from highwater.streams.models.tokens import count_tokens

# Lower priority than processes that answer requests.
_NICENESS = 10
# The answer to the parent after a document: the process may read another one, or it ends.
READS_ON, ENDS = b"+", b"-"
# After a longer text the process is larger than a new one.
_SHORT_BYTES_MAX = 1 << 20
# A document's text is at most this many times as long as the document, or this long: compressed text is five to twenty times
# as long. More comes from a table whose cells are empty, or from a part that is shown again and again.
_GROWTH_MAX, _SMALL_CHARACTERS_MAX, _CHARACTERS_MAX = 32, 1 << 20, 64 << 20


def main(channel: int, tokens_max: int, memory_bytes_max: int, parent_id: int) -> None:
    """Run the process. `channel`: a socket on which the files of each document come, and the answer goes."""
    die_with_parent(parent_id)
    os.nice(_NICENESS)
    os.dup2(2, 1)  # what a library prints belongs to the log
    limit_memory(memory_bytes_max)
    with socket.socket(fileno=channel) as parent:
        answer = READS_ON
        while answer == READS_ON:
            files = socket.recv_fds(parent, 1, 2)[1]
            if not files:
                return
            try:
                with os.fdopen(files[0], "rb") as document, os.fdopen(files[1], "wb") as out:
                    answer = _read(document, out, tokens_max, memory_bytes_max)
            except OSError:  # the document is not at fault
                sys.exit(EX_IOERR)
            parent.send(answer)


def _read(document: BinaryIO, out: BinaryIO, tokens_max: int, memory_bytes_max: int) -> bytes:
    """Read one document, and return the answer to the parent. Its first line is the request (`reading._Request`)."""
    asked: dict[str, Any] = orjson.loads(document.readline())
    answer = ENDS
    try:
        raw = document.read()
        parts, left_out = _parts(raw, asked, tokens_max)
        answer = READS_ON if is_plain(raw) and len(raw) <= _SHORT_BYTES_MAX else ENDS
        first: dict[str, Any] = {"parts": len(parts), "left_out": counts_of(left_out)}
    except UnreadableDocumentError as error:
        first, parts, left_out = {"unreadable": str(error)}, [], []
    except RecursionError:
        first, parts, left_out = {"unreadable": "its parts are nested too deeply"}, [], []
    except MemoryError:
        first, parts, left_out = {"unreadable": f"it takes more than {memory_bytes_max >> 20} MiB to read"}, [], []
    out.writelines(orjson.dumps(line) + b"\n" for line in (first, *parts, *left_out))
    return answer


def _parts(raw: bytes, asked: dict[str, Any], tokens_max: int) -> tuple[list[Any], list[Any]]:
    """Return the blocks or the chunks of a document, and the parts that are left out."""
    if asked["is_block"]:
        blocks = markdown_blocks(text_of(raw, asked["media_type"], is_cut=asked["is_cut"]))
        _check_growth(raw, blocks)
        return [list(block) for block in blocks], []
    if asked["is_text"]:
        blocks = text_blocks(clean(raw.decode("utf-8", "surrogatepass")), asked["media_type"])
        blocks = kept(blocks) if asked["keeps_all"] else blocks
    else:
        blocks = blocks_of(raw, asked["media_type"], keeps_all=asked["keeps_all"])
    _check_growth(raw, blocks)
    chunks = cut(below(asked["title"], blocks), count_tokens, tokens_max)
    return [[chunk.content, chunk.title] for chunk in chunks], left_out_of(blocks)


def _check_growth(raw: bytes, blocks: Iterable[Block]) -> None:
    characters = sum(len(block.text) for block in blocks)
    if characters > min(max(_GROWTH_MAX * len(raw), _SMALL_CHARACTERS_MAX), _CHARACTERS_MAX):
        raise UnreadableDocumentError(f"its {len(raw):,} bytes become a text of {characters:,} characters")

"""The process that reads one document: from its standard input, to chunks on its standard output.

Invariant: a document comes from outside and may break the libraries that read it. So it is read in a separate process
that has limited memory and ends with its parent. The first line says how many chunks follow, or why there are none.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import orjson

from highwater.connectors.children import die_with_parent, limit_memory
from highwater.connectors.documents.formats import blocks_of
from highwater.streams.documents.chunking import cut
from highwater.streams.documents.structure import UnreadableDocumentError
from highwater.streams.models.tokens import count_tokens

# Lower priority than processes that answer requests.
_NICENESS = 10


def main(media_type: str, tokens_max: int, memory_bytes_max: int, parent_id: int) -> None:
    """Run the process."""
    die_with_parent(parent_id)
    os.nice(_NICENESS)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not appear among the chunks
    limit_memory(memory_bytes_max)
    _write(out, media_type, tokens_max, memory_bytes_max)
    out.close()


def _write(out: BinaryIO, media_type: str, tokens_max: int, memory_bytes_max: int) -> None:
    try:
        chunks = cut(blocks_of(sys.stdin.buffer.read(), media_type), count_tokens, tokens_max)
    except (UnreadableDocumentError, RecursionError) as error:
        out.write(orjson.dumps({"unreadable": str(error)}) + b"\n")
    except MemoryError:
        out.write(orjson.dumps({"unreadable": f"it takes more than {memory_bytes_max >> 20} MiB to read"}) + b"\n")
    else:
        out.write(orjson.dumps({"chunks": len(chunks)}) + b"\n")
        out.writelines(orjson.dumps([chunk.content, chunk.title]) + b"\n" for chunk in chunks)

"""The process that reads one document: from its standard input, to chunks on its standard output.

Invariant: a document comes from outside and may break the libraries that read it. So it is read in a separate process
that has limited memory and ends with its parent. The first line says how many chunks follow, or why there are none; after them
are the parts that are left out.
"""

from __future__ import annotations

import os
import sys

import orjson

from highwater.connectors.children import die_with_parent, limit_memory
from highwater.connectors.documents.formats import blocks_of
from highwater.streams.documents.chunking import below, counts_of, cut, left_out_of
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.models.tokens import count_tokens

# Lower priority than processes that answer requests.
_NICENESS = 10


def main(media_type: str, title: str, tokens_max: int, memory_bytes_max: int, parent_id: int, keeps_all: int) -> None:
    """Run the process."""
    die_with_parent(parent_id)
    os.nice(_NICENESS)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not appear among the chunks
    limit_memory(memory_bytes_max)
    try:
        blocks = blocks_of(sys.stdin.buffer.read(), media_type, keeps_all=bool(keeps_all))
        chunks, left_out = cut(below(title, blocks), count_tokens, tokens_max), left_out_of(blocks)
    except (UnreadableDocumentError, RecursionError) as error:
        out.write(orjson.dumps({"unreadable": str(error)}) + b"\n")
    except MemoryError:
        out.write(orjson.dumps({"unreadable": f"it takes more than {memory_bytes_max >> 20} MiB to read"}) + b"\n")
    else:
        out.write(orjson.dumps({"chunks": len(chunks), "left_out": counts_of(left_out)}) + b"\n")
        out.writelines(orjson.dumps([chunk.content, chunk.title]) + b"\n" for chunk in chunks)
        out.writelines(orjson.dumps(part) + b"\n" for part in left_out)
    out.close()

"""The process that searches a topic or exports the result: the API starts one for each search, and relays its output.

Invariants. The first line of its output is an event: `begin`, or `refused` with the reason. The lines of the page or
the bytes of the file follow; a file is complete only if the process exits with 0. It ends when its parent does. The kernel
limits its memory: what a record decodes to is made by its producer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from typing import BinaryIO, NoReturn

import pyarrow as pa

from highwater.connectors.children import limit_memory
from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.consumer import open_reader
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.cursors import InvalidCursorError
from highwater.connectors.replay.foreign import decoder_of
from highwater.connectors.replay.processes import NICENESS, run_task
from highwater.connectors.replay.reading import read_batches
from highwater.connectors.replay.running import first_answered, write_batches
from highwater.connectors.replay.search_task import INVALID, MISSING, UNAVAILABLE, SearchTask
from highwater.connectors.replay.searching import (
    SEARCH_SECONDS_MAX,
    Limits,
    Searching,
    begin_search,
    chooser_of,
    line_of,
)
from highwater.connectors.replay.selection import InvalidSelectionError, NoSuchTopicError
from highwater.connectors.replay.where_error import WhereError
from highwater.connectors.replay.writers import writer_of
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.clock import monotonic_seconds

# A page of records of 5 MB took 160 MiB, an export of them 210 MiB.
MEMORY_BYTES_MAX = 1 << 30


def main() -> None:
    """Do the task that stands on standard input."""
    run_task(_work)


def _work(task: SearchTask, output: BinaryIO) -> None:
    os.nice(NICENESS)
    limit_memory(MEMORY_BYTES_MAX)
    try:
        with without_pandas(), ExitStack() as stack:
            _search(task, output, stack)
    except (MemoryError, pa.ArrowMemoryError):
        os.abort()  # as a library does; the parent says what happened


def _search(task: SearchTask, output: BinaryIO, stack: ExitStack) -> None:
    with _refusals_told(output):
        cursor, deleted = begin_search(task.client, task.search, task.cursor, task.now_ms)
        decoder = decoder_of(task.search.topic, task.registry)
        counts = Counts()
        chooser = chooser_of(task.search, decoder, counts)
        if task.kind is not None:
            # A condition whose first result is not true or false is refused before the file begins.
            reader = stack.enter_context(closing(open_reader(task.client)))
            batches = map(chooser.decoded, read_batches(reader, task.search.topic.name, cursor.spans))
            first = first_answered(batches, chooser, counts)
        begin = {
            "event": "begin",
            "topic": task.search.topic.name,
            "cursor": cursor.text(task.search),
            "scanned": cursor.total - cursor.unread,
            "total": cursor.total,
            "found": cursor.found,
            "deleted": deleted,
        }
    _send(output, line_of(begin))
    if task.kind is not None:
        with writer_of(task.kind, output, decoder) as writer:
            write_batches(chain(first, batches), writer, counts, lambda _: output.flush())
        return
    limits = Limits(task.limit, monotonic_seconds() + SEARCH_SECONDS_MAX)
    try:
        for line in Searching(task.client, task.search, chooser, counts, cursor, limits).events():
            _send(output, line)
    except (UnavailableError, WhereError) as error:
        _send(output, line_of({"event": "failed", "detail": _told(error)}))


def _send(output: BinaryIO, line: bytes) -> None:
    output.write(line)
    output.flush()


@contextmanager
def _refusals_told(output: BinaryIO) -> Iterator[None]:
    """Report an invalid search in the first line; the process ends."""
    try:
        yield
    except NoSuchTopicError as error:
        _refuse(output, error, MISSING)
    except (InvalidSelectionError, InvalidCursorError, WhereError) as error:
        _refuse(output, error, INVALID)
    except UnavailableError as error:
        _refuse(output, error, UNAVAILABLE)


def _refuse(output: BinaryIO, error: HighwaterError, reason: str) -> NoReturn:
    _send(output, line_of({"event": "refused", "reason": reason, "detail": _told(error)}))
    sys.exit(0)


def _told(error: HighwaterError) -> str:
    """Describe the error; for a condition with its line and a caret under the error."""
    if isinstance(error, WhereError):
        return f"{str(error).removeprefix('--where, ')}\n{error.pointer()}"
    return str(error)

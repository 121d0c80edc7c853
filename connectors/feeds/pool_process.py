"""Owns one process of the pool that reclusters (`pool.py`): one reply per job, within its memory limit, while its
parent lives.

Invariant: only this process of the product loads the clustering libraries.
"""

import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from highwater.connectors.children import die_with_parent, limit_memory
from highwater.connectors.feeds.pool import LENGTH, bytes_of
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.versions import NewVersion, Window

NICENESS = 5


def serve(memory_bytes_max: int, parent_id: int) -> None:
    """Run a worker: bind it to its parent, limit it, then one reply per job until the input ends."""
    die_with_parent(parent_id)
    os.nice(NICENESS)
    jobs = os.fdopen(0, "rb", closefd=False)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not appear among the replies
    recluster(_sample_window())  # loads everything and maps BLAS buffers before the limit is set
    limit_memory(memory_bytes_max)
    _send(replies, ("ready", None))
    while (header := jobs.read(LENGTH.size)) and len(header) == LENGTH.size:
        reply = _guarded(lambda: recluster(_read_window(jobs, LENGTH.unpack(header)[0])), memory_bytes_max)
        _send(replies, reply)
        if reply[0] == "memory":
            return


def _guarded(work: Callable[[], NewVersion], memory_bytes_max: int) -> tuple[str, Any]:
    try:
        return "done", work()
    except MemoryError as error:
        return "memory", f"rebuild over its memory limit of {memory_bytes_max >> 20} MiB: {error}"
    except ValueError as error:
        return "input", str(error)
    except Exception:  # noqa: BLE001 the reply carries it; the parent raises it
        return "failed", traceback.format_exc()


def _read_window(jobs: BinaryIO, length: int) -> Window:
    window: Window
    window, shape = pickle.loads(jobs.read(length))  # noqa: S301 our own parent wrote it
    vectors = np.empty(shape, dtype="<f4")
    view = bytes_of(vectors)
    received = 0
    while received < len(view):
        count = jobs.readinto(view[received:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the job's vectors end early")
        received += count
    return replace(window, vectors=vectors)


def _send(replies: BinaryIO, reply: tuple[str, Any]) -> None:
    body = pickle.dumps(reply, protocol=5)
    replies.write(LENGTH.pack(len(body)) + body)
    replies.flush()


def _sample_window() -> Window:
    count = 64
    vectors = np.sin(np.arange(count * 384, dtype=np.float32)).reshape(count, 384)
    return Window(1, vectors, ("sample",) * count, tuple(map(str, range(count))))

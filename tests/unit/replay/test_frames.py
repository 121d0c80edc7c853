"""The messages of a replay's child process to its parent."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading

import pytest

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.frames import Kind, LostError, chunks, receive, send
from highwater.connectors.replay.where_error import WhereError


@pytest.fixture
def pipe():
    """Both ends."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(end)


def test_a_frame_arrives_as_it_was_sent(pipe):
    """Pieces larger than the pipe, in their order, and the counts."""
    pieces = [os.urandom(300_000), b"", os.urandom(10)]
    counts = Counts(2**40, 3, 4, 5)
    sender = threading.Thread(target=send, args=(pipe[1], Kind.PIECE, [memoryview(one) for one in pieces], counts))
    sender.start()
    frame = receive(pipe[0])
    assert (frame.kind, frame.counts) == (Kind.PIECE, counts)
    assert b"".join(chunks(pipe[0], frame.size)) == b"".join(pieces)
    sender.join()


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_frame_that_breaks_off_is_noticed(pipe, kept: int):
    """In the header, or before any."""
    os.write(pipe[1], bytes(kept))
    os.close(pipe[1])
    with pytest.raises(LostError):
        receive(pipe[0])


def test_a_piece_that_breaks_off_is_noticed(pipe):
    """Fewer bytes than the header said."""
    send(pipe[1], Kind.PIECE, [memoryview(b"0123456789")], Counts())
    os.close(pipe[1])
    frame = receive(pipe[0])
    with pytest.raises(LostError):
        list(chunks(pipe[0], frame.size + 1))


def test_counts_of_processes_are_added():
    """With the first reason of any."""
    counts = Counts()
    counts.become_sum_of([Counts(1, 2, 3, 0), Counts(10, 20, 30, 40, "why"), Counts(100, 200, 300, 400, "later")])
    assert counts == Counts(111, 222, 333, 440, "why")


def test_a_condition_at_fault_comes_from_another_process_as_it_was():
    """With its line, its column and its pointer."""
    error = WhereError("no", "a ==\n  @", 2, 3)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.pointer()) == (str(error), "  @\n  ^")


def test_pandas_is_kept_out_for_as_long_as_asked(monkeypatch):
    """It is as if it were not installed; afterwards it is again."""
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with without_pandas(), pytest.raises(ModuleNotFoundError):
        __import__("pandas")
    assert not any(type(finder).__name__ == "_NoPandas" for finder in sys.meta_path)

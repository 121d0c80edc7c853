"""The text of an answer while it is written: assembled from its pieces, and the part that a reader has not received.

Invariant: no piece is sent twice, and none after a gap. A piece contains its start, so a missing one is noticed; after
a gap nothing more is sent, and the complete answer comes from the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


class Piece(NamedTuple):
    """A piece of an answer: `start` in characters from its beginning; `is_end`: the call has ended, `text` is empty.

    `epoch` rises with each worker that claims the run, `attempt` with each call of the stage.
    """

    request_id: str
    epoch: int
    attempt: int
    start: int
    text: str
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The known part of the answer that is being written for a user."""

    request_id: str
    epoch: int
    attempt: int
    text: str
    is_whole: bool
    has_ended: bool = False


class Place(NamedTuple):
    """How much of an answer a reader has received."""

    request_id: str
    epoch: int
    attempt: int
    characters: int


class Delta(NamedTuple):
    """The next text for a reader, and the reader's state after it."""

    start: int
    text: str
    after: Place


def with_piece(written: Written | None, piece: Piece) -> Written:
    """Return the state after a piece. A piece of an abandoned attempt changes nothing; a later attempt begins again."""
    if (
        written is None
        or written.request_id != piece.request_id
        or (written.epoch, written.attempt) < (piece.epoch, piece.attempt)
    ):
        written = Written(piece.request_id, piece.epoch, piece.attempt, "", is_whole=True)
    elif (written.epoch, written.attempt) > (piece.epoch, piece.attempt):
        return written
    if piece.start > len(written.text):
        return replace(written, is_whole=False, has_ended=written.has_ended or piece.is_end)
    more = piece.text[len(written.text) - piece.start :]
    return replace(written, text=written.text + more, has_ended=written.has_ended or piece.is_end)


def delta_after(place: Place | None, written: Written | None) -> Delta | None:
    """Return the text that a reader has not received; None: nothing, or nothing that can be sent without a gap."""
    if written is None or not written.is_whole:
        return None
    call = written.request_id, written.epoch, written.attempt
    told = place.characters if place is not None and place[:3] == call else 0
    if told >= len(written.text):
        return None
    return Delta(told, written.text[told:], Place(*call, len(written.text)))

"""Answers while they are written: pieces put together, and what each reader lacks."""

from __future__ import annotations

from highwater.streams.queries.deltas import Delta, Piece, Place, Written, delta_after, with_piece

PIECES = [Piece("r", 2, 1, 0, "One. "), Piece("r", 2, 1, 5, "Two. "), Piece("r", 2, 1, 10, "Three.")]


def _written(*pieces: Piece) -> Written | None:
    written = None
    for piece in pieces:
        written = with_piece(written, piece)
    return written


def test_a_reader_that_joins_late_is_told_the_text_from_its_beginning_once():
    """Then only what follows."""
    first = delta_after(None, _written(*PIECES[:2]))
    assert first == Delta(0, "One. Two. ", Place("r", 2, 1, 10))
    assert delta_after(first.after, _written(*PIECES[:2])) is None
    assert delta_after(first.after, _written(*PIECES)) == Delta(10, "Three.", Place("r", 2, 1, 16))


def test_a_new_attempt_begins_anew():
    """By its number or, with another worker, by the epoch; what a worker that was given up still writes changes nothing."""
    place = Place("r", 2, 1, 16)
    for again in (Piece("r", 2, 2, 0, "Uno."), Piece("r", 3, 1, 0, "Uno.")):
        written = _written(*PIECES, again, Piece("r", 2, 1, 16, " Four."))
        assert delta_after(place, written) == Delta(0, "Uno.", Place("r", again.epoch, again.attempt, 4))


def test_after_a_gap_nothing_more_is_told():
    """Neither a reader of the beginning nor a new one gets more of it; the next answer is sent."""
    written = _written(PIECES[0], PIECES[2])
    assert delta_after(None, written) is None
    assert delta_after(Place("r", 2, 1, 5), written) is None
    assert delta_after(None, with_piece(written, Piece("s", 1, 1, 0, "New."))) == Delta(0, "New.", Place("s", 1, 1, 4))


def test_a_piece_that_was_added_twice_is_told_once():
    """Redis accepted the first one although its answer was lost."""
    written = _written(PIECES[0], PIECES[0], PIECES[1])
    assert written == Written("r", 2, 1, "One. Two. ", is_whole=True)

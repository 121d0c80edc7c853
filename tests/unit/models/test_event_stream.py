"""Answers that come in pieces: the same text as whole ones, however the bytes are cut."""

from __future__ import annotations

import json

from highwater.streams.models.event_stream import StreamedAnswer, completion_of


def _line(**event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _piece(text: str) -> bytes:
    return _line(choices=[{"delta": {"content": text}}])


BODY = b": hello\n" + _piece("Höl") + _piece("zl\x00e") + _line(choices=[], usage={"completion_tokens": 2})


def test_pieces_are_told_however_the_bytes_are_cut():
    """A piece may end in the middle of a line or a letter; characters that cannot be stored are left out."""
    for size in (1, 7, len(BODY)):
        told: list[str] = []
        answer = StreamedAnswer(told.append)
        for place in range(0, len(BODY), size):
            answer.feed(BODY[place : place + size])
        assert told == ["Höl", "zle"]


def test_the_whole_has_the_text_and_the_counted_tokens():
    """As an answer that is not streamed; one that is interrupted has no choices."""
    found = json.loads(completion_of(BODY + b"data: [DONE]\n\n"))
    assert found["choices"] == [{"message": {"content": "Hölzl\x00e", "refusal": None}, "finish_reason": None}]
    assert (found["usage"], found["error"]) == ({"completion_tokens": 2}, None)
    assert json.loads(completion_of(BODY))["choices"] == []
    assert json.loads(completion_of(b"data: [1]\ndata: {\n" + BODY))["choices"] == []

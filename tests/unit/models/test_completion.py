"""What a chat completion says: its text, or why there is none; the reason of its end is always read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.models.completion import (
    Completion,
    NoCompletion,
    ReasoningFilter,
    completion_in,
    cut_off_mark,
    without_reasoning,
)
from highwater.streams.models.retries import Failure


def body(content: Any = None, reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    """A response with one choice."""
    return {"choices": [{"message": {"content": content, **more}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("found", "text", "is_cut"),
    [
        (body("Mondays."), "Mondays.", False),
        (body("Mondays.", None), "Mondays.", False),
        (body("Mond", "length"), "Mond", True),
        (body([{"type": "text", "text": "Mon"}, {"type": "text", "text": "days."}]), "Mondays.", False),
        (body("\n<think>\nhm {x}\n</think>\n\nMondays."), "Mondays.", False),
        (body("Write <think> and </think> around it."), "Write <think> and </think> around it.", False),
        (body("Mondays.", refusal=""), "Mondays.", False),
        (body("As in\n<think>\nhm\n</think>\nthat"), "As in\n<think>\nhm\n</think>\nthat", False),
        ({**body("Mondays."), "error": None}, "Mondays.", False),
    ],
)
def test_a_text_is_found(found: Any, text: str, is_cut: bool):
    """In one piece or in parts, without the reasoning before it."""
    assert completion_in(found) == Completion(text, is_cut)


@pytest.mark.parametrize(
    ("found", "failure", "says"),
    [
        (body("half", "content_filter"), Failure.REFUSED, "content filter"),
        (body(None, refusal="I cannot help with that."), Failure.REFUSED, "I cannot help with that."),
        ({"error": {"message": "Quota", "code": 429}}, Failure.RATE_LIMITED, "Quota"),
        ({"error": {"message": "Slow down", "type": "rate_limit_exceeded"}}, Failure.RATE_LIMITED, "Slow down"),
        ({"error": {"message": "Too big", "code": "400"}}, Failure.REFUSED, "Too big"),
        (
            {"error": {"message": "m", "type": "invalid_request_error", "code": None}},
            Failure.REFUSED,
            "invalid_request",
        ),
        ({"error": {"message": "Late", "code": 504}}, Failure.TIMEOUT, "Late"),
        ({"error": {"message": "Loading", "code": 503}, "choices": []}, Failure.UNAVAILABLE, "Loading"),
        ({"error": "no model"}, Failure.UNAVAILABLE, "no model"),
        (body("<think>\nendless", "length"), Failure.UNUSABLE, "reasoning"),
        (body("hm\n</think>\n\nMondays."), Failure.UNUSABLE, "reasoning"),
        (body("", "length"), Failure.UNUSABLE, "limit of tokens"),
        (body("<think>hm</think>"), Failure.UNUSABLE, "empty"),
        (body(None, "tool_calls", tool_calls=[{}]), Failure.UNUSABLE, "not a chat completion"),
        (body([{"type": "image_url"}]), Failure.UNUSABLE, "not a chat completion"),
        (body(7), Failure.UNUSABLE, "not a chat completion"),
        ({"choices": [None]}, Failure.UNUSABLE, "not a chat completion"),
        ([], Failure.UNUSABLE, "not a chat completion"),
    ],
)
def test_there_is_a_reason_where_there_is_no_text(found: Any, failure: Failure, says: str):
    """Its kind decides whether the service is asked again; the words of the service are kept."""
    said = completion_in(found)
    assert isinstance(said, NoCompletion)
    assert (said.failure, says in said.detail) == (failure, True)


@given(st.text("<think>/ a\n", max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_pieces_have_the_text_of_the_whole(text: str, cuts: list[int]):
    """With any reasoning, and for any cut of an answer into pieces."""
    for whole in (text, f"<think>{text}", f" <think>hm</think>\n{text}"):
        bounds = [0, *sorted(cuts), len(whole)]
        pieces = ReasoningFilter()
        told = "".join(pieces.passed(whole[start:end]) for start, end in itertools.pairwise(bounds))
        told += pieces.rest()
        expected = without_reasoning(whole)
        if expected is not None:
            assert told == expected


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("So it is", "\n\n[the answer was cut off at its limit of 2,000 tokens]"),
        ("Так это и было", "\n\n[ответ обрезан: достигнут предел в 2\u00a0000 токенов]"),
    ],
)
def test_a_text_that_was_cut_off_says_so_in_its_language(text: str, mark: str):
    """Its last line, after an empty one."""
    assert cut_off_mark(text, 2_000) == mark

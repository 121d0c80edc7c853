"""The input of the Archivist and how its answer becomes a memory."""

from __future__ import annotations

import orjson
import pytest

from highwater.streams.models.answers import UnusableAnswerError
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.memory import SUMMARY_TOKENS_MAX, archivist_input, parse_summary


@pytest.mark.requirement("R1.26")
def test_the_archivist_gets_query_answer_and_time() -> None:
    """R1.26: exactly these three, in text that can be sent."""
    said = orjson.loads(archivist_input("why?\x00", "because\ud800", "2026-01-31T10:00:00Z"))
    assert said == {"query": "why?", "answer": "because", "timestamp": "2026-01-31T10:00:00Z"}


def test_a_summary_is_taken_as_it_is() -> None:
    """Tags in their order and the text."""
    found = parse_summary('```json\n{"tags": ["KRaft", "controller"], "text": " The user asked. ", "more": 1}\n```')
    assert found == (("KRaft", "controller"), "The user asked.")


def test_tags_are_cut_and_never_a_reason_to_refuse() -> None:
    """Blank tags and repetitions in another case are dropped, long ones are cut, there are at most 16; no tag at all is valid."""
    tags = [" a  b ", "A B", "", "\x00", "c", "x" * 100, *map(str, range(20))]
    found = parse_summary(orjson.dumps({"tags": tags, "text": "t"}).decode())
    assert found.tags == ("a b", "c", "x" * 64, *map(str, range(13)))
    assert parse_summary('{"text": "t"}').tags == ()
    assert parse_summary('{"text": "t", "tags": null}').tags == ()


def test_a_long_text_is_cut() -> None:
    """At most 2,000 tokens are kept of it."""
    found = parse_summary(orjson.dumps({"tags": [], "text": "remember " * 9_000}).decode())
    assert SUMMARY_TOKENS_MAX - 50 < count_tokens(found.text) <= SUMMARY_TOKENS_MAX
    assert found.text.endswith("remember")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Remembered!",
        "[]",
        "{}",
        '{"tags": []}',
        '{"tags": [], "text": ""}',
        '{"tags": [], "text": " \\u0000 "}',
        '{"tags": [], "text": null}',
        '{"tags": [], "text": ["a"]}',
        '{"tags": "a", "text": "t"}',
        '{"tags": [1], "text": "t"}',
        '{"tags": ["a"], "text": "half',
    ],
)
def test_a_summary_that_says_nothing_is_refused(text: str) -> None:
    """No JSON, no text, a blank one, tags that are no texts."""
    with pytest.raises(UnusableAnswerError):
        parse_summary(text)

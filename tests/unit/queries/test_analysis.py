"""How an answer of the Analyzer is read."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.models.answers import UnusableAnswerError
from highwater.streams.queries.analysis import parse_analysis

WHOLE = {
    "needs_context": True,
    "context_type": "memory",
    "time_scope": "last week",
    "search_keywords": ["KRaft"],
    "context_found": {"lsm_ids": [7]},
}


def said(**more: Any) -> str:
    """The whole answer with other values."""
    return orjson.dumps(WHOLE | more).decode()


@pytest.mark.requirement("R1.18")
def test_a_whole_answer_is_taken_as_it_is() -> None:
    """R1.18: the five fields; further ones are left out."""
    assert parse_analysis(said(reasoning="because")) == WHOLE


def test_what_is_missing_or_null_gets_a_default() -> None:
    """Only needs_context must be there."""
    defaults = {"context_type": "general", "time_scope": "unspecified", "search_keywords": [], "context_found": {}}
    assert parse_analysis('{"needs_context": true}') == {"needs_context": True, **defaults}
    nothing = dict.fromkeys(defaults)
    assert parse_analysis(orjson.dumps({"needs_context": False, **nothing}).decode()) == {
        "needs_context": False, **defaults, "context_type": "none",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "Sorry, I cannot do that.",
        "<html><body>502 Bad Gateway</body></html>",
        '{"needs_context": true, "search_key',
        "[]",
        "null",
        '"needs_context"',
        '{"needs_context": true} {"needs_context": false}',
        '{"needs_context": NaN}',
        "```json\n[1]\n```",
        f"```json\n{said()}\n```\n```json\n{said()}\n```",
        "{}",
        '{"needs_context": "true"}',
        '{"needs_context": 1}',
        said(context_type=3),
        said(time_scope=["now"]),
        said(search_keywords="KRaft"),
        said(search_keywords=["KRaft", 3]),
        said(context_found=[7]),
        said(context_found="none"),
        said(context_found={"x": "y" * 20_000}),
        '{"needs_context": true, "context_found": ' + '{"a":' * 100 + "1" + "}" * 101,
        '{"a":' * 100_000,
    ],
)
def test_an_answer_of_another_form_is_refused(text: str) -> None:
    """HTML, half a JSON, two of them, none, other types: each is unusable, with a message of bounded length."""
    with pytest.raises(UnusableAnswerError) as refused:
        parse_analysis(text)
    assert 0 < len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        said(),
        f"```json\n{said()}\n```",
        f"```\r\n{said()}\n```\n",
        f"Here it is:\n\n```json\n{said()}\n```\nDone.",
        f"\ufeff{said()}",
    ],
)
def test_a_fence_is_put_up_with(text: str) -> None:
    """Models put JSON into a fence even if the prompt forbids it."""
    assert parse_analysis(text) == WHOLE


def test_texts_that_cannot_be_stored_are_cleaned() -> None:
    """PostgreSQL holds neither U+0000 nor half of a surrogate pair, as characters or as escapes; whole pairs stay."""
    text = r'{"needs_context": true, "context_type": "a\u0000b\ud83dc", "search_keywords": ["\ud83d\ude00\\ud800"], '
    found = parse_analysis(text + '"context_found": {"k\\u0000": ["\\udc00x"]}, "time_scope": "\x00\ud800now"}')
    assert found["context_type"] == "abc"
    assert found["search_keywords"] == ["\U0001f600\\ud800"]
    assert found["context_found"] == {"k": ["x"]}
    assert found["time_scope"] == "now"


def test_keywords_are_few_short_and_different() -> None:
    """Spaces are trimmed, blanks and repetitions left out, long ones cut, more than 32 dropped."""
    words = [" KRaft  mode ", "", "  ", "KRaft mode", "x" * 500, *map(str, range(100))]
    found = parse_analysis(said(search_keywords=words))["search_keywords"]
    assert found[:3] == ["KRaft mode", "x" * 80, "0"]
    assert len(found) == 32


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*WHOLE, "other"]), JSON) | st.text())
def test_an_answer_is_either_refused_or_storable(value: object) -> None:
    """Any answer of a model gives the five fields of their types in text that can be stored, or the one error."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        found = parse_analysis(text)
    except UnusableAnswerError:
        return
    assert list(found) == list(WHOLE)
    stored = orjson.dumps(found)
    assert b"\\u0000" not in stored
    assert [type(value) for value in found.values()] == [bool, str, str, list, dict]

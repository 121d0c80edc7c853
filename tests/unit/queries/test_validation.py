"""The rules for events of queries, by name of the reason and the field."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.queries import PROMPT_CHANGED, QUERY_SUBMITTED, RUN_CONTROLLED
from highwater.streams.checks import is_uuid
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.validation import (
    PROMPT_BYTES_MAX,
    QUERY_BYTES_MAX,
    QUERY_TOKENS_MAX,
    check_queries_event,
)
from highwater.streams.validation import check_event

ONE, TWO, USER = (f"{n}b5e3f5e-6a40-4a2b-9d5a-0d3c0f6a1c11" for n in "012")
QUERY = {"request_id": ONE, "user_id": USER, "query": "What changed?", "ts": 1_700_000_000_000}
CANCEL = {"request_id": ONE, "user_id": USER, "action": "cancel", "stage": None, "new_request_id": None, "ts": 1}
RESTART = {**CANCEL, "action": "restart", "stage": "assembler", "new_request_id": TWO}
GIVEN = {"role_name": "Mentor", "prompt_template": "Answer briefly.", "is_active": True, "ts": 1}
GOOD = [
    (QUERY_SUBMITTED, QUERY),
    (QUERY_SUBMITTED, {**QUERY, "query": "two\nlines\tand a tab \x1b \U0001f600"}),
    (RUN_CONTROLLED, CANCEL),
    *((RUN_CONTROLLED, {**RESTART, "stage": stage}) for stage in ("analyzer", "assembler", "responder")),
    *((PROMPT_CHANGED, {**GIVEN, "role_name": role}) for role in ("Analyzer", "Assembler", "Mentor", "Archivist")),
    (PROMPT_CHANGED, {**GIVEN, "prompt_template": "x" * PROMPT_BYTES_MAX}),
]
LATEST_MS = 253_402_300_799_999
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    (QUERY_SUBMITTED, {**QUERY, "request_id": ONE.upper()}, "bad_uuid", "request_id"),
    (QUERY_SUBMITTED, {**QUERY, "request_id": ONE.replace("-", "")}, "bad_uuid", "request_id"),
    (QUERY_SUBMITTED, {**QUERY, "request_id": ONE + "\n"}, "bad_uuid", "request_id"),
    (QUERY_SUBMITTED, {**QUERY, "request_id": "{" + ONE + "}"}, "bad_uuid", "request_id"),
    (QUERY_SUBMITTED, {**QUERY, "user_id": ""}, "empty_id", "user_id"),
    (QUERY_SUBMITTED, {**QUERY, "user_id": "a\nb"}, "control_character", "user_id"),
    (QUERY_SUBMITTED, {**QUERY, "user_id": TWO.upper()}, "bad_uuid", "user_id"),
    (QUERY_SUBMITTED, {**QUERY, "query": ""}, "empty_text", "query"),
    (QUERY_SUBMITTED, {**QUERY, "query": " \n\t\u2003"}, "empty_text", "query"),
    (QUERY_SUBMITTED, {**QUERY, "query": "a\x00b"}, "control_character", "query"),
    (QUERY_SUBMITTED, {**QUERY, "query": "a\ud800b"}, "control_character", "query"),
    (QUERY_SUBMITTED, {**QUERY, "query": "x" * (QUERY_BYTES_MAX + 1)}, "too_long", "query"),
    (QUERY_SUBMITTED, {**QUERY, "query": "\u00e9" * (QUERY_BYTES_MAX // 2 + 1)}, "too_long", "query"),
    (QUERY_SUBMITTED, {**QUERY, "query": "so " * (QUERY_TOKENS_MAX + 1)}, "too_long", "query"),
    (QUERY_SUBMITTED, {**QUERY, "ts": LATEST_MS + 1}, "time_out_of_range", "ts"),
    (RUN_CONTROLLED, {**CANCEL, "action": "pause"}, "bad_action", "action"),
    (RUN_CONTROLLED, {**CANCEL, "stage": "analyzer"}, "not_a_restart", "stage"),
    (RUN_CONTROLLED, {**CANCEL, "new_request_id": TWO}, "not_a_restart", "new_request_id"),
    (RUN_CONTROLLED, {**RESTART, "stage": None}, "bad_stage", "stage"),
    (RUN_CONTROLLED, {**RESTART, "stage": "archivist"}, "bad_stage", "stage"),
    (RUN_CONTROLLED, {**RESTART, "new_request_id": None}, "bad_uuid", "new_request_id"),
    (RUN_CONTROLLED, {**RESTART, "new_request_id": ONE}, "bad_uuid", "new_request_id"),
    (RUN_CONTROLLED, {**RESTART, "new_request_id": "x"}, "bad_uuid", "new_request_id"),
    (PROMPT_CHANGED, {**GIVEN, "role_name": "mentor"}, "bad_role", "role_name"),
    (PROMPT_CHANGED, {**GIVEN, "prompt_template": "\n"}, "empty_text", "prompt_template"),
    (PROMPT_CHANGED, {**GIVEN, "prompt_template": "x" * (PROMPT_BYTES_MAX + 1)}, "too_long", "prompt_template"),
    (PROMPT_CHANGED, {**GIVEN, "ts": -(10**15)}, "time_out_of_range", "ts"),
]


@pytest.mark.parametrize(("topic", "event"), GOOD)
def test_good_events_pass(topic: str, event: dict[str, Any]):
    """Events that users and administrators may publish pass, by the one check of all topics."""
    check_event(topic, event, embedding_dimensions=3)


@pytest.mark.parametrize(("topic", "event", "reason", "field"), BAD)
def test_bad_events_are_refused_by_name(topic: str, event: dict[str, Any], reason: str, field: str):
    """Each fault has a reason that a program can rely on and names its field."""
    with pytest.raises(InvalidEventError) as caught:
        check_queries_event(topic, event)
    assert (caught.value.reason, caught.value.field) == (reason, field)


def test_the_longest_queries_pass():
    """Exactly the limit of tokens passes; exactly the limit of bytes, in few tokens, passes too."""
    said = "so"
    while count_tokens(said + " so") <= QUERY_TOKENS_MAX:
        said += " so" * max(1, (QUERY_TOKENS_MAX - count_tokens(said)) // 2)
    assert count_tokens(said) == QUERY_TOKENS_MAX
    check_queries_event(QUERY_SUBMITTED, {**QUERY, "query": said})
    wide = " " * (QUERY_BYTES_MAX - 1) + "x"
    if count_tokens(wide) <= QUERY_TOKENS_MAX:
        check_queries_event(QUERY_SUBMITTED, {**QUERY, "query": wide})


def test_a_uuid_has_one_form():
    """Lower case with hyphens: two spellings of one user would be two users."""
    assert [is_uuid(text) for text in (USER, USER.upper(), USER[:-1], USER + "0", f"urn:uuid:{USER}", "")] == [
        True, False, False, False, False, False,
    ]  # fmt: skip

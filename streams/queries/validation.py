"""What an event of the queries must satisfy beyond its schema, the same at the API, in `publish` and in the sinks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import InvalidEventError
from streams.checks import check_text, check_time
from streams.queries.states import RESTARTABLE
from streams.queries.tokens import count_tokens

SUBMITTED, CONTROLLED, PROMPT = "queries.query-submitted", "queries.run-controlled", "queries.prompt-changed"
# A query is never cut, and half of the 8,000 tokens of a final context (R1.22) is left for what was found.
QUERY_TOKENS_MAX = 4_000
# Eight bytes a token: more than any written language takes.
QUERY_BYTES_MAX = 32 << 10
# Twenty times the longest of our own; it is sent with every call of its stage.
PROMPT_BYTES_MAX = 16 << 10
ROLES = ("Analyzer", "Assembler", "Mentor", "Archivist")
CANCEL, RESTART = "cancel", "restart"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Surrogates have no UTF-8, so PostgreSQL takes them as little as NUL, which `check_text` refuses.
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_uuid(value: str) -> bool:
    """Whether an id is a UUID in its one canonical form: lower case with hyphens."""
    return _UUID.fullmatch(value) is not None


def _check_uuid(name: str, value: str | None) -> None:
    if value is not None and not is_uuid(value):
        raise InvalidEventError("bad_uuid", f"{name} is not a UUID in lower case with hyphens", field=name)


def _check_said(name: str, value: str, bytes_max: int) -> None:
    check_text(name, value, bytes_max)
    if _SURROGATE.search(value):
        raise InvalidEventError("control_character", f"{name} holds half a character (a surrogate)", field=name)
    if not value.strip():
        raise InvalidEventError("empty_text", f"{name} is empty", field=name)


def _check_query(name: str, value: str) -> None:
    _check_said(name, value, QUERY_BYTES_MAX)
    tokens = count_tokens(value)
    if tokens > QUERY_TOKENS_MAX:
        raise InvalidEventError("too_long", f"{name} has {tokens} tokens, at most {QUERY_TOKENS_MAX} fit", field=name)


def _check_prompt(name: str, value: str) -> None:
    _check_said(name, value, PROMPT_BYTES_MAX)


def _check_role(name: str, value: str) -> None:
    if value not in ROLES:
        raise InvalidEventError("bad_role", f"{name} is none of {', '.join(ROLES)}", field=name)


def _check_action(name: str, value: str) -> None:
    if value not in (CANCEL, RESTART):
        raise InvalidEventError("bad_action", f"{name} is neither {CANCEL} nor {RESTART}", field=name)


def _check_control(event: Mapping[str, Any]) -> None:
    """A restart says from where and as what; a cancellation has neither."""
    if event["action"] == CANCEL:
        for name in ("stage", "new_request_id"):
            if event[name] is not None:
                raise InvalidEventError("not_a_restart", f"{name} belongs to a restart", field=name)
        return
    if event["stage"] not in RESTARTABLE:
        raise InvalidEventError("bad_stage", f"stage is none of {', '.join(RESTARTABLE)}", field="stage")
    if event["new_request_id"] is None or event["new_request_id"] == event["request_id"]:
        raise InvalidEventError(
            "bad_uuid", "a restart is a run of its own and needs another id", field="new_request_id"
        )


# Checked in this order, so that of several faults the first field's is named. A field means the same in every topic.
_FIELDS: Mapping[str, Callable[[str, Any], None]] = {
    "request_id": _check_uuid,
    "user_id": _check_uuid,
    "new_request_id": _check_uuid,
    "role_name": _check_role,
    "action": _check_action,
    "ts": check_time,
    "query": _check_query,
    "prompt_template": _check_prompt,
}


def check_queries_event(topic: str, event: Mapping[str, Any]) -> None:
    """Check a decoded event of a topic of the queries; times in ms since 1970.

    Raises:
        InvalidEventError: with the field at fault and a reason a program can rely on.
    """
    for name, check in _FIELDS.items():
        if name in event:
            check(name, event[name])
    if topic == CONTROLLED:
        _check_control(event)

"""The rules of query events beyond their schema, the same in the API, in `publish` and in the sinks."""

from __future__ import annotations

from collections.abc import Mapping

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.queries import RUN_CONTROLLED, RunControlled
from highwater.schemas.topic_names import event_of
from highwater.streams.checks import (
    Check,
    check_fields,
    check_id,
    check_time,
    check_user_text,
    check_uuid,
    one_of,
    unless_null,
)
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.states import RESTARTABLE
from highwater.streams.queries.users import check_user_id

# A query is never cut, and half of the 8,000 tokens of a final context (R1.22) is left for sources.
QUERY_TOKENS_MAX = 4_000
# Eight bytes per token: more than any written language needs.
QUERY_BYTES_MAX = 32 << 10
# Twenty times the longest built-in one; it is sent with every call of its stage.
PROMPT_BYTES_MAX = 16 << 10
ROLES = ("Analyzer", "Assembler", "Mentor", "Archivist")
CANCEL, RESTART = "cancel", "restart"


def _check_query(name: str, value: str) -> None:
    check_user_text(name, value, QUERY_BYTES_MAX)
    tokens = count_tokens(value)
    if tokens > QUERY_TOKENS_MAX:
        raise InvalidEventError("too_long", f"{name} has {tokens} tokens, at most {QUERY_TOKENS_MAX} fit", field=name)


def check_prompt(name: str, value: str) -> None:
    """Check that a prompt is not empty and not too long.

    Raises:
        InvalidEventError: it is not.
    """
    check_user_text(name, value, PROMPT_BYTES_MAX)


def _check_action(name: str, value: str) -> None:
    if value not in (CANCEL, RESTART):
        raise InvalidEventError("bad_action", f"{name} is neither {CANCEL} nor {RESTART}", field=name)


def _check_control(event: RunControlled) -> None:
    """Check that a restart names its stage and its new run, and that a cancellation names neither."""
    if event["action"] == CANCEL:
        for name, value in (("stage", event["stage"]), ("new_request_id", event["new_request_id"])):
            if value is not None:
                raise InvalidEventError("not_a_restart", f"{name} belongs to a restart", field=name)
        return
    if event["stage"] not in RESTARTABLE:
        raise InvalidEventError("bad_stage", f"stage is none of {', '.join(RESTARTABLE)}", field="stage")
    if event["new_request_id"] is None or event["new_request_id"] == event["request_id"]:
        raise InvalidEventError(
            "bad_uuid", "a restart is a run of its own and needs another id", field="new_request_id"
        )


# Checked in this order. A field means the same in every topic.
_FIELDS: Mapping[str, Check] = {
    "request_id": unless_null(check_uuid),
    "user_id": unless_null(check_user_id),
    "organization_id": unless_null(check_id),
    "new_request_id": unless_null(check_uuid),
    "role_name": one_of(ROLES, "bad_role"),
    "action": _check_action,
    "ts": check_time,
    "query": _check_query,
    "prompt_template": check_prompt,
}


def check_queries_event(topic: str, event: Mapping[str, object]) -> None:
    """Check a decoded event of a query topic; times in ms since 1970.

    Raises:
        InvalidEventError: with the field at fault and a reason a program can rely on.
    """
    check_fields(_FIELDS, event)
    if control := event_of(RUN_CONTROLLED, topic, event):
        _check_control(control)

"""The rules of job events beyond their schema, the same in the API, in `publish` and in the sinks."""

from __future__ import annotations

from collections.abc import Mapping

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import JOB_SUBMITTED
from highwater.schemas.topic_names import event_of
from highwater.streams.checks import (
    Check,
    check_fields,
    check_id,
    check_text,
    check_time,
    check_uuid,
    one_of,
    unless_null,
)
from highwater.streams.identity.plans import PLAN_NAMES, SUBSCRIPTIONS
from highwater.streams.jobs.args import check_outline, parse_args

REVOKE, REPUBLISH, RESTART, APPROVE = "revoke", "republish", "restart", "approve"
ROLES = ("viewer", "assistant", "editor", "admin")
# A sentence or two, for people; it is shown beside the job.
REASON_BYTES_MAX = 1 << 10
# Far above any single use, and low enough that the sum of a month fits a bigint.
AMOUNT_MAX = 10**12


def _check_amount(name: str, value: int) -> None:
    if not 0 <= value <= AMOUNT_MAX:
        raise InvalidEventError("bad_amount", f"{name} is {value}; a use has 0 to {AMOUNT_MAX:,}", field=name)


def _check_reason(name: str, value: str) -> None:
    check_text(name, value, REASON_BYTES_MAX)


# Checked in this order. A field means the same in every topic.
_FIELDS: Mapping[str, Check] = {
    "job_id": check_uuid,
    "presentation_id": check_uuid,
    "use_id": check_uuid,
    "organization_id": check_id,
    "user_id": check_id,
    "plan": one_of(PLAN_NAMES, "unknown_plan"),
    "subscription_status": unless_null(one_of(SUBSCRIPTIONS, "bad_status")),
    "role": one_of(ROLES, "bad_role"),
    "action": one_of((REVOKE, REPUBLISH, RESTART, APPROVE), "bad_action"),
    "reason": _check_reason,
    "outline": unless_null(check_outline),
    "tokens": _check_amount,
    "cost_cents": _check_amount,
    "ts": check_time,
    "expires_at": unless_null(check_time),
    "period_end": unless_null(check_time),
}


def check_jobs_event(topic: str, event: Mapping[str, object]) -> None:
    """Check a decoded event of a job topic; times in ms since 1970.

    Raises:
        InvalidEventError: with the field at fault and a reason a program can rely on.
    """
    check_fields(_FIELDS, event)
    if submitted := event_of(JOB_SUBMITTED, topic, event):
        parse_args(submitted["kind"], submitted["args"])

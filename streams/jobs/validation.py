"""What an event of the jobs must satisfy beyond its schema, the same at the API, in `publish` and in the sinks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import JOB_SUBMITTED
from highwater.schemas.topic_names import event_of
from highwater.streams.checks import check_id, check_text, check_time, check_uuid
from highwater.streams.identity.plans import PLAN_NAMES, SUBSCRIPTIONS
from highwater.streams.jobs.args import check_outline, parse_args

REVOKE, REPUBLISH, RESTART, APPROVE = "revoke", "republish", "restart", "approve"
ROLES = ("viewer", "editor", "admin")
# A sentence or two, for people; it is shown beside the job.
REASON_BYTES_MAX = 1 << 10
# Far above any one use, and low enough that the sum of a month of them fits a bigint.
AMOUNT_MAX = 10**12


def _check_one_of(allowed: Collection[str], reason: str) -> Callable[[str, str], None]:
    def check(name: str, value: str) -> None:
        if value not in allowed:
            raise InvalidEventError(reason, f"{name} is none of {', '.join(allowed)}", field=name)

    return check


def _unless_null(check: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def checked(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return checked


def _check_amount(name: str, value: int) -> None:
    if not 0 <= value <= AMOUNT_MAX:
        raise InvalidEventError("bad_amount", f"{name} is {value}; a use has 0 to {AMOUNT_MAX:,}", field=name)


def _check_reason(name: str, value: str) -> None:
    check_text(name, value, REASON_BYTES_MAX)


# Checked in this order, so that of several faults the first field's is named. A field means the same in every topic.
_FIELDS: Mapping[str, Callable[[str, Any], None]] = {
    "job_id": check_uuid,
    "presentation_id": check_uuid,
    "use_id": check_uuid,
    "organization_id": check_id,
    "user_id": check_id,
    "plan": _check_one_of(PLAN_NAMES, "unknown_plan"),
    "subscription_status": _unless_null(_check_one_of(SUBSCRIPTIONS, "bad_status")),
    "role": _check_one_of(ROLES, "bad_role"),
    "action": _check_one_of((REVOKE, REPUBLISH, RESTART, APPROVE), "bad_action"),
    "reason": _check_reason,
    "outline": _unless_null(check_outline),
    "tokens": _check_amount,
    "cost_cents": _check_amount,
    "ts": check_time,
    "expires_at": _unless_null(check_time),
    "period_end": _unless_null(check_time),
}


def check_jobs_event(topic: str, event: Mapping[str, object]) -> None:
    """Check a decoded event of a topic of the jobs; times in ms since 1970.

    Raises:
        InvalidEventError: with the field at fault and a reason a program can rely on.
    """
    for name, check in _FIELDS.items():
        if name in event:
            check(name, event[name])
    if submitted := event_of(JOB_SUBMITTED, topic, event):
        parse_args(submitted["kind"], submitted["args"])

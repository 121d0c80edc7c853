"""The rules for events of jobs, by name of the reason and the field."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import CONTROL, JOB_SUBMITTED, PLAN_CHANGED, ROLE_CHANGED, TOKENS_USED, VIEW_RECORDED
from highwater.streams.jobs.validation import check_jobs_event
from highwater.streams.validation import check_event

ONE = "0b5e3f5e-6a40-4a2b-9d5a-0d3c0f6a1c11"
JOB = {
    "job_id": ONE,
    "kind": "generation",
    "organization_id": "acme",
    "user_id": "ada",
    "args": '{"query": "What is a log?"}',
    "ts": 1,
    "expires_at": None,
}
STOP = {"job_id": ONE, "action": "revoke", "reason": "", "ts": 1}
PLAN_OF = {"organization_id": "acme", "plan": "team", "ts": 1, "subscription_status": None, "period_end": None}
ROLE_OF = {"user_id": "ada", "role": "editor", "ts": 1}
USED = {"organization_id": "acme", "use_id": ONE, "tokens": 0, "cost_cents": 0, "ts": 1}


@pytest.mark.parametrize(
    ("topic", "event"),
    [
        (JOB_SUBMITTED, JOB),
        (JOB_SUBMITTED, {**JOB, "expires_at": 0}),
        (CONTROL, STOP),
        (CONTROL, {**STOP, "action": "republish", "reason": "lost"}),
        (VIEW_RECORDED, {"presentation_id": ONE, "ts": 1}),
        (TOKENS_USED, {**USED, "tokens": 10**12}),
        *((PLAN_CHANGED, {**PLAN_OF, "plan": plan}) for plan in ("free", "pro", "team", "enterprise")),
        *(
            (PLAN_CHANGED, {**PLAN_OF, "subscription_status": status, "period_end": 5})
            for status in ("active", "trialing", "past_due", "suspended")
        ),
        *((ROLE_CHANGED, {**ROLE_OF, "role": role}) for role in ("viewer", "assistant", "editor", "admin")),
    ],
)
def test_good_events_pass(topic: str, event: dict[str, Any]) -> None:
    """By the checks of the jobs, and by those that the API and `publish` go through."""
    check_jobs_event(topic, event)
    check_event(topic, event, embedding_dimensions=384)


@pytest.mark.parametrize(
    ("topic", "event", "reason", "field"),
    [
        (JOB_SUBMITTED, {**JOB, "job_id": ONE.upper()}, "bad_uuid", "job_id"),
        (JOB_SUBMITTED, {**JOB, "organization_id": " "}, "empty_id", "organization_id"),
        (JOB_SUBMITTED, {**JOB, "user_id": "a\0b"}, "control_character", "user_id"),
        (TOKENS_USED, {**USED, "use_id": "1"}, "bad_uuid", "use_id"),
        (TOKENS_USED, {**USED, "tokens": 10**12 + 1}, "bad_amount", "tokens"),
        (TOKENS_USED, {**USED, "cost_cents": -1}, "bad_amount", "cost_cents"),
        (JOB_SUBMITTED, {**JOB, "kind": "dream"}, "unknown_kind", "kind"),
        (JOB_SUBMITTED, {**JOB, "args": "query"}, "args_not_json", "args"),
        (JOB_SUBMITTED, {**JOB, "args": '{"query": ""}'}, "empty_text", "args.query"),
        (JOB_SUBMITTED, {**JOB, "ts": 10**15}, "time_out_of_range", "ts"),
        (JOB_SUBMITTED, {**JOB, "expires_at": 10**15}, "time_out_of_range", "expires_at"),
        (CONTROL, {**STOP, "action": "pause"}, "bad_action", "action"),
        (CONTROL, {**STOP, "job_id": "7"}, "bad_uuid", "job_id"),
        (CONTROL, {**STOP, "reason": "x" * 1_025}, "too_long", "reason"),
        (VIEW_RECORDED, {"presentation_id": "7", "ts": 1}, "bad_uuid", "presentation_id"),
        (PLAN_CHANGED, {**PLAN_OF, "plan": "gold"}, "unknown_plan", "plan"),
        (PLAN_CHANGED, {**PLAN_OF, "subscription_status": "happy"}, "bad_status", "subscription_status"),
        (PLAN_CHANGED, {**PLAN_OF, "period_end": 10**15}, "time_out_of_range", "period_end"),
        (PLAN_CHANGED, {**PLAN_OF, "organization_id": "x" * 513}, "too_long", "organization_id"),
        (ROLE_CHANGED, {**ROLE_OF, "role": "king"}, "bad_role", "role"),
    ],
)
def test_bad_events_are_refused_by_name(topic: str, event: dict[str, Any], reason: str, field: str) -> None:
    """Each fault has its reason and its field, the same everywhere."""
    for check in (check_jobs_event, lambda t, e: check_event(t, e, embedding_dimensions=384)):
        with pytest.raises(InvalidEventError) as caught:
            check(topic, event)
        assert (reason, field) == (caught.value.reason, caught.value.field)

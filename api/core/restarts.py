"""Restarting failed work together over HTTP: what requests for jobs and for queries ask alike, and what answers have in common.

Invariant: what is executed is planned again, so that work that was restarted or erased meanwhile is left out; each restart is an
event of its own, and the request is recorded as a privileged action before any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from highwater.api.core.times import time_of
from highwater.streams.checks import TS_MS_MAX, TS_MS_MIN
from highwater.streams.engines.restarts import RestartPlan

CHARACTERS_MAX, TIME_CHARACTERS_MAX = 500, 40
REASON = "Only those whose error contains this text, ignoring case."
FROM, TO = "Only those that failed then or later (ISO 8601).", "Only those that failed before then (ISO 8601)."


class RestartsAsked(BaseModel):
    """Which failed work is restarted, by what jobs and queries both have."""

    model_config = ConfigDict(extra="forbid", strict=True)
    reason: str = Field("", max_length=CHARACTERS_MAX, description=REASON)
    user_id: str | None = Field(None, max_length=CHARACTERS_MAX, description="Only those of this user.")
    begin: str | None = Field(None, alias="from", max_length=TIME_CHARACTERS_MAX, description=FROM)
    end: str | None = Field(None, alias="to", max_length=TIME_CHARACTERS_MAX, description=TO)

    def span_ms(self) -> tuple[int, int]:
        """Failed from then and before then.

        Raises:
            UnprocessableError: one of them is no time.
        """
        begin = TS_MS_MIN if self.begin is None else time_of(self.begin, "from")
        return begin, TS_MS_MAX if self.end is None else time_of(self.end, "to")


class UserFailures(TypedDict):
    """How much failed work of a user the filter finds."""

    user_id: str
    count: int


def members_of(plan: RestartPlan, positions: Sequence[str], *, noun: str, is_executed: bool) -> dict[str, Any]:
    """What every answer of a plan has; `noun`: what is counted, in the plural."""
    return {
        "executed": is_executed,
        "found": plan.found,
        "is_whole": plan.is_whole,
        "reasons": [{"reason": reason, noun: count} for reason, count in plan.reasons],
        "users": [{"user_id": user_id, "count": count} for user_id, count in plan.users],
        "positions": list(positions),
    }

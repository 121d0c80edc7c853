"""Which failed work (jobs or queries) a filter finds, and the result of restarting it in bulk. Pure; times in ms since
1970.

Invariant: page, API and command all use `plan_restarts`, so the displayed plan is what happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Work that is restarted at once: as much as the sink of controls stores in one batch.
RESTARTS_MAX = 500
# Failed work that is checked, the latest; beyond this the plan is marked as incomplete.
LOOKED_AT_MAX = 5_000
# Users that a plan counts one by one.
USERS_COUNTED_MAX = 20
# The beginning of an error is the general reason; the part after a colon belongs to the single piece of work.
_REASON_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class FailedWork:
    """A job or the run of a query that failed.

    Attributes:
        place: where it continues: the number of stored steps, or the name of the stage that begins.
        left: remaining steps or stages, if their number is known.
    """

    id: str
    user_id: str
    error: str
    place: int | str
    left: int
    failed_ms: int

    @property
    def reason(self) -> str:
        """Return the general reason, without the details of this work."""
        return self.error.partition(":")[0].strip()[:_REASON_CHARACTERS_MAX] or "unknown"


@dataclass(frozen=True, slots=True)
class RestartFilter:
    """Which of the failed work that was read is selected; ids, users and times are selected by the statement that reads it.

    Attributes:
        reason: a part of its error, ignoring case; empty: any.
        place: only work that continues there.
    """

    reason: str = ""
    place: int | str | None = None

    def finds(self, work: FailedWork) -> bool:
        """Return whether failed work is selected."""
        return self.reason.casefold() in work.error.casefold() and self.place in (None, work.place)


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """The result of a restart. `found`: how much the filter finds; `is_whole`: whether all failed work was checked.

    `reasons` and `users` count the found work, the most frequent first; only the users with the most are included.
    """

    work: tuple[FailedWork, ...]
    found: int
    reasons: tuple[tuple[str, int], ...]
    users: tuple[tuple[str, int], ...]
    is_whole: bool

    @property
    def left(self) -> int:
        """Return the remaining steps or stages, if their number is known."""
        return sum(max(0, one.left) for one in self.work)


def plan_restarts(
    failed: Sequence[FailedWork], restart_filter: RestartFilter, *, restarts_max: int = RESTARTS_MAX
) -> RestartPlan:
    """Return the plan for the failed work that a filter finds: of more than `restarts_max`, the last to fail.

    Args:
        failed: the latest failed work, at most one more than `LOOKED_AT_MAX`.
        restart_filter: the filter.
        restarts_max: how much is restarted at once.
    """
    found = [one for one in failed[:LOOKED_AT_MAX] if restart_filter.finds(one)]
    found.sort(key=lambda one: (-one.failed_ms, one.id))
    return RestartPlan(
        tuple(found[:restarts_max]),
        len(found),
        _counted(one.reason for one in found),
        _counted(one.user_id for one in found)[:USERS_COUNTED_MAX],
        len(failed) <= LOOKED_AT_MAX,
    )


def _counted(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(names).items(), key=lambda one: (-one[1], one[0])))

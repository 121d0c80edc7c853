"""Which failed work (jobs or queries) a filter finds, and what restarting it together begins. Pure; times in ms since 1970.

Invariant: page, API and command decide by `plan_restarts` alone, so that what is shown beforehand is what happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

# Work that is restarted at once: as much as the sink of controls stores in one batch.
RESTARTS_MAX = 500
# Failed work that is looked at, the latest; of more the plan says that it is not whole.
LOOKED_AT_MAX = 5_000
# Users that a plan counts one by one.
USERS_COUNTED_MAX = 20
# The beginning of an error says what went wrong; what follows a colon is of the one piece of work.
_REASON_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class FailedWork:
    """A job or the run of a query that failed.

    Attributes:
        place: where it goes on: the number of steps that are stored, or the name of the stage that begins.
        left: steps or stages that are still to be made, as far as their number is known.
    """

    id: str
    user_id: str
    error: str
    place: int | str
    left: int
    failed_ms: int

    @property
    def reason(self) -> str:
        """What went wrong, without what is of this work alone."""
        return self.error.partition(":")[0].strip()[:_REASON_CHARACTERS_MAX] or "unknown"


@dataclass(frozen=True, slots=True)
class RestartFilter:
    """Which failed work is meant.

    Attributes:
        reason: what its error contains, in any case of letters; empty: any.
        place: only what goes on there.
        ids: only these; None: all that is found.
    """

    reason: str = ""
    place: int | str | None = None
    ids: Collection[str] | None = None

    def finds(self, work: FailedWork) -> bool:
        """Whether failed work is meant."""
        return (
            self.reason.casefold() in work.error.casefold()
            and self.place in (None, work.place)
            and (self.ids is None or work.id in self.ids)
        )


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart begins. `found`: how much the filter finds; `is_whole`: whether all failed work was looked at.

    `reasons` and `users` count what was found, the most frequent first; of the users those with the most.
    """

    work: tuple[FailedWork, ...]
    found: int
    reasons: tuple[tuple[str, int], ...]
    users: tuple[tuple[str, int], ...]
    is_whole: bool

    @property
    def left(self) -> int:
        """Steps or stages that are still to be made, as far as their number is known."""
        return sum(max(0, one.left) for one in self.work)


def plan_restarts(
    failed: Sequence[FailedWork], wanted: RestartFilter, *, restarts_max: int = RESTARTS_MAX
) -> RestartPlan:
    """What a restart of the failed work that a filter finds begins: of more than `restarts_max` what failed last.

    Args:
        failed: the latest failed work, at most `LOOKED_AT_MAX` and one.
        wanted: the filter.
        restarts_max: how much is restarted at once.
    """
    found = [one for one in failed[:LOOKED_AT_MAX] if wanted.finds(one)]
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

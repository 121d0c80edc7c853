"""The answers of a limit of requests: the same cases for the pure function and for the script in Redis (R4.36)."""

from __future__ import annotations

from typing import NamedTuple

# Window of all cases, in milliseconds.
WINDOW_MS = 10_000
# An arbitrary time at which the cases begin, far from 0 so that subtracting the window stays positive.
START_MS = 1_700_000_000_000


class Step(NamedTuple):
    """One request: milliseconds after the start, whether it is admitted, and after how long a refused one may come again."""

    after_ms: int
    is_admitted: bool
    retry_after_ms: int = 0


class LimitCase(NamedTuple):
    """Requests of one address in their order."""

    name: str
    requests_max: int
    steps: tuple[Step, ...]


CASES = (
    LimitCase("the first is admitted", 1, (Step(0, True),)),
    LimitCase("as many as the limit in one instant, not one more", 3, (*[Step(0, True)] * 3, Step(0, False, 10_000))),
    LimitCase(
        "fifteen in ten seconds, the recommendation",
        15,
        (*[Step(number * 100, True) for number in range(15)], Step(1_500, False, 8_500), Step(9_999, False, 1)),
    ),
    LimitCase(
        "exactly a window later is a new span", 1, (Step(0, True), Step(9_999, False, 1), Step(10_000, True))
    ),
    LimitCase(
        "a refused one does not count",
        1,
        (Step(0, True), Step(5_000, False, 5_000), Step(9_000, False, 1_000), Step(10_000, True)),
    ),
    LimitCase(
        "who comes back when told is admitted",
        2,
        (Step(0, True), Step(4_000, True), Step(6_000, False, 4_000), Step(10_000, True), Step(10_001, False, 3_999)),
    ),
    LimitCase(
        "the span slides: a burst across a border of fixed spans is refused",
        3,
        (*[Step(9_900, True)] * 3, Step(10_100, False, 9_800), Step(19_899, False, 1), *[Step(19_900, True)] * 3),
    ),
    LimitCase(
        "places come free one by one",
        2,
        (
            Step(0, True),
            Step(6_000, True),
            Step(10_000, True),
            Step(12_000, False, 4_000),
            Step(16_000, True),
            Step(16_000, False, 4_000),
        ),
    ),
    LimitCase("a long pause forgets all", 2, (Step(0, True), Step(0, True), Step(3_600_000, True), Step(3_600_000, True))),
    LimitCase(
        "a clock that went back holds nobody longer than a window",
        1,
        (Step(100_000, True), Step(0, False, 10_000)),
    ),
)  # fmt: skip

"""Groups dead letters by reason, and filters them. No I/O.

Invariant. What is counted is what is done: a plan names its offsets, and letters that came later are not handled. A
letter that somebody else resends meanwhile is not resent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from highwater.api.dead_letters.letter import Letter, RefusedLetterError, plan_sending

UNKNOWN = "unknown"


@dataclass(slots=True)
class ReasonGroup:
    """Dead letters of one topic with one reason; `open` counts those not yet resent."""

    topic: str
    reason: str
    count: int = 0
    open: int = 0
    latest_ms: int = 0

    def add(self, letter: Letter) -> None:
        """Add one letter."""
        self.count += 1
        self.open += letter.is_open
        self.latest_ms = max(self.latest_ms, letter.record.arrived_ms)


def reason_of(letter: Letter) -> str:
    """Return the reason of a letter, also of one without a reason."""
    return letter.reason or UNKNOWN


class ByReason:
    """Counts letters as they are read."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], ReasonGroup] = {}

    def add(self, letter: Letter) -> None:
        """Count one letter."""
        place = letter.topic, reason_of(letter)
        self._groups.setdefault(place, ReasonGroup(*place)).add(letter)

    def groups(self) -> list[ReasonGroup]:
        """Return the groups with the most open letters first."""
        return sorted(self._groups.values(), key=lambda one: (-one.open, -one.count, one.topic, one.reason))


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Selects letters: an empty `reason` or `contains` matches any; `is_open_only` selects those not yet resent."""

    reason: str = ""
    contains: str = ""
    is_open_only: bool = True

    def finds(self, letter: Letter) -> bool:
        """Return whether a letter matches; `contains` searches detail, consumer, key and origin, ignoring case."""
        if self.is_open_only and not letter.is_open:
            return False
        if self.reason and reason_of(letter) != self.reason:
            return False
        if not self.contains:
            return True
        document = letter.document()
        shown = " ".join(str(document[name] or "") for name in ("detail", "group", "key", "origin"))
        return self.contains.casefold() in shown.casefold()


@dataclass(slots=True)
class RedrivePlan:
    """What resending the found letters would do: the offsets to send, those sent before, and what cannot be sent."""

    offsets: set[int] = field(default_factory=set)
    once_more: set[int] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, letter: Letter, partitions: Mapping[str, int]) -> None:
        """Plan one letter that the filter finds."""
        try:
            plan_sending(letter, None, partitions, by="", now_ms=0)
        except RefusedLetterError:
            self.refused[
                "do not say where they came from" if letter.origin is None else "were too large to be kept"
            ] += 1
            return
        self.offsets.add(letter.position.offset)
        if not letter.is_open:
            self.once_more.add(letter.position.offset)

    def still_holds(self, letter: Letter) -> bool:
        """Return whether a letter is still to be sent, as it was read after the plan was made."""
        offset = letter.position.offset
        return offset in self.offsets and (letter.is_open or offset in self.once_more)


@dataclass(slots=True)
class DropPlan:
    """What deleting up to the last found letter would do; Kafka deletes only from the beginning."""

    last_offset: int = -1
    found: int = 0
    others_open: int = 0
    _open_since_found: int = 0

    def add(self, letter: Letter, *, is_found: bool) -> None:
        """Plan one letter, in the order of the topic."""
        if is_found:
            self.found += 1
            self.others_open += self._open_since_found
            self._open_since_found = 0
            self.last_offset = letter.position.offset
        else:
            self._open_since_found += letter.is_open


def planned_redrive(
    letters: Iterable[Letter], letter_filter: LetterFilter, partitions: Mapping[str, int]
) -> RedrivePlan:
    """Return the plan for all letters that a filter finds."""
    plan = RedrivePlan()
    for letter in letters:
        if letter_filter.finds(letter):
            plan.add(letter, partitions)
    return plan


def planned_drop(
    letters: Iterable[Letter], letter_filter: LetterFilter, only: Container[int] | None = None
) -> DropPlan:
    """Return the plan for deleting them; `only`: of the found ones those at these offsets."""
    plan = DropPlan()
    for letter in letters:
        is_meant = only is None or letter.position.offset in only
        plan.add(letter, is_found=is_meant and letter_filter.finds(letter))
    return plan

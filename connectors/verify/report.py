"""The result of a verification: what was compared, what was not and why, and each difference with the event it starts
at.

Invariant: nothing is omitted silently. What cannot be compared is named with a reason, what changed meanwhile is
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Listed differences per table or topic; all are counted. A broken one differs in every row, and ten are enough to see
# it.
LISTED_MAX = 20
# Shown characters of a value; more of a vector or a document adds nothing.
_SHOWN_MAX = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the log: the expected and the found value, and the event at which it starts."""

    key: str
    field: str
    expected: Any
    found: Any
    position: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it for people and programs; long values are cut."""
        return {
            "key": self.key,
            "field": self.field,
            "expected": _shown(self.expected),
            "found": _shown(self.found),
            "position": self.position,
        }


@dataclass(slots=True)
class Checked:
    """One table, read model, kind of decision or of effect.

    `moved` counts what changed during the check and could not be judged; `left_out` gives the reasons for fields that
    are not a function of the log, with counts where they were counted.
    """

    part: str
    name: str
    compared: int = 0
    moved: int = 0
    skipped: str | None = None
    differences: list[Difference] = field(default_factory=list)
    differences_count: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def differs(self, difference: Difference) -> None:
        """Count a difference, and list it up to the limit."""
        self.differences_count += 1
        if len(self.differences) < LISTED_MAX:
            self.differences.append(difference)

    def leave_out(self, why: str, count: int = 1) -> None:
        """Count something that is not compared."""
        self.left_out[why] = self.left_out.get(why, 0) + count

    def add(self, other: Checked) -> None:
        """Add the result of another part."""
        self.compared += other.compared
        self.moved += other.moved
        if other.skipped is not None:
            self.skipped = other.skipped if self.skipped is None else f"{self.skipped}; {other.skipped}"
        self.differences_count += other.differences_count
        self.differences += other.differences[: LISTED_MAX - len(self.differences)]
        for why, count in other.left_out.items():
            self.left_out[why] = self.left_out.get(why, 0) + count

    def as_json(self) -> dict[str, Any]:
        """Return it for people and programs."""
        return {
            "part": self.part,
            "name": self.name,
            "compared": self.compared,
            "differences": self.differences_count,
            "moved": self.moved,
            "skipped": self.skipped,
            "left_out": self.left_out,
            "listed": [one.as_json() for one in self.differences],
        }


@dataclass(slots=True)
class Report:
    """Everything that was checked, and what is left out by name."""

    checked: list[Checked] = field(default_factory=list)
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def differences(self) -> int:
        """Return the total number of differences."""
        return sum(one.differences_count for one in self.checked)

    @property
    def compared(self) -> int:
        """Return how many rows, decisions and effects were compared."""
        return sum(one.compared for one in self.checked)

    def listed(self) -> Iterator[tuple[Checked, Difference]]:
        """Yield the listed differences, with what they belong to."""
        for one in self.checked:
            for difference in one.differences:
                yield one, difference

    def as_json(self) -> dict[str, Any]:
        """Return it for people and programs."""
        return {
            "differences": self.differences,
            "compared": self.compared,
            "checked": [one.as_json() for one in self.checked],
            "excluded": {name: dict(fields) for name, fields in self.excluded.items()},
        }


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"

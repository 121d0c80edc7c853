"""What a verification found: what was compared, what was not and why, and each difference with the event it starts at.

Invariant: nothing is left out silently. What cannot be compared is named with a reason, what moved meanwhile is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Differences that are listed of one table or topic; all are counted. A broken one differs in every row, and ten say as much.
LISTED_MAX = 20
# Characters of a value that are shown; a vector or a document says no more by being longer.
_SHOWN_MAX = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as the log says: what the log gives and what was found, and the event that it starts at."""

    key: str
    field: str
    expected: Any
    found: Any
    position: str | None

    def as_json(self) -> dict[str, Any]:
        """For people and programs; long values are cut."""
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

    `moved` counts what changed while it was looked at and could not be judged; `left_out` says of what no function of the log
    is why, with how many, where they were counted.
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
        """Count a difference, and list it while there is room."""
        self.differences_count += 1
        if len(self.differences) < LISTED_MAX:
            self.differences.append(difference)

    def leave_out(self, why: str, count: int = 1) -> None:
        """Count something that is not compared."""
        self.left_out[why] = self.left_out.get(why, 0) + count

    def add(self, other: Checked) -> None:
        """Count what was found of another part of it as well."""
        self.compared += other.compared
        self.moved += other.moved
        if other.skipped is not None:
            self.skipped = other.skipped if self.skipped is None else f"{self.skipped}; {other.skipped}"
        self.differences_count += other.differences_count
        self.differences += other.differences[: LISTED_MAX - len(self.differences)]
        for why, count in other.left_out.items():
            self.left_out[why] = self.left_out.get(why, 0) + count

    def as_json(self) -> dict[str, Any]:
        """For people and programs."""
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
    """All that was checked, and what is left out by name."""

    checked: list[Checked] = field(default_factory=list)
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def differences(self) -> int:
        """How many there are in all."""
        return sum(one.differences_count for one in self.checked)

    @property
    def compared(self) -> int:
        """How many rows, decisions and effects were compared."""
        return sum(one.compared for one in self.checked)

    def listed(self) -> Iterator[tuple[Checked, Difference]]:
        """The differences that are listed, with what they are of."""
        for one in self.checked:
            for difference in one.differences:
                yield one, difference

    def as_json(self) -> dict[str, Any]:
        """For people and programs."""
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

"""What a condition and its process share; separate from the language, which only the process loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

NAMES = ("key", "value", "headers", "time", "topic", "partition", "offset")
# Nobody writes a longer one by hand, and parsing time grows with the length.
CHARACTERS_MAX = 4_000


class Missing(Enum):
    """Marks a record for which the expression has no result."""

    NO_ANSWER = 0


NO_ANSWER = Missing.NO_ANSWER


@dataclass(frozen=True, slots=True)
class Records:
    """What is known of the records of a topic: the names of the fields of its events, and which of them are times.

    `is_open`: the events are any JSON values, whose fields are unknown.
    """

    topic: str
    fields: Sequence[str]
    times: Sequence[str]
    is_open: bool = False


@dataclass(slots=True)
class Outcomes:
    """How many records the expression had a boolean result for, or none, and why the first of those."""

    answered: int = 0
    failed: int = 0
    first_failure: str | None = None

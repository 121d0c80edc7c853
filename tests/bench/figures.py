"""What every benchmark returns: figures, each the median of its runs between the least and the greatest."""

import statistics
from collections.abc import Sequence
from typing import NotRequired, TypedDict


class Figure(TypedDict):
    """One figure: the median, least and greatest of its runs; a point of a curve also says the size of its work.

    `at` 1000.0 and `of` "events/s" are a load of a thousand events a second.
    """

    name: str
    system: str
    value: float
    unit: str
    runs: int
    min: float
    max: float
    at: NotRequired[float]
    of: NotRequired[str]


def point(found: Figure, at: float, of: str) -> Figure:
    """The figure as a point of a curve: what was measured at this size of the work."""
    return {**found, "at": at, "of": of}


def figure(name: str, system: str, unit: str, values: Sequence[float]) -> Figure:
    """A figure of its runs."""
    return {
        "name": name,
        "system": system,
        "value": round(statistics.median(values), 4),
        "unit": unit,
        "runs": len(values),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }

"""What every benchmark returns: figures, each the median of its runs between the least and the greatest."""

import statistics
from collections.abc import Sequence
from typing import TypedDict


class Figure(TypedDict):
    """One figure: the median, least and greatest of its runs."""

    name: str
    system: str
    value: float
    unit: str
    runs: int
    min: float
    max: float


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

"""The results of a season.

Invariant: it contains exactly the final matches; a match in play is not one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from highwater.schemas.positions import Cause
from highwater.streams.league.match_objects import newest_first, settled
from highwater.streams.league.matches import Match


def results(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the document: matches with a result, latest kickoff first."""
    final = newest_first(match for match in matches if match.is_final)
    return {"season": season, "results": [settled(match) for match in final]}


def results_causes(matches: Iterable[Match]) -> Iterator[Cause | None]:
    """Yield the events behind it: dates and results of matches with one."""
    for match in matches:
        if match.is_final:
            yield match.schedule_by
            yield match.result_by

"""The results of a season.

The invariant: it holds exactly the matches that are final; a match in play is none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from highwater.schemas.positions import Cause
from highwater.streams.league.match_objects import newest_first, settled
from highwater.streams.league.matches import Match


def results(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """The document: matches with a result, the latest kickoff first."""
    final = newest_first(match for match in matches if match.is_final)
    return {"season": season, "results": [settled(match) for match in final]}


def results_causes(matches: Iterable[Match]) -> Iterator[Cause | None]:
    """The events behind it: dates and results of matches that have one."""
    for match in matches:
        if match.is_final:
            yield match.schedule_by
            yield match.result_by

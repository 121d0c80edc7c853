"""All matches of a season by round.

Invariant: a goal in play does not change it; only dates and results do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from highwater.streams.league.match_objects import by_kickoff, settled
from highwater.streams.league.matches import Match


def schedule(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the document: rounds in order of their first kickoff, in each the matches by kickoff, then home team."""
    rounds: dict[str, list[Match]] = {}
    for match in by_kickoff(matches):
        rounds.setdefault(match.round, []).append(match)
    return {
        "season": season,
        "rounds": [{"round": name, "matches": [settled(match) for match in held]} for name, held in rounds.items()],
    }

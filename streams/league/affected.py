"""Which documents a change of a match can affect (R4.30).

Invariant: too many are named rather than too few, since an unchanged document gets no new version; but a goal in play
names none of a season's pages that only count results, or every goal would rebuild them.
"""

from __future__ import annotations

from typing import Protocol

from highwater.schemas.league import MatchChanged
from highwater.streams.league.resources import PREDICTION_DAYS, resource

SCHEDULE, SCORE, RESULT = "schedule", "score", "result"

# Pages of a season that show results and dates, never a score in play.
_RESULT_PAGES = ("league_table", "league_schedule", "league_results", "league_stats", "league_bracket")
# The first page of the rating (R4.22), and with it the others.
_FIRST_PAGE = "1"


class EarlierMatch(Protocol):
    """What was known of a match before; a row of the agent is one."""

    @property
    def home(self) -> str:
        """The home team."""

    @property
    def away(self) -> str:
        """The away team."""

    @property
    def state(self) -> str:
        """Return its progress."""


def affected_keys(before: EarlierMatch | None, event: MatchChanged) -> list[str]:
    """Return keys of the documents that may differ after a change, each once, the most urgent first.

    Args:
        before: the match as the agent knew it; None if it is new. Its teams and state are compared in addition to the
            event, in case an event in between was never seen.
        event: the change. One that names nothing known counts as a change of everything.
    """
    changed = set(event["changed"])
    is_score_only = changed == {SCORE}
    match_id, season = event["match_id"], event["season"]
    found = [
        resource("match_live", match_id),
        resource("matches_live"),
        resource("league_stats_live", season),
        resource("match_meta", match_id),
    ]
    if not is_score_only:
        found += [resource(kind, season) for kind in _RESULT_PAGES]
        found.append(resource("match_window"))
    teams = [event["home"], event["away"], *event["former_teams"], *((before.home, before.away) if before else ())]
    found += [resource("club_matches", team) for team in teams]
    # The other ranges are built with it (`Kind.is_family`).
    found.append(resource("predictions_active", str(PREDICTION_DAYS)))
    if not is_score_only:
        # Also a new date: it decides whether a vote came before kickoff, and so counts.
        found.append(resource("leaderboard", _FIRST_PAGE))
    if not is_score_only or before is None or before.state != event["state"]:
        found.append(resource("admin_stats"))
    return list(dict.fromkeys(one.key for one in found))

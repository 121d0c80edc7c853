"""Events of leagues that a log lost, recreated from the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Row
from highwater.connectors.remaking import Remake
from highwater.schemas.league import (
    AD_CHANGED,
    COMMENT_POSTED,
    MATCH_FINALIZED,
    MATCH_SCHEDULED,
    MATCH_UPDATED,
    PREDICTION_MADE,
    RULES_CHANGED,
    VOTE_CAST,
)


def _rules(row: Row) -> Mapping[str, Any]:
    return {"season": row["season"], **orjson.loads(row["rules"])}


_EARLIER = "events that a later one of the same subject replaced, and dead letters"
REMAKES: Final[Mapping[str, Remake]] = {
    MATCH_SCHEDULED: Remake(QUERIES["remade_schedules"], _EARLIER, (QUERIES["move_schedules"],)),
    MATCH_UPDATED: Remake(
        QUERIES["remade_scores"], f"scores of finished matches, {_EARLIER}", (QUERIES["move_scores"],)
    ),
    MATCH_FINALIZED: Remake(QUERIES["remade_results"], _EARLIER, (QUERIES["move_results"],)),
    VOTE_CAST: Remake(QUERIES["remade_votes"], _EARLIER, (QUERIES["move_votes"], QUERIES["move_vote_counts"])),
    PREDICTION_MADE: Remake(QUERIES["remade_predictions"], _EARLIER, (QUERIES["move_predictions"],)),
    COMMENT_POSTED: Remake(
        QUERIES["remade_comments"],
        "comments beyond the latest of a match, and dead letters",
        (QUERIES["move_comments"],),
    ),
    AD_CHANGED: Remake(QUERIES["remade_ads"], _EARLIER, (QUERIES["move_ads"],)),
    RULES_CHANGED: Remake(QUERIES["remade_rules"], _EARLIER, (QUERIES["move_rules"],), event=_rules),
}

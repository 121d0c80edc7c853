"""Events of feeds that a log lost, recreated from the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Row
from highwater.connectors.remaking import Remake
from highwater.schemas.feeds import INSIGHT_INGESTED, INSIGHT_RETRACTED, PLAN_CHANGED, SUBSCRIPTION_CHANGED


def _insight(row: Row) -> Mapping[str, Any]:
    """Return the event; producers' vectors cannot be distinguished from computed ones, so it has none."""
    names = ("insight_id", "channel_id", "ts", "text", "url")
    return {**{name: row[name] for name in names}, "embedding": None, "embedding_model": None}


REMAKES: Final[Mapping[str, Remake]] = {
    INSIGHT_INGESTED: Remake(
        QUERIES["remade_insights"],
        "repeats of insights, events that became dead letters, texts of retracted insights, vectors of producers",
        (QUERIES["move_insights"], QUERIES["move_channels"]),
        event=_insight,
    ),
    INSIGHT_RETRACTED: Remake(QUERIES["remade_retractions"], "retractions of unknown insights"),
    SUBSCRIPTION_CHANGED: Remake(QUERIES["remade_subscriptions"], "changes of a subscription before its last one"),
    PLAN_CHANGED: Remake(QUERIES["remade_plans"], "changes of a plan before its last one"),
}

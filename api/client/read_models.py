"""Owns the catalogue of read models as tables: their paths, rows and types.

Invariant: rows are reshaped answers of the API, never computed; all pages are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from highwater.api.client.frames import TIME, schema_of

Document = Mapping[str, Any]
Rows = Callable[[Document], Iterator[dict[str, Any]]]

_TEXT, _TEXTS, _WHOLE, _REAL, _FLAG = pa.string(), pa.list_(pa.string()), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True, slots=True)
class ReadModel:
    """One read model: its path with `{}` for each parameter, how a document becomes rows, and their schema."""

    path: str
    rows: Rows
    schema: pa.Schema
    about: str


def _each(name: str) -> Rows:
    """The rows are a list of the document."""

    def rows(document: Document) -> Iterator[dict[str, Any]]:
        yield from document[name]

    return rows


def _named(name: str, column: str) -> Rows:
    """The rows are a list of names."""

    def rows(document: Document) -> Iterator[dict[str, Any]]:
        for one in document[name]:
            yield {column: one}

    return rows


def _pending(document: Document) -> Iterator[dict[str, Any]]:
    for channel, pending in document["by_channel"].items():
        yield {"channel_id": channel, "pending": pending}


def _xy(place: Any) -> dict[str, Any]:
    return {"x": None, "y": None} if place is None else {"x": place[0], "y": place[1]}


# Lists parallel to the members, which are rows of their own in `members`.
_OF_MEMBERS = ("confidences", "since", "arrived", "positions")


def _clusters(document: Document) -> Iterator[dict[str, Any]]:
    for one in document["clusters"]:
        kept = {name: value for name, value in one.items() if name not in (*_OF_MEMBERS, "position")}
        yield {**kept, **_xy(one.get("position"))}


def _members(document: Document) -> Iterator[dict[str, Any]]:
    """Yield every insight of the version: members by cluster, then those in no cluster."""
    for one in document["clusters"]:
        ids = one["insight_ids"]
        nothing = [None] * len(ids)
        parallel = zip(ids, *(one.get(name) or nothing for name in _OF_MEMBERS), strict=True)
        for insight_id, confidence, since, arrived, place in parallel:
            yield {
                "cluster_id": one["cluster_id"],
                "label": one["label"],
                "insight_id": insight_id,
                "confidence": confidence,
                "since": since,
                "arrived": arrived,
                **_xy(place),
            }
    leaning = {
        insight_id: (one["cluster_id"], confidence)
        for one in document["clusters"]
        for insight_id, confidence in zip(one.get("nearby_ids", ()), one.get("nearby_confidences", ()), strict=True)
    }
    outside = document.get("outside") or {"insight_ids": (), "positions": ()}
    for insight_id, place in zip(outside["insight_ids"], outside["positions"], strict=True):
        leans_to, confidence = leaning.get(insight_id, (None, None))
        yield {"insight_id": insight_id, "leans_to": leans_to, "leaning": confidence, **_xy(place)}


def _curations(document: Document) -> Iterator[dict[str, Any]]:
    for one in document["curations"]:
        yield {name: value for name, value in one.items() if name != "parts"}


def _feed(document: Document) -> Iterator[dict[str, Any]]:
    for one in document["items"]:
        kept = {
            name: value
            for name, value in one.items()
            if name not in ("position", "entered", "arrived", "representative")
        }
        yield {
            **kept,
            "insight_ids": [insight["insight_id"] for insight in one.get("insights", ())],
            "insights": [insight["text"] for insight in one.get("insights", ())],
            **_xy(one.get("position")),
        }


def _table(document: Document) -> Iterator[dict[str, Any]]:
    for row in document["table"]:
        yield {**row, "deducted": sum(one["points"] for one in row.get("deductions", ()))}


def _schedule(document: Document) -> Iterator[dict[str, Any]]:
    for one in document["rounds"]:
        yield from map(_match, one["matches"])


def _results(document: Document) -> Iterator[dict[str, Any]]:
    yield from map(_match, document["results"])


def _match(match: Document) -> dict[str, Any]:
    extra_time, penalties = match.get("extra_time") or {}, match.get("penalties") or {}
    return {
        **match,
        "home_goals_extra_time": extra_time.get("home_goals"),
        "away_goals_extra_time": extra_time.get("away_goals"),
        "home_penalties": penalties.get("home_goals"),
        "away_penalties": penalties.get("away_goals"),
    }


_MATCH = schema_of(
    match_id=_TEXT, season=_TEXT, round=_TEXT, kickoff=TIME, time_unknown=_FLAG, status=_TEXT, state=_TEXT, home=_TEXT,
    away=_TEXT, home_goals=_WHOLE, away_goals=_WHOLE, finalized_at=TIME, home_goals_extra_time=_WHOLE,
    away_goals_extra_time=_WHOLE, home_penalties=_WHOLE, away_penalties=_WHOLE,
)  # fmt: skip
_CHANNEL = schema_of(channel_id=_TEXT, current_seq=_WHOLE, last_insight_ts=TIME)

READ_MODELS: Mapping[str, ReadModel] = {
    "clusters": ReadModel(
        "/api/users/{}/clusters",
        _clusters,
        schema_of(
            cluster_id=_TEXT, label=_TEXT, title=_TEXT, keywords=_TEXTS, summary=_TEXT, size=_WHOLE, representative_id=_TEXT,
            insight_ids=_TEXTS, x=_REAL, y=_REAL, radius=_REAL, born_version=_WHOLE, changed_version=_WHOLE,
            nearby_ids=_TEXTS, nearby_confidences=pa.list_(_REAL), written_version=_WHOLE, theme=_TEXT,
            label_by=_TEXT,
        ),
        "a user's clusters, one a row",
    ),
    "members": ReadModel(
        "/api/users/{}/clusters",
        _members,
        schema_of(
            cluster_id=_TEXT, label=_TEXT, insight_id=_TEXT, confidence=_REAL, since=_WHOLE, x=_REAL, y=_REAL, leans_to=_TEXT,
            leaning=_REAL, arrived=_WHOLE,
        ),
        "a user's insights with their cluster and place on the map; those in no cluster come last",
    ),
    "feed": ReadModel(
        "/api/users/{}/feed",
        _feed,
        schema_of(
            cluster_id=_TEXT, title=_TEXT, summary=_TEXT, keywords=_TEXTS, theme=_TEXT, size=_WHOLE, born_version=_WHOLE,
            changed_version=_WHOLE, x=_REAL, y=_REAL, insight_ids=_TEXTS, insights=_TEXTS,
        ),
        "the items of a user's feed",
    ),
    "history": ReadModel(
        "/api/users/{}/clusters/{}/history",
        _each("events"),
        schema_of(
            cluster_version=_WHOLE, kind=_TEXT, label=_TEXT, size=_WHOLE, previous_size=_WHOLE, joined=_WHOLE,
            arrived=_WHOLE, left=_WHOLE, expired=_WHOLE, jaccard=_REAL, related=_TEXTS, evolved_at=TIME,
        ),
        "the changes of one of a user's clusters, from version to version",
    ),
    "curations": ReadModel(
        "/api/users/{}/curations",
        _curations,
        schema_of(
            curation_id=_TEXT, kind=_TEXT, cluster_id=_TEXT, label=_TEXT, cluster_ids=_TEXTS, part_ids=_TEXTS, is_resting=_FLAG,
            position=_TEXT, said_at=TIME,
        ),
        "what a reader has said of the clusters: names, merges and splits",
    ),
    "pending": ReadModel(
        "/api/users/{}/pending", _pending, schema_of(channel_id=_TEXT, pending=_WHOLE), "what waits for a user's next rebuild"
    ),
    "subscriptions": ReadModel(
        "/api/users/{}/subscriptions", _named("channels", "channel_id"), schema_of(channel_id=_TEXT), "a user's channels"
    ),
    "queries": ReadModel(
        "/api/users/{}/queries",
        _each("queries"),
        schema_of(
            request_id=_TEXT, query=_TEXT, status=_TEXT, state=_TEXT, archive_status=_TEXT, error=_TEXT, restarted_from=_TEXT,
            created_at=TIME, completed_at=TIME, position=_TEXT,
        ),
        "what a user asked, the newest first",
    ),
    "channels": ReadModel("/api/channels", _each("channels"), _CHANNEL, "every channel and its head"),
    "seasons": ReadModel("/api/league", _each("seasons"), schema_of(season=_TEXT), "every season"),
    "table": ReadModel(
        "/api/league/{}/table",
        _table,
        schema_of(
            position=_WHOLE, team=_TEXT, played=_WHOLE, won=_WHOLE, drawn=_WHOLE, lost=_WHOLE, goals_for=_WHOLE,
            goals_against=_WHOLE, goal_difference=_WHOLE, points=_WHOLE, deducted=_WHOLE,
        ),
        "the standings of a season",
    ),
    "schedule": ReadModel("/api/league/{}/schedule", _schedule, _MATCH, "the matches of a season"),
    "results": ReadModel("/api/league/{}/results", _results, _MATCH, "the results of a season, the latest first"),
    "leaderboard": ReadModel(
        "/api/leaderboard",
        _each("users"),
        schema_of(rank=_WHOLE, user_id=_TEXT, points=_WHOLE, exact=_WHOLE, correct=_WHOLE, judged=_WHOLE),
        "who predicts best",
    ),
    "search": ReadModel(
        "/api/chunks/search",
        _each("results"),
        schema_of(
            ns=_TEXT, slot=_TEXT, source_id=_TEXT, chunk_no=_WHOLE, title=_TEXT, url=_TEXT, content=_TEXT, published_at=TIME,
            created_at=TIME, updated_at=TIME, similarity=_REAL, cosine=_REAL, text_score=_REAL, decay=_REAL,
            age_days=_REAL, temperature=_TEXT, final=_REAL, stale=_FLAG,
        ),
        "the best chunks of a namespace",
    ),
}  # fmt: skip

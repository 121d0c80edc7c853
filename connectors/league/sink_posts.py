"""The sink of posts: comments on matches, advertisements, and the rules of seasons.

Invariant: the id of a comment is its position, so reading it again adds none. The latest event about an advertisement
in the order of the broker's time counts; a deleted one remains as a row without a payload, so that an older event
cannot restore it. The latest rules of a season replace the former ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import orjson

from highwater.connectors.identity import erasures
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.league.known_matches import KnownMatches
from highwater.connectors.league.locks import hold_ads
from highwater.connectors.league.matches import cause_of, checked
from highwater.connectors.league.refreshing import RefreshRequest, request_refreshes
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.league import (
    AD_CHANGED,
    COMMENT_POSTED,
    RULES_CHANGED,
    AdChanged,
    CommentPosted,
    RulesChanged,
)
from highwater.schemas.positions import Cause
from highwater.streams.clock import to_datetime
from highwater.streams.league.resources import resource

Post: TypeAlias = CommentPosted | AdChanged | RulesChanged
# 120 are shown (R4.18); later ones move up when users are erased. Eight times as many limits the comments of a match.
COMMENTS_KEPT_MAX = 1_000


class Prepared(NamedTuple):
    """Valid events of a batch by kind, in the order of causes, and refused events."""

    comments: list[Event[CommentPosted]]
    ads: list[Event[AdChanged]]
    rules: list[Event[RulesChanged]]
    dead: list[DeadLetter]


class Ad(NamedTuple):
    """The contents of an advertisement; None = deleted, or never existed."""

    payload: str | None
    cause: Cause


class PostsSink(Handler[Post, Prepared]):
    """Stores a row per comment, advertisement, and season with rules; publishes changes once per batch."""

    group = "posts"
    topics = (COMMENT_POSTED, AD_CHANGED, RULES_CHANGED)
    # Comments of 8 KiB: 16 MB at most in one statement.
    batch_max = 2_000

    def __init__(self, context: ProcessContext) -> None:
        self._codec = context.codec
        self._clock = context.clock
        self._matches = KnownMatches(context.pool, context.admin)

    async def prepare(self, events: Sequence[Event[Post]]) -> Prepared:
        """Check the events, and that the matches of comments are known."""
        good, dead = checked(events)
        ordered = sorted(good, key=lambda event: cause_of(event.record).order)
        known, unknown = await self._matches.split(of_topic(ordered, COMMENT_POSTED))
        ads, rules = of_topic(ordered, AD_CHANGED), of_topic(ordered, RULES_CHANGED)
        return Prepared(known, ads, rules, [*dead, *unknown])

    async def apply(self, tx: Connection, events: Sequence[Event[Post]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Store what is new and publish the affected documents."""
        told = []
        if prepared.comments:
            newest = await _store_comments(tx, await erasures.valid(tx, prepared.comments))
            told += [
                RefreshRequest(match_id, [resource("match_comments", match_id)], "comments", caused_by)
                for match_id, caused_by in newest.items()
            ]
        if prepared.ads:
            caused_by = await _store_ads(tx, prepared.ads)
            told += [RefreshRequest("ads", [resource("ads")], "ads", caused_by)] if caused_by else []
        told += [
            RefreshRequest(row["season"], [resource("league_table", row["season"])], "rules", row["position"])
            for row in await _store_rules(tx, prepared.rules)
        ]
        await request_refreshes(tx, self._codec, told, source="sinks/posts", now_ms=self._clock())
        return prepared.dead


async def _store_comments(tx: Connection, comments: Sequence[Event[CommentPosted]]) -> dict[str, str]:
    """Store comments, drop those above the limit, and return the newest new one that remained, by match."""
    if not comments:
        return {}
    matches = sorted({event.value["match_id"] for event in comments})
    await tx.execute(QUERIES["lock_matches"], matches)  # two batches would drop the same rows in two orders
    rows = [
        (v["match_id"], r.arrived_ms, str(r.position), v["user_id"], v["text"], to_datetime(v["ts"]))
        for r, v in comments
    ]
    added = await tx.fetch(QUERIES["store_comments"], *map(list, zip(*rows, strict=True)))
    dropped = await tx.fetch(QUERIES["trim_comments"], matches, COMMENTS_KEPT_MAX)
    stayed = {row["position"] for row in added} - {row["position"] for row in dropped}
    return {match_id: position for match_id, _, position, *_ in rows if position in stayed}


async def _store_rules(tx: Connection, events: Sequence[Event[RulesChanged]]) -> Sequence[Row]:
    """Store the latest rules of each season; return season and position of those that changed."""
    last = {value["season"]: (value, cause_of(record)) for record, value in events}
    rows = [
        (season, orjson.dumps({name: told for name, told in value.items() if name != "season"}).decode(), *cause)
        for season, (value, cause) in sorted(last.items())
    ]
    return await tx.fetch(QUERIES["store_rules"], *map(list, zip(*rows, strict=True))) if rows else []


async def _store_ads(tx: Connection, events: Sequence[Event[AdChanged]]) -> str:
    """Store the latest state of each advertisement; return the position of the last visible change, or ""."""
    await hold_ads(tx)
    rows = await tx.fetch(QUERIES["ads_held"], sorted({event.value["ad_id"] for event in events}))
    held = {row["ad_id"]: Ad(row["payload"], Cause(row["changed_ms"], row["position"])) for row in rows}
    last = _last_ads(held, events)
    changed = [ad for ad_id, ad in last.items() if ad.payload != (held[ad_id].payload if ad_id in held else None)]
    if last:
        at = {str(event.record.position): to_datetime(event.value["ts"]) for event in events}
        stored = [
            (ad_id, ad.payload, at[ad.cause.position], ad.cause.arrived_ms, ad.cause.position)
            for ad_id, ad in last.items()
        ]
        await tx.execute(QUERIES["store_ads"], *map(list, zip(*stored, strict=True)))
    return max(changed, key=lambda ad: ad.cause.order).cause.position if changed else ""


def _last_ads(stored: Mapping[str, Ad], events: Sequence[Event[AdChanged]]) -> dict[str, Ad]:
    """Return what is newer than the stored state; the events are in the order of causes."""
    last: dict[str, Ad] = {}
    for record, value in events:
        ad_id, cause = value["ad_id"], cause_of(record)
        if ad_id not in stored or stored[ad_id].cause.order < cause.order:
            last[ad_id] = Ad(None if value["deleted"] else value["payload"], cause)
    return last

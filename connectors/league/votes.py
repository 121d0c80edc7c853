"""Votes and predictions as they are stored, and the counts of votes.

Invariant: a transaction that changes votes of a match locks its row (or erases alone), and recounts before it ends, so
counts always match the votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from highwater.connectors.kafka.records import Event
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.league import PREDICTION_MADE, VOTE_CAST, PredictionMade, VoteCast
from highwater.schemas.positions import Cause
from highwater.schemas.topic_names import ReadTopic
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.league.votes import Settled, VoteKey, Word, settle_words

# Votes and predictions of users on matches.
WordEvent: TypeAlias = VoteCast | PredictionMade


class _Table(NamedTuple):
    """How one of the two kinds is read and written. Events and rows use the same names."""

    said: tuple[str, ...]
    held: str
    store: str
    at: str
    ms: str


_TABLES: Mapping[str, _Table] = {
    VOTE_CAST: _Table(("choice",), QUERIES["votes_held"], QUERIES["store_votes"], "cast_at", "cast_ms"),
    PREDICTION_MADE: _Table(
        ("home_goals", "away_goals"), QUERIES["predictions_held"], QUERIES["store_predictions"], "made_at", "made_ms"
    ),
}


async def store_words(tx: Connection, topic: ReadTopic[WordEvent], events: Sequence[Event[WordEvent]]) -> Settled:
    """Store the last vote or prediction of each user and match in the events of a topic; the matches are locked."""
    table = _TABLES[topic]
    words = [_word(table, event) for event in events if event.record.topic == topic]
    if not words:
        return Settled()
    settled = settle_words(await _held(tx, table, {word.vote_key for word in words}), words)
    if settled.stored:
        rows = [
            (w.match_id, w.user_id, *w.said, to_datetime(w.said_ms), w.cause.arrived_ms, w.cause.position)
            for w in settled.stored
        ]
        await tx.execute(table.store, *map(list, zip(*rows, strict=True)))
    return settled


def _word(table: _Table, event: Event[WordEvent]) -> Word:
    record, value = event
    cause = Cause(record.arrived_ms, str(record.position))
    return Word(
        value["match_id"],
        value["user_id"],
        tuple(cast("Mapping[str, Any]", value)[name] for name in table.said),
        value["ts"],
        cause,
    )


async def _held(tx: Connection, table: _Table, wanted: Iterable[VoteKey]) -> dict[VoteKey, Word]:
    rows = await tx.fetch(table.held, *map(list, zip(*wanted, strict=True)))
    return {(row["match_id"], row["user_id"]): _word_of(table, row) for row in rows}


def _word_of(table: _Table, row: Row) -> Word:
    said = tuple(row[name] for name in table.said)
    cause = Cause(row[table.ms], row["position"])
    return Word(row["match_id"], row["user_id"], said, to_ms(row[table.at]), cause)


def newest_causes(words: Iterable[Word]) -> dict[str, Cause]:
    """Return the last event of each match, in the order of matches."""
    newest: dict[str, Cause] = {}
    for word in sorted(words, key=lambda word: (word.match_id, word.cause.order)):
        newest[word.match_id] = word.cause
    return newest


async def recount(tx: Connection, causes: Mapping[str, Cause]) -> None:
    """Recount the votes of matches; `causes` are the events that changed them."""
    if causes:
        matches = sorted(causes)
        at = [causes[match_id].arrived_ms for match_id in matches]
        await tx.execute(QUERIES["recount_votes"], matches, at, [causes[match_id].position for match_id in matches])

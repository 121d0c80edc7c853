"""The agent of the leagues: it keeps a row of each match, reports stale documents, and at ticks reports that a match
window begins or that a live page ends.

Invariant: that of `streams/agents.py`: send, await the acknowledgements, then write the rows. A repeated change is
reported again, since the first report may not have arrived; rebuilding an unchanged document costs no version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from highwater.schemas.cache import PREWARM_REQUESTED, PrewarmRequested
from highwater.schemas.envelope import header, ms_from_iso
from highwater.schemas.league import MATCH_CHANGED, REFRESH_REQUESTED, MatchChanged, RefreshRequested
from highwater.schemas.streams import TICK, Tick
from highwater.streams.agents import ROWS_PER_TURN, TableAgent, Wiring, items_of, on
from highwater.streams.due import DueIndex
from highwater.streams.intake import Intake, Record, position_of
from highwater.streams.league.affected import affected_keys
from highwater.streams.league.resources import resource
from highwater.streams.league.state import (
    DueReports,
    Row,
    apply_changed,
    decode_row,
    decode_season,
    due_ms,
    encode_row,
    encode_season,
    is_match_key,
    judge,
    match_key,
    season_key,
    told_over,
)
from highwater.streams.league.windows import WindowOptions
from highwater.streams.telemetry import DECISIONS

# Matches checked in one partition at one tick. At about 20 us each that is a tenth of a second, and the keys of this
# many live pages fit into one message even with the longest ids (2.6 MB of 8); the remaining ones come first at the
# next tick.
MATCHES_PER_TICK_MAX = 5_000


class SeasonAgent(TableAgent):
    """Keeps rows of matches; reports changes at once, and windows and ends at ticks (R4.17, R4.30, R4.32)."""

    name = "seasons"
    topics = (MATCH_CHANGED, TICK)
    shared_topics = (TICK,)

    def __init__(self, options: WindowOptions, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self._options = options
        self.handlers = dict((on(MATCH_CHANGED, self._on_changed), on(TICK, self._on_tick)))

    async def _on_changed(self, event: MatchChanged, record: Record) -> None:
        known = decode_row(self._rows.get(match_key(event["season"], event["match_id"])))
        row = apply_changed(known, event)
        request = _match_changed(known, event, self._told_at_ms(record))
        ack = await self._send(REFRESH_REQUESTED, row.season, request, position_of(record), request["planned_at"])
        await ack
        # Written even if nothing changed: a redelivery may come because the changelog lost the first write.
        self._rows[row.key] = encode_row(row)
        prewarmed_ms = decode_season(self._rows.get(season_key(row.season)))
        self._schedule(row, record.partition, prewarmed_ms, self._newest_now(record.partition))
        DECISIONS.labels("match-refresh").inc()

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            keys = self._index(record.partition).take(tick["now"], MATCHES_PER_TICK_MAX)
            rows = [row for key in keys if (row := decode_row(self._rows.get(key.encode()))) is not None]
            prewarmed = self._prewarmed(row.season for row in rows)
            due = judge(rows, prewarmed, self._options, tick["now"])
            await asyncio.gather(*await self._tell(due, tick, record))
            await self._note(due, rows, prewarmed, record.partition, tick["now"])
        self._applied(tick, record, is_admitted=is_admitted)

    async def _tell(self, due: DueReports, tick: Tick, record: Record) -> list[Awaitable[Any]]:
        """Send what is due; return the acknowledgements to wait for."""
        cause, now = position_of(record), tick["now"]
        acks = []
        for season, _ in due.prewarms:
            prewarm = PrewarmRequested(season=season, reason="window-start", requested_at=now)
            acks.append(await self._send(PREWARM_REQUESTED, season, prewarm, cause, now))
        for season, rows in due.over.items():
            acks.append(await self._send(REFRESH_REQUESTED, season, _match_over(season, rows, now), cause, now))
        DECISIONS.labels("season-prewarm").inc(len(due.prewarms))
        DECISIONS.labels("match-over").inc(sum(map(len, due.over.values())))
        return acks

    async def _note(
        self, due: DueReports, rows: list[Row], prewarmed: dict[str, int], partition: int, now_ms: int
    ) -> None:
        """Write what was reported, and schedule the rows for their next due time."""
        for season, start_ms in due.prewarms:
            self._rows[season_key(season)] = encode_season(start_ms)
            prewarmed[season] = start_ms
        over = {row.key for ended in due.over.values() for row in ended}
        for number, known in enumerate(rows, start=1):
            row = known
            if row.key in over:
                row = told_over(row, self._options)
                self._rows[row.key] = encode_row(row)
            self._schedule(row, partition, prewarmed.get(row.season), now_ms)
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _schedule(self, row: Row, partition: int, prewarmed_ms: int | None, now_ms: int) -> None:
        at_ms = due_ms(row, prewarmed_ms, self._options, now_ms)
        index, key = self._index(partition), row.key.decode()
        if at_ms is None:
            index.drop(key)
        else:
            index.put(key, at_ms)

    def _prewarmed(self, seasons: Iterable[str]) -> dict[str, int]:
        """Return season -> start of the newest window for which it was prewarmed."""
        found = {season: decode_season(self._rows.get(season_key(season))) for season in set(seasons)}
        return {season: start_ms for season, start_ms in found.items() if start_ms is not None}

    def _told_at_ms(self, record: Record) -> int:
        """Return when the sink reported the change, by the product's clock; the newest tick if its header is unreadable."""
        pairs = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
        try:
            return ms_from_iso(header(pairs, "ce_time") or "")
        except ValueError:
            return self._newest_now(record.partition)

    def _derive_index(self, partition: int) -> DueIndex:
        index, now = DueIndex(), self._newest_now(partition)
        rows: list[Row] = []
        prewarmed: dict[str, int] = {}
        for key, data in items_of(self._rows, partition):
            if is_match_key(key):
                row = decode_row(data)
                if row is not None:
                    rows.append(row)
            elif (start_ms := decode_season(data)) is not None:
                prewarmed[key.decode()] = start_ms
        for row in rows:
            at_ms = due_ms(row, prewarmed.get(row.season), self._options, now)
            if at_ms is not None:
                index.put(row.key.decode(), at_ms)
        return index


def _match_changed(known: Row | None, event: MatchChanged, told_at_ms: int) -> RefreshRequested:
    return {
        "scope": event["season"],
        "keys": affected_keys(known, event),
        "dropped": [],
        "reason": "match-changed",
        "planned_at": told_at_ms,
    }


def _match_over(season: str, rows: Iterable[Row], now_ms: int) -> RefreshRequested:
    return {
        "scope": season,
        "keys": [],
        "dropped": [resource("match_live", row.match_id).key for row in rows],
        "reason": "match-over",
        "planned_at": now_ms,
    }

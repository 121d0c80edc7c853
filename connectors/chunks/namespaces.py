"""Namespaces of chunks in PostgreSQL: their passports, their ratings, and the removal of chunks.

Invariants. A row of `chunk_namespaces` reflects the configuration: it is created when a namespace first appears and
updated when the sink of namespaces starts. A chunk is removed under the lock of its source, and only if it still meets
the condition, in one statement with its copy in the archive; so repeated or concurrent sweeps remove nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.chunks import NamespaceRated
from highwater.streams.chunks.history import FORMER_MS
from highwater.streams.chunks.passports import Given, Passports, Removal
from highwater.streams.clock import to_datetime
from highwater.streams.telemetry import get_log

_log = get_log("namespaces")

# Cold chunks are counted up to this where none is removed: enough to show that there are many, in a tenth of a second.
COLD_COUNT_MAX = 100_000


async def ensure_passports(tx: Connection, given: Mapping[str, Given], passports: Passports, now_ms: int) -> None:
    """Create missing rows of namespaces with what events gave them; one that no file names is logged once."""
    if not given:
        return
    wanted = dict(sorted(given.items()))
    columns, at = _columns(wanted, passports), to_datetime(now_ms)
    made = await tx.fetch(QUERIES["make_namespaces"], *columns, at, *_given_columns(wanted))
    for row in made:
        if row["ns"] not in passports.named:
            _log.warning("namespace_unknown", ns=row["ns"], effect="using the passport [default]")


async def store_given(tx: Connection, given: Mapping[str, Given], passports: Passports) -> None:
    """Store what events gave to namespaces, with what their passports are for it and for what was given before."""
    rows = await tx.fetch(QUERIES["hold_namespaces"], list(given))
    wanted = {row["ns"]: Given.of_row(row) | given[row["ns"]] for row in rows}
    of = [passports.of(ns, one) for ns, one in wanted.items()]
    lives, are_open = [one.ttl_days for one in of], [one.is_open for one in of]
    await tx.execute(QUERIES["give_namespaces"], list(wanted), *_given_columns(wanted), lives, are_open)


async def align_passports(tx: Connection, passports: Passports, now_ms: int) -> list[str]:
    """Update all rows to the configuration; return the names of changed ones."""
    rows = await tx.fetch(QUERIES["lock_namespaces"])
    names = {row["ns"]: Given.of_row(row) for row in rows}
    if not names:
        return []
    changed = await tx.fetch(QUERIES["align_namespaces"], *_columns(names, passports), to_datetime(now_ms))
    return sorted(row["ns"] for row in changed)


def _columns(names: Mapping[str, Given], passports: Passports) -> list[list[Any]]:
    """Return the columns of namespaces."""
    rows = ((ns, *astuple(passports.of(ns, given))) for ns, given in names.items())
    return list(map(list, zip(*rows, strict=True)))


def _given_columns(names: Mapping[str, Given]) -> tuple[list[bool], list[bool]]:
    return [one.is_lasting for one in names.values()], [one.is_opened for one in names.values()]


async def store_ratings(tx: Connection, events: Collection[NamespaceRated]) -> list[str]:
    """Store how often namespaces are searched; return the names of those that became hot, or no longer are. The latest
    event counts.
    """
    last: dict[str, NamespaceRated] = {}
    for event in events:
        if event["ns"] not in last or last[event["ns"]]["decided_at"] < event["decided_at"]:
            last[event["ns"]] = event
    rows = [
        (ns, event["is_hot"], event["queries_per_day"], to_datetime(event["decided_at"]))
        for ns, event in sorted(last.items())
    ]
    if not rows:
        return []
    stored = await tx.fetch(QUERIES["rate_namespaces"], *map(list, zip(*rows, strict=True)))
    return sorted(row["ns"] for row in stored if row["is_hot"] != row["was_hot"])


class Gone(NamedTuple):
    """A chunk that was removed."""

    slot: str
    source_id: str
    chunk_no: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep of one namespace removes: orphans marked up to `marked_until`, and cold chunks older than `cold_before`."""

    ns: str
    is_archived: bool
    archives_cold: bool
    marked_until: datetime
    cold_before: datetime


async def sweeps(connection: Connection, now_ms: int) -> list[Sweep]:
    """Return the namespaces with chunks past their grace period or cold at `now_ms`."""
    rows = await connection.fetch(QUERIES["namespaces_to_sweep"], to_datetime(now_ms))
    return [_sweep(row) for row in rows]


def _sweep(row: Row) -> Sweep:
    return Sweep(
        ns=row["ns"],
        is_archived=row["removal"] == Removal.SOFT,
        archives_cold=row["archives_cold"],
        marked_until=row["marked_until"],
        cold_before=row["cold_before"],
    )


async def cold_count(connection: Connection, sweep: Sweep) -> int:
    """Count the cold chunks of a namespace, up to a limit."""
    return int(await connection.fetchval(QUERIES["cold_count"], sweep.ns, sweep.cold_before, COLD_COUNT_MAX))


async def remove_orphans(tx: Connection, sweep: Sweep, most: int, now_ms: int) -> tuple[int, list[Gone]]:
    """Remove some orphans past their grace period: return how many were found, and which were removed."""
    found = await tx.fetch(QUERIES["orphans_to_remove"], sweep.ns, sweep.marked_until, most)
    return len(found), await _remove(tx, sweep, found, ("orphaned", sweep.marked_until), now_ms)


async def remove_cold(tx: Connection, sweep: Sweep, most: int, now_ms: int) -> tuple[int, list[Gone]]:
    """Remove some cold chunks: return how many were found, and which were removed."""
    found = await tx.fetch(QUERIES["cold_to_remove"], sweep.ns, sweep.cold_before, most)
    return len(found), await _remove(tx, sweep, found, ("cold", sweep.cold_before), now_ms)


async def remove_former(tx: Connection, at_ms: int, most: int) -> int:
    """Delete some former texts that no search may request any more at `at_ms`; return how many."""
    status = await tx.execute(QUERIES["remove_former_chunks"], to_datetime(at_ms - FORMER_MS), most)
    return int(status.rpartition(" ")[2])


async def _remove(
    tx: Connection, sweep: Sweep, found: Sequence[Row], why: tuple[str, datetime], now_ms: int
) -> list[Gone]:
    if not found:
        return []
    slots, sources, numbers = ([row[name] for row in found] for name in ("slot", "source_id", "chunk_no"))
    await tx.execute(QUERIES["lock_sources_to_sweep"], sweep.ns, slots, sources)
    gone = await tx.fetch(
        QUERIES["remove_chunks"],
        sweep.ns,
        slots,
        sources,
        numbers,
        *why,
        to_datetime(now_ms),
        sweep.is_archived,
    )
    return [Gone(*row) for row in gone]

"""Keeps the vectors of insights in one embedding model version (basis): computes missing ones, fits a new version when
one is due, and rolls it out.

Invariants: one process at a time does this, by a lease that each of its transactions checks; if it hangs, another takes
over when the lease ends, and it stores nothing more. PostgreSQL decides what is to be done, so a kill costs at most one
batch. A version becomes active when every insight with a built-in vector has one of that version; until then it is not
used for comparisons. Vectors of producers are never changed.

The vectors of a local model are stored beside those of the active version: its roll-out never ends in a switch, so that
an insight has a vector at once, however far behind the model is (`windows.py` uses the model for a window that it has
processed completely).

A row that waits too long for a service is given up (R0.14): excluded and dead-lettered with its original bytes; it no
longer holds back its channel's snapshot.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import orjson

from highwater.connectors.children import ProcessorTimeError, StalledError, while_working
from highwater.connectors.feeds.bases import ActiveBasis, Embedders, hold_active, read_active
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.reading import open_reader, read_record
from highwater.connectors.kafka.records import DeadLetter, Record, dead_letter_row
from highwater.connectors.models.backlog import BACKLOG_COUNTED_MAX, Backlog
from highwater.connectors.models.embeddings import EmbeddingError
from highwater.connectors.postgres.leases import LEASE_SECONDS, HeldLease, LeaseKind, LeaseLostError, holding
from highwater.connectors.postgres.pool import CONFLICT, Connection, Row, one_row, reading
from highwater.connectors.waiting import pause
from highwater.schemas.errors import HighwaterError, ModelUnavailableError, UnavailableError
from highwater.schemas.feeds import (
    BASIS_CHANGED,
    INSIGHT_INGESTED,
    REBUILD_DEMANDED,
    BasisChanged,
    RebuildDemanded,
)
from highwater.schemas.positions import Position
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.feeds.basis import FIT_TEXT_CHARACTERS_MAX, FIT_TEXTS_MAX, Basis, should_fit
from highwater.streams.progress import HOUR_SECONDS, WorkLimit
from highwater.streams.telemetry import INSIGHTS_REEMBEDDED, get_log

if TYPE_CHECKING:
    from highwater.connectors.models.embedding_service import RemoteEmbedder
    from highwater.connectors.models.local_model import LocalEmbedder

log = get_log("embed")

_SOURCE = "/connectors/workers/embed"
# One call of the service: within every service's limit, and one failed call costs little.
_TEXTS_MAX = 64
# The built-in model takes 50 ms for 1,000 texts, and this many rows are locked no longer than that.
_OWN_TEXTS_MAX = 1_000
# How often to poll for: a missing vector of a service, which holds back its insight; one of the local model, which
# holds back nothing; a due version, when no vector can be missing.
_POLL_SECONDS = 0.5
_LOCAL_POLL_SECONDS = 2.0
_OWN_POLL_SECONDS = 5.0
# Rebuilds that are requested at once; more follow with the next poll.
_REPLACED_MAX = 100
# Limit of rows that a sample is drawn from, by blocks: reading them takes seconds, for a table of any size.
_SAMPLED_ROWS_MAX = 500_000
# A corpus with too few distinct texts is checked again when it has grown by a tenth.
_LOOK_GROWTH = 1.1
# 50,000 texts take 4 s and 0.2 GB on an idle core. The limit is processor time, which a busy machine does not stretch.
_FIT_PROCESSOR_SECONDS_MAX = 60.0
_FIT_LIMIT = WorkLimit(quiet_seconds_max=30.0, total_seconds_max=HOUR_SECONDS)
_FIT_PROGRAM = """
import os, sys, orjson
from highwater.streams.feeds.basis import fit_basis
os.nice(5)
basis = fit_basis(orjson.loads(sys.stdin.buffer.read()))
sys.stdout.buffer.write(b"" if basis is None else basis.to_bytes())
"""


class BasisFitError(HighwaterError):
    """Fitting the built-in embedder failed. Its current version stays in use; the process's error is in the log."""


class EmbedWorker:
    """Polls for missing vectors and due versions. `embedder` None: the built-in embedder, whose vectors the sink
    computes.

    `local`: a model whose vectors are stored beside those.
    """

    group = "embed"

    def __init__(
        self,
        context: ProcessContext,
        embedder: RemoteEmbedder | None,
        *,
        local: LocalEmbedder | None = None,
        wait_seconds: float,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._context = context
        self._lease_seconds = lease_seconds
        self._lease: HeldLease | None = None
        self._remote = embedder
        self._local = local if embedder is None else None
        self._backlog = Backlog("insights", "embed")
        self._embedders = Embedders()
        self._wait_ms = int(wait_seconds * 1000)
        self._looked_at = 0  # size of the corpus when a version was last fitted, or could not be fitted
        self.problem: str | None = None
        self.degraded: str | None = None  # the embedding service is unavailable; rows wait, everything else continues

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; while another process works, wait to take its place."""
        while not stop.is_set():
            try:
                async with reading(self._context.pool) as tx:
                    await self._work_alone(tx, stop)
            except LeaseLostError as error:
                log.warning("embed_lease_lost", reason=str(error))
            except UnavailableError as error:
                self._set_state(problem=str(error))
            await self._pause(stop)

    async def _work_alone(self, tx: Connection, stop: asyncio.Event) -> None:
        """Work while we hold the lease; another holder is normal."""
        pool, seconds = self._context.pool, self._lease_seconds
        async with holding(tx, pool, LeaseKind.EMBED, "runner", seconds=seconds) as self._lease:
            if self._lease is None:
                self._set_state()
            else:
                await self._work(tx, stop)

    @asynccontextmanager
    async def _storing(self, tx: Connection) -> AsyncIterator[None]:
        """Open a transaction that is rolled back if another worker has taken over.

        Raises:
            LeaseLostError: another worker has.
        """
        assert self._lease is not None  # nothing is stored without it
        async with tx.transaction():
            await self._lease.fence(tx)
            yield

    async def _work(self, tx: Connection, stop: asyncio.Event) -> None:
        while not stop.is_set():
            done = 0
            if self._lease is not None:
                self._lease.check()
            try:
                active = await read_active(tx)
                done = await self._fill(tx, active) + await self._step(tx, active)
                if not done:
                    await self._replace_preliminary(tx)
                await self._tell_backlog(tx, active)
                self._set_state()
            except (ModelUnavailableError, EmbeddingError) as error:
                self._set_state(degraded=str(error))
            except LeaseLostError:
                raise
            except UnavailableError as error:
                self._set_state(problem=str(error))
            except CONFLICT as error:  # a retraction of the same rows; the batch is repeated
                log.info("embed_conflict", reason=str(error))
            if not done:
                await self._pause(stop)

    async def _pause(self, stop: asyncio.Event) -> None:
        if self._local is not None:
            self._local.rest()
        of_own = _OWN_POLL_SECONDS if self._local is None else _LOCAL_POLL_SECONDS
        await pause(stop, of_own if self._remote is None else _POLL_SECONDS)

    async def _tell_backlog(self, tx: Connection, active: ActiveBasis) -> None:
        """Report how many insights the embedder still has to process."""
        if active.next_id is None and self._remote is None:
            self._backlog.clear()
        elif self._backlog.is_due():
            self._backlog.show(await tx.fetchval(QUERIES["insights_behind"], BACKLOG_COUNTED_MAX))

    async def _replace_preliminary(self, tx: Connection) -> None:
        """Request each preliminary version's replacement once: nothing is left to read, so no window is incomplete."""
        rows = await tx.fetch(QUERIES["preliminary_users"], _REPLACED_MAX)
        if not rows:
            return
        now_ms, users = self._context.clock(), [row["user_id"] for row in rows]
        demands = [
            outbox.event_row(
                self._context.codec,
                REBUILD_DEMANDED,
                RebuildDemanded(user_id=user, ts=now_ms, force=False, if_new=True),
                source=_SOURCE,
                now_ms=now_ms,
                caused_by=None,
            )
            for user in users
        ]
        async with self._storing(tx):
            await tx.execute(QUERIES["note_replacement_asked"], users, to_datetime(now_ms))
            await outbox.add(tx, demands)
        log.info("replacements_asked", users=len(users))

    # -- vectors -----------------------------------------------------------------------------------------------------

    async def _vectors(self, tx: Connection, active: ActiveBasis, basis_id: str, texts: Sequence[str]) -> list[bytes]:
        """Return little-endian float32 vectors of texts in one of the two versions in use."""
        own = (await self._embedders.of(tx, active))[basis_id]
        if own is not None:
            return [row.astype("<f4").tobytes() for row in await asyncio.to_thread(own.embed, texts)]
        outside = self._outside
        assert outside is not None  # only called if `_can_make` is true
        with self._backlog.making(len(texts)):
            return await outside.embed(texts)

    @property
    def _outside(self) -> RemoteEmbedder | LocalEmbedder | None:
        """Return the embedder of vectors that the sink does not compute."""
        return self._remote or self._local

    async def _can_make(self, tx: Connection, active: ActiveBasis, basis_id: str) -> bool:
        is_own = (await self._embedders.of(tx, active))[basis_id] is not None
        return is_own or (self._outside is not None and self._outside.basis_id == basis_id)

    async def _texts_max(self, tx: Connection, active: ActiveBasis, basis_id: str) -> int:
        is_own = (await self._embedders.of(tx, active))[basis_id] is not None
        return _OWN_TEXTS_MAX if is_own else _TEXTS_MAX

    async def _fill(self, tx: Connection, active: ActiveBasis) -> int:
        """Compute the vectors that rows wait for; return how many. Only rows that fail and waited too long are given up."""
        basis_id = active.next_id or active.basis_id
        if not await self._can_make(tx, active, basis_id):
            return 0
        rows = await tx.fetch(QUERIES["awaited_insights"], await self._texts_max(tx, active, basis_id))
        if active.next_id is None:
            rows = [row for row in rows if row["is_vectorless"]]
        if not rows:
            return 0
        try:
            vectors = await self._vectors(tx, active, basis_id, [row["text"] or "" for row in rows])
        except (UnavailableError, EmbeddingError):
            now_ms = self._context.clock()
            late = [row for row in rows if row["is_vectorless"] and now_ms - to_ms(row["arrived_at"]) > self._wait_ms]
            if late:
                await self._give_up(tx, late, now_ms)
            raise
        query = QUERIES["set_embeddings"] if active.next_id is None else QUERIES["set_next_embeddings"]
        async with self._storing(tx):
            await tx.execute(query, [row["insight_id"] for row in rows], vectors, basis_id)
        return len(rows)

    # -- one basis after another -------------------------------------------------------------------------------------

    async def _step(self, tx: Connection, active: ActiveBasis) -> int:
        """Move the store one batch towards the version it should have; return 0 if there is nothing to do."""
        sweep = await tx.fetchrow(QUERIES["read_reembedding"])
        if sweep is not None and sweep["phase"] == "move":
            return await self._move(tx, active, sweep)
        wanted = await self._wanted(tx, active)
        if wanted == active.next_id:
            assert sweep is not None, wanted  # the roll-out of a basis begins with one
            return await self._reembed(tx, active, wanted, sweep)
        if wanted != active.basis_id:
            await self._roll_out(tx, active, wanted, "remote", b"", await tx.fetchval(QUERIES["corpus_size"]))
            return 1
        if self._local is None and active.next_id is not None:
            await self._call_off(tx, active)
            return 1
        basis = await self._fit_if_due(tx, active) if self._remote is None else None
        if basis is not None:
            await self._roll_out(tx, active, basis.basis_id, "fitted", basis.to_bytes(), self._looked_at)
            return 1
        return 0 if self._local is None else await self._read_beside(tx, active, self._local.basis_id, sweep)

    async def _read_beside(self, tx: Connection, active: ActiveBasis, basis_id: str, sweep: Row | None) -> int:
        """Process a page that the local model has not processed. Its version is `remote`, as older processes know it."""
        if basis_id != active.next_id:
            await self._roll_out(tx, active, basis_id, "remote", b"", await tx.fetchval(QUERIES["corpus_size"]))
            return 1
        return 0 if sweep is None else await self._reembed(tx, active, basis_id, sweep)

    async def _wanted(self, tx: Connection, active: ActiveBasis) -> str:
        """Return the service's version if there is one; else the one that is rolled out, active, or the newest of our own."""
        if self._remote is not None:
            return self._remote.basis_id
        embedders = await self._embedders.of(tx, active)
        for basis_id in (active.next_id, active.basis_id):
            if basis_id is not None and embedders[basis_id] is not None:
                return basis_id
        return str(await tx.fetchval(QUERIES["newest_own_basis"]))

    async def _roll_out(
        self, tx: Connection, active: ActiveBasis, basis_id: str, kind: str, content: bytes, corpus: int
    ) -> None:
        """Begin: from now on sinks give new insights both vectors, so one sweep over the others is enough."""
        async with self._storing(tx):
            await hold_active(tx)
            now = to_datetime(self._context.clock())
            await tx.execute(QUERIES["insert_basis"], basis_id, kind, content, corpus, now)
            await tx.execute(QUERIES["set_next_basis"], basis_id)
            await tx.execute(QUERIES["begin_reembedding"], "embed")
        log.info("basis_rollout_began", basis_id=basis_id, active=active.basis_id, corpus_size=corpus)

    async def _call_off(self, tx: Connection, active: ActiveBasis) -> None:
        async with self._storing(tx):
            await hold_active(tx)
            await tx.execute(QUERIES["set_next_basis"], None)
            await tx.execute(QUERIES["begin_reembedding"], "move")
        log.info("basis_rollout_cancelled", basis_id=active.next_id, active=active.basis_id)

    async def _reembed(self, tx: Connection, active: ActiveBasis, basis_id: str, sweep: Row) -> int:
        """Process a page of the sweep. A partial page is the last: what came after it since the roll-out began has both
        vectors.
        """
        texts_max = await self._texts_max(tx, active, basis_id)
        page = await tx.fetch(QUERIES["insights_to_reembed"], sweep["swept_to"], texts_max, basis_id)
        due = [row for row in page if row["is_due"]]
        if page:
            vectors = await self._vectors(tx, active, basis_id, [row["text"] or "" for row in due]) if due else []
            async with self._storing(tx):
                await tx.execute(QUERIES["set_next_embeddings"], [row["insight_id"] for row in due], vectors, basis_id)
                await tx.execute(QUERIES["advance_reembedding"], page[-1]["insight_id"], len(due))
            INSIGHTS_REEMBEDDED.inc(len(due))
        if len(page) == texts_max:
            return 1
        if self._local is not None and basis_id == self._local.basis_id:
            async with self._storing(tx):
                await tx.execute(QUERIES["end_reembedding"])
            log.info("basis_stands_beside", basis_id=basis_id, active=active.basis_id)
        elif len(await tx.fetch(QUERIES["awaited_insights"], texts_max)) < texts_max:
            await self._switch(tx, active, basis_id, sweep["reembedded"] + len(due))
        return 1

    async def _switch(self, tx: Connection, active: ActiveBasis, basis_id: str, reembedded: int) -> None:
        """Activate a version. The few rows whose vector a service still computes wait for it as new rows do."""
        now_ms = self._context.clock()
        made = await one_row(tx, QUERIES["corpus_of_basis"], basis_id)
        event = BasisChanged(
            basis_id=basis_id,
            previous_basis_id=active.basis_id,
            kind=made["kind"],
            corpus_size=made["corpus_size"],
            reembedded=reembedded,
            changed_at=now_ms,
        )
        async with self._storing(tx):
            await hold_active(tx)
            await tx.execute(QUERIES["forget_awaited"], basis_id)
            await tx.execute(QUERIES["switch_basis"], basis_id, to_datetime(now_ms))
            await tx.execute(QUERIES["begin_reembedding"], "move")
            row = outbox.event_row(
                self._context.codec, BASIS_CHANGED, event, source=_SOURCE, now_ms=now_ms, caused_by=None
            )
            await outbox.add(tx, [row])
        log.info("basis_changed", **event)

    async def _move(self, tx: Connection, active: ActiveBasis, sweep: Row) -> int:
        page = await tx.fetch(QUERIES["insights_to_move"], sweep["swept_to"], _OWN_TEXTS_MAX)
        async with self._storing(tx):
            due = [row["insight_id"] for row in page if row["is_due"]]
            await tx.execute(QUERIES["move_embeddings"], due, active.basis_id)
            if len(page) == _OWN_TEXTS_MAX:
                await tx.execute(QUERIES["advance_reembedding"], page[-1]["insight_id"], 0)
                return 1
            await tx.execute(QUERIES["end_reembedding"])
        log.info("basis_rollout_ended", active=active.basis_id)
        return 1

    # -- fitting -----------------------------------------------------------------------------------------------------

    async def _fit_if_due(self, tx: Connection, active: ActiveBasis) -> Basis | None:
        corpus = await tx.fetchval(QUERIES["corpus_size"])
        made = await one_row(tx, QUERIES["corpus_of_basis"], active.basis_id)
        if self._local is not None and made["kind"] != "hashed":
            return None  # another fit would make the model process everything again, for vectors that only stand in for its own
        fitted_on = None if made["kind"] == "hashed" else made["corpus_size"]
        if not should_fit(corpus, fitted_on) or corpus < _LOOK_GROWTH * self._looked_at:
            return None
        self._looked_at = corpus
        percent = min(100.0, 100.0 * _SAMPLED_ROWS_MAX / corpus)
        sample = await tx.fetch(QUERIES["corpus_sample"], FIT_TEXTS_MAX, FIT_TEXT_CHARACTERS_MAX, percent)
        try:
            content = await fit_in_child([row["text"] for row in sample])
        except BasisFitError:
            log.exception("basis_fit_failed", texts=len(sample))
            return None
        if not content:
            log.info("basis_not_fitted", corpus_size=corpus, texts=len(sample))
            return None
        basis = Basis.from_bytes(content)
        log.info("basis_fitted", basis_id=basis.basis_id, corpus_size=corpus, fitted_on=basis.fitted_on)
        return None if basis.basis_id == active.basis_id else basis

    # -- giving up ---------------------------------------------------------------------------------------------------

    async def _give_up(self, tx: Connection, late: Sequence[Row], now_ms: int) -> None:
        records = await asyncio.to_thread(self._originals, late)
        async with self._storing(tx):
            gone = await tx.fetch(QUERIES["exclude_insights"], [row["insight_id"] for row in late], to_datetime(now_ms))
            excluded = {row["insight_id"] for row in gone}
            letters = [
                DeadLetter(record, "embedding_missing", f"no embedding after {self._wait_ms / 1000:.0f} s")
                for insight_id, record in records.items()
                if insight_id in excluded
            ]
            await outbox.add(tx, [dead_letter_row(letter, group=self.group, now_ms=now_ms) for letter in letters])
        log.warning("insights_excluded", count=len(excluded), without_letter=sorted(excluded - records.keys()))

    def _originals(self, late: Sequence[Row]) -> dict[str, Record]:
        """Return the log records behind rows by insight: a dead letter carries the original bytes.

        A log that was recreated or restored may have lost the record, or have another in its place: those are missing.
        """
        found = {}
        with closing(open_reader(self._context.client)) as reader:
            for row in late:
                position = Position(INSIGHT_INGESTED, row["source_partition"], row["source_offset"])
                record = read_record(reader, position)
                if record is not None and record.arrived_ms == to_ms(row["arrived_at"]):
                    found[row["insight_id"]] = record
        return found

    def _set_state(self, *, problem: str | None = None, degraded: str | None = None) -> None:
        if (problem, degraded) != (self.problem, self.degraded):
            reason = problem or degraded
            (log.warning if reason else log.info)("embed_paused" if reason else "embed_running", reason=reason)
        self.problem, self.degraded = problem, degraded


async def fit_in_child(texts: Sequence[str]) -> bytes:
    """Fit a basis to texts in a separate process, so that no event loop waits; return its bytes, empty for too few
    texts.

    Raises:
        BasisFitError: the process failed, made no progress or took too much processor time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _FIT_PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    try:
        told = process.communicate(orjson.dumps(texts))
        content, _ = await while_working(process.pid, told, _FIT_LIMIT, _FIT_PROCESSOR_SECONDS_MAX)
    except (StalledError, ProcessorTimeError) as error:
        raise BasisFitError(f"it {error}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BasisFitError(f"it ended with exit {process.returncode}")
    return content

"""Searches of 20,000 and of 100,000 chunks with vectors of 384, beside plain pgvector and NumPy, on one PostgreSQL in one run.

The chunks have the product's vectors of commits (`tests/bench/data.py`; further ones are made of these by noise), a commit
for a text, and span a year; the searches are the vectors of other commits. Ours gives the ten best by the formula of R3.17,
with texts, scores and ages; exact is the same formula over all of them in NumPy. Plain pgvector is what its manual shows: a
table of ids and vectors with an index of its defaults, of which the ten nearest are requested, without ages; it is compared
with the ten nearest by NumPy. It runs at its default effort, and at the least that finds as large a share of its ten as ours
finds of its own (*same recall*). `hybrid` weighs words too. One search after the other, on one connection.

Processor time is that of the asking process and of the one that serves it; on a busy machine it is more reliable than the
latency. Memory is that of PostgreSQL with all its processes after the searches (PSS): shared buffers, which are most of it
and bounded by `shared_buffers`, and what its backends hold. The system's file cache comes on top. A million chunks is
requested by `--chunks`, or by HW_CHUNKS where `highwater bench` runs it: 4 GB here, 4 GB in PostgreSQL while an index is
built, and nearly one hour.

`--indexes`: the same table with one of full and one of half precision: what each finds of the ten nearest at the same effort, the
time that it takes to build, and its size. `--compared`: our search where it compares all chunks, by their number: where that
takes as long as a search by the index is `COMPARED_MAX`.

    python -m tests.bench.chunks_search [--runs N] [--chunks N,N] [--searches N] [--indexes] [--compared]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import asyncpg
import numpy as np
from numpy.typing import NDArray

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.retrieval import search as chunk_search
from highwater.connectors.retrieval.results import SearchResults
from highwater.connectors.retrieval.search import search
from highwater.deploy.local.part import STOP_LIMIT
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.postgres import Postgres
from highwater.streams.chunks.scoring import DAY_MS, TEXT_SHARE, Mode
from highwater.streams.clock import monotonic_seconds, to_datetime
from tests.bench import data
from tests.bench.figures import Figure, figure, point
from tests.bench.idle import used

CHUNKS, SEARCHES = (20_000, 100_000), 200
LIMIT = 10
NS = "docs"
NOW_MS = 1_800_000_000_000
YEAR_DAYS = 365
# The namespace is as the default passport says.
HALF_LIFE_DAYS, ALPHA, BETA = 30.0, 0.8, 0.2
# Where the search compares all, by number of chunks.
COMPARED = (1_000, 3_000, 10_000, 30_000, 100_000)
READY_SECONDS_MAX = 60.0
# The first free port from here on; the default is left to the product.
PORT_FIRST = 21_000
# N searches in a row, then the next system: other load of the machine affects all, and each has its caches warm.
TURN = 25
# NumPy's threads poll for more work for 0.1 s after a product, on the cores of the next system.
REST_SECONDS = 0.3
# Efforts (`hnsw.ef_search`) of pgvector; it takes no more than the last.
EFFORT, EFFORTS = 40, (40, 60, 80, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1_000)
# Rows compared with all searches at once: 80 MB of cosines.
BLOCK_ROWS = 50_000
# Of the vectors of chunks that are made of others' this share is noise: no nearest neighbour is a copy.
NOISE = 0.5
# pgvector adds float32, NumPy here float64.
LAST_BITS = 1e-6

FloatArray = NDArray[np.float32]
FloatArray64 = NDArray[np.float64]
Ask = Callable[[int], Awaitable[list[int]]]
Share = Callable[[int, Sequence[int]], float]

OURS, NUMPY = "highwater", "NumPy, exact"
PLAIN, SAME = "pgvector, nearest only", "pgvector, nearest only, same recall"
# Of what an index of pgvector is made, and how it is asked: the name, the expression, the operators and the order.
_HALF = "halfvec(384)"
INDEXES = (
    ("half precision", f"(embedding::{_HALF})", "halfvec_cosine_ops", f"embedding::{_HALF} <=> $1::vector::{_HALF}"),
    (
        "half precision at unit length (ours)",
        f"(l2_normalize(embedding)::{_HALF})",
        "halfvec_ip_ops",
        f"l2_normalize(embedding)::{_HALF} <#> l2_normalize($1::vector)::{_HALF}",
    ),
    ("full precision", "embedding", "vector_cosine_ops", "embedding <=> $1::vector"),
)
# The graph of a million vectors of full precision takes 3 GB while it is made; with less it is made a hundred times more slowly.
BUILD_MEMORY, BUILD_SECONDS_MAX = "4GB", 7_200


@dataclass(frozen=True)
class Corpus:
    """Chunks and what is searched for. `ages` in days, by chunk."""

    texts: list[str]
    vectors: FloatArray
    ages: NDArray[np.float64]
    asked: FloatArray
    words: list[str]


def corpus(chunks: int, searches: int) -> Corpus:
    """As many chunks and searches, the same each time."""
    rng = np.random.default_rng(8)
    texts, found = [line["text"] for line in data.insights()], data.vectors()
    order = rng.permutation(len(texts))
    asked, rest = order[:searches], order[searches:]
    chosen = rest[np.arange(chunks) % len(rest)]
    made = found[chosen].copy()
    for first in range(len(rest), chunks, BLOCK_ROWS):
        part = made[first : first + BLOCK_ROWS]
        noise = rng.standard_normal(part.shape, dtype=np.float32)
        part += NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    lengths = np.linalg.norm(made, axis=1, keepdims=True)
    made /= np.where(lengths == 0, 1, lengths)
    ages = rng.uniform(0, YEAR_DAYS, chunks)
    # Whole milliseconds, as chunks have them.
    return Corpus(
        [texts[place] for place in chosen],
        made,
        np.floor(ages * DAY_MS) / DAY_MS,
        found[asked],
        [texts[n] for n in asked],
    )


@dataclass(frozen=True)
class Truth:
    """How good the tenth best is, for each search, by the formula and by nearness.

    Commits repeat, and of equals one is as good as another.
    """

    made: Corpus
    decays: FloatArray64
    tenth: FloatArray64
    tenth_cosine: FloatArray64

    @classmethod
    def of(cls, made: Corpus) -> Truth:
        """By comparing all."""
        decays = BETA * 0.5 ** (made.ages / HALF_LIFE_DAYS)
        asked = made.asked.astype(np.float64).T
        scores = cosines = np.full((0, len(made.asked)), -np.inf)
        for first in range(0, len(made.vectors), BLOCK_ROWS):
            part = slice(first, first + BLOCK_ROWS)
            block = made.vectors[part].astype(np.float64) @ asked
            cosines = _best_rows(np.concatenate([cosines, block]))
            scores = _best_rows(np.concatenate([scores, ALPHA * block + decays[part, None]]))
        return cls(made, decays, scores.min(axis=0), cosines.min(axis=0))

    def share(self, number: int, told: Sequence[int]) -> float:
        """How many of the ten returned results are as good as the tenth best."""
        found = list(told)
        scores = ALPHA * self._cosines(number, found) + self.decays[found]
        return float(np.count_nonzero(scores >= self.tenth[number] - LAST_BITS) / LIMIT)

    def share_of_nearest(self, number: int, told: Sequence[int]) -> float:
        """The same of nearness."""
        near = self._cosines(number, list(told)) >= self.tenth_cosine[number] - LAST_BITS
        return float(np.count_nonzero(near) / LIMIT)

    def _cosines(self, number: int, told: list[int]) -> FloatArray64:
        return cast(
            "FloatArray64", self.made.vectors[told].astype(np.float64) @ self.made.asked[number].astype(np.float64)
        )


def _best_rows(values: FloatArray64) -> FloatArray64:
    """The greatest `LIMIT` of each column, in no order."""
    return np.partition(values, len(values) - LIMIT, axis=0)[-LIMIT:] if len(values) > LIMIT else values


def figures(
    runs: int = 3,
    chunks: Sequence[int] = (),
    searches: int = SEARCHES,
    *,
    with_indexes: bool = False,
    with_compared: bool = False,
) -> list[Figure]:
    """All figures by the number of chunks, each on a PostgreSQL of its own; without numbers those of HW_CHUNKS, or `CHUNKS`."""
    found: list[Figure] = []
    for count in chunks or sizes_of(os.environ.get("HW_CHUNKS", "")) or CHUNKS:
        made = corpus(count, searches)
        with _postgres() as part:
            measuring = _measure(part, made, runs, with_indexes=with_indexes, with_compared=with_compared)
            found += asyncio.run(measuring)
    return found


def sizes_of(raw: str) -> tuple[int, ...]:
    """Numbers between commas."""
    return tuple(int(one) for one in raw.split(",") if one)


@contextlib.contextmanager
def _postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the benchmark's own."""
    with tempfile.TemporaryDirectory(prefix="highwater-bench-chunks-") as folder:
        Path(folder).chmod(0o755)
        ports = PortBook(Path(folder))
        ports.take("database", PORT_FIRST)
        part = Postgres(Path(folder), ports)
        part.take_ports()
        part.prepare()
        part.process.start(part.command())
        try:
            asyncio.run(_until_ready(part.address))
            yield part
        finally:
            part.process.stop(STOP_LIMIT)


async def _until_ready(url: str) -> None:
    deadline = monotonic_seconds() + READY_SECONDS_MAX
    while True:
        try:
            await (await asyncpg.connect(url)).close()
        except (OSError, asyncpg.PostgresError):
            if monotonic_seconds() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def _measure(part: Postgres, made: Corpus, runs: int, *, with_indexes: bool, with_compared: bool) -> list[Figure]:
    found: list[Figure] = []
    count = len(made.texts)
    async with await open_pool(part.address, size_max=2, is_cleaned=False) as pool:  # as the API opens its own
        await migrate(pool)
        await _load(pool, made, count)
        truth = Truth.of(made)
        found += await _indexes(pool, made, truth, INDEXES if with_indexes else INDEXES[-1:])
        found.append(await _index(pool))
        found += await _searches(pool, made, truth, runs)
        assert part.process.pid is not None
        memory = used(part.process.pid).pss_mb
        found.append(figure("search, memory of PostgreSQL", "both", "MB", [memory]))
        if with_compared:
            found += await _crossing(pool, made, runs)
    return [point(one, count, "chunks") for one in found]


# -- tables ----------------------------------------------------------------------------------------------------------


async def _load(pool: Any, made: Corpus, count: int, ns: str = NS) -> None:
    await pool.execute(
        "INSERT INTO chunk_namespaces (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, "
        "removal, grace_days, archives_cold, is_open, text_share, dimensions, created_at) "
        "VALUES ($1, $2, $3, 'filter', $4, $5, 14, 100, 'soft', 7, false, true, $6, $7, 'epoch')",
        ns, HALF_LIFE_DAYS, float(2 * YEAR_DAYS), ALPHA, BETA, TEXT_SHARE, made.vectors.shape[1],
    )  # fmt: skip
    names = (
        *("ns", "slot", "source_id", "chunk_no", "content", "content_hash", "embedding", "embedding_model"),
        *("created_at", "updated_at", "ingest_id", "source_partition", "source_offset"),
    )
    rows = (
        (
            *(ns, "bench", f"source-{n // 100}", n, made.texts[n], f"{n:064x}", _bytes(made.vectors[n]), "bench"),
            *(to_datetime(NOW_MS - round(made.ages[n] * DAY_MS)), to_datetime(NOW_MS), "bench", 0, n),
        )
        for n in range(count)
    )
    async with pool.acquire() as tx:
        await vectors.enable(tx)
        await tx.copy_records_to_table("chunks", records=rows, columns=names, timeout=BUILD_SECONDS_MAX)
        await tx.execute("VACUUM ANALYZE chunks", timeout=BUILD_SECONDS_MAX)


async def _index(pool: Any) -> Figure:
    """The product's index, and its size."""
    async with pool.acquire() as connection:
        await connection.execute(QUERIES["set_build_memory"], BUILD_MEMORY)
        for wanted in await connection.fetch(QUERIES["vector_indexes_wanted"], chunk_search.COMPARED_MAX, 4_000):
            await connection.execute(wanted["create_statement"], timeout=BUILD_SECONDS_MAX)
        size = await connection.fetchval(
            "SELECT sum(pg_relation_size(i.indexrelid)) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
            "JOIN pg_am AS a ON a.oid = c.relam WHERE i.indrelid = 'chunks'::regclass AND a.amname = 'hnsw'"
        )
    return figure("index, size", "highwater", "MB", [float(size or 0) / 1_000_000])


async def _indexes(pool: Any, made: Corpus, truth: Truth, kinds: Sequence[tuple[str, str, str, str]]) -> list[Figure]:
    """A plain table with one index after the other; the last one stays."""
    found: list[Figure] = []
    async with pool.acquire() as tx:
        await vectors.enable(tx)
        await tx.execute(f"CREATE TABLE plain (id bigint PRIMARY KEY, embedding vector({made.vectors.shape[1]}))")
        records = ((n, row.astype("<f4").tobytes()) for n, row in enumerate(made.vectors))
        await tx.copy_records_to_table("plain", records=records, columns=("id", "embedding"), timeout=BUILD_SECONDS_MAX)
        await tx.execute("VACUUM ANALYZE plain", timeout=BUILD_SECONDS_MAX)
        await tx.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY}'")
        for system, indexed, operators, order in kinds:
            await tx.execute("DROP INDEX IF EXISTS plain_vectors")
            began = monotonic_seconds()
            built = f"CREATE INDEX plain_vectors ON plain USING hnsw (({indexed}) {operators})"
            await tx.execute(built, timeout=BUILD_SECONDS_MAX)
            found.append(figure("index, time to build", system, "s", [monotonic_seconds() - began]))
            size = await tx.fetchval("SELECT pg_relation_size('plain_vectors')")
            found.append(figure("index, size", system, "MB", [size / 1_000_000]))
            for effort in (40, 200) if len(kinds) > 1 else ():
                await tx.execute(f"SET hnsw.ef_search = {effort}")
                told = [
                    await tx.fetch(f"SELECT id FROM plain ORDER BY {order} LIMIT {LIMIT}", _bytes(one))
                    for one in made.asked
                ]
                recalls = [
                    truth.share_of_nearest(number, [row["id"] for row in rows]) for number, rows in enumerate(told)
                ]
                found.append(figure(f"index, recall@10 at ef_search {effort}", system, "", [float(np.mean(recalls))]))
    return found


# -- searches --------------------------------------------------------------------------------------------------------


async def _searches(pool: Any, made: Corpus, truth: Truth, runs: int) -> list[Figure]:
    asks: dict[str, Ask] = {OURS: _ours(pool, made, Mode.SEMANTIC), PLAIN: _plain(pool, made, EFFORT)}
    shares = {OURS: truth.share, PLAIN: truth.share_of_nearest, SAME: truth.share_of_nearest, NUMPY: truth.share}
    recall = await _recall(asks[OURS], made, truth.share)
    effort, _ = await _effort_for(pool, made, truth, recall)
    asks |= {
        SAME: _plain(pool, made, effort),
        f"{OURS}, hybrid": _ours(pool, made, Mode.HYBRID),
        NUMPY: _numpy(made),
    }
    found = [figure("search, ef_search", SAME, "", [effort])]
    for name, ask in asks.items():  # once all, which warms too
        told = await _recall(ask, made, shares.get(name, lambda *_: 0.0))
        found += [figure("search, recall@10", name, "", [told])] if name in shares else []
    backend = await pool.fetchval("SELECT pg_backend_pid()")
    taken: dict[str, list[list[tuple[float, float]]]] = {name: [[] for _ in range(runs)] for name in asks}
    for run in range(runs):
        for first in range(0, len(made.asked), TURN):
            for name, ask in asks.items():
                for number in range(first, min(first + TURN, len(made.asked))):
                    used_before, began = _cpu_ms(backend), monotonic_seconds()
                    await ask(number)
                    taken[name][run].append(((monotonic_seconds() - began) * 1000, _cpu_ms(backend) - used_before))
            await asyncio.sleep(REST_SECONDS)
    for name, of_runs in taken.items():
        for percent in (50, 99):
            values = [float(np.percentile(np.array(one)[:, 0], percent)) for one in of_runs]
            found.append(figure(f"search, p{percent}", name, "ms", values))
        values = [float(np.median(np.array(one)[:, 1])) for one in of_runs]
        found.append(figure("search, processor time, p50", name, "ms", values))
    for place, kind in enumerate(("p50", "processor time, p50")):
        beyond = [
            float(np.median(np.array(ours)[:, place]) - np.median(np.array(peer)[:, place]))
            for ours, peer in zip(taken[OURS], taken[SAME], strict=True)
        ]
        found.append(figure(f"search, {kind}, beyond pgvector's at the same recall", OURS, "ms more", beyond))
    for system, mode in ((OURS, Mode.SEMANTIC), (f"{OURS}, hybrid", Mode.HYBRID)):
        complete = [(await _search(pool, made, n, mode)).is_complete for n in range(len(made.asked))]
        found.append(figure("search, known to be complete", system, "", [float(np.mean(complete))]))
    return found


def _cpu_ms(backend: int) -> float:
    """What this process and the one that serves it have used; the pool gives the same connection again and again."""
    scheduled = Path(f"/proc/{backend}/schedstat").read_text(encoding="ascii")
    return time.process_time() * 1000 + int(scheduled.split()[0]) / 1_000_000


async def _recall(ask: Ask, made: Corpus, share: Share) -> float:
    return float(np.mean([share(number, await ask(number)) for number in range(len(made.asked))]))


async def _effort_for(pool: Any, made: Corpus, truth: Truth, wanted: float) -> tuple[int, float]:
    """The least effort at which plain pgvector finds this share of the nearest ten, or the greatest possible one, and its
    share.
    """
    effort, recall = EFFORT, 0.0
    for effort in EFFORTS:
        recall = await _recall(_plain(pool, made, effort), made, truth.share_of_nearest)
        if recall >= wanted:
            break
    return effort, recall


async def _crossing(pool: Any, made: Corpus, runs: int) -> list[Figure]:
    """Comparing all, by number of chunks, beside the index of all."""
    found = []
    held = chunk_search.COMPARED_MAX
    for count in COMPARED:
        if count > len(made.texts):
            continue
        if count < len(made.texts):
            await _load(pool, made, count, ns=f"first-{count}")
        ns = NS if count == len(made.texts) else f"first-{count}"
        chunk_search.COMPARED_MAX = len(made.texts)
        try:
            values = []
            for _ in range(runs):
                latencies = []
                for number in range(min(50, len(made.asked))):
                    began = monotonic_seconds()
                    await _search(pool, made, number, Mode.SEMANTIC, ns=ns)
                    latencies.append((monotonic_seconds() - began) * 1000)
                values.append(float(np.median(latencies)))
        finally:
            chunk_search.COMPARED_MAX = held
        found.append(figure(f"all of {count:,} compared, p50", "highwater", "ms", values))
        if ns != NS:
            await pool.execute("DELETE FROM chunks WHERE ns = $1", ns)
    return found


async def _search(pool: Any, made: Corpus, number: int, mode: Mode, ns: str = NS) -> SearchResults:
    row = await pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = $1", ns)
    return await search(
        pool, row, q_vector=_bytes(made.asked[number]), words=made.words[number], limit=LIMIT, as_of_ms=NOW_MS, mode=mode
    )  # fmt: skip


def _ours(pool: Any, made: Corpus, mode: Mode) -> Ask:
    async def ask(number: int) -> list[int]:
        return [result.chunk_no for result in (await _search(pool, made, number, mode)).results]

    return ask


def _plain(pool: Any, made: Corpus, effort: int) -> Ask:
    async def ask(number: int) -> list[int]:
        async with pool.acquire() as tx, tx.transaction():
            await vectors.enable(tx)
            await tx.execute(f"SET LOCAL hnsw.ef_search = {effort}")
            rows = await tx.fetch(
                "SELECT id FROM plain ORDER BY embedding <=> $1::vector LIMIT 10", _bytes(made.asked[number])
            )
        return [row["id"] for row in rows]

    return ask


def _numpy(made: Corpus) -> Ask:
    decays = BETA * 0.5 ** (made.ages / HALF_LIFE_DAYS)

    async def ask(number: int) -> list[int]:
        return [int(n) for n in _top(ALPHA * (made.vectors @ made.asked[number]) + decays)]

    return ask


def _top(scores: NDArray[Any]) -> NDArray[np.int64]:
    some = np.argpartition(-scores, LIMIT)[:LIMIT]
    return some[np.argsort(-scores[some], kind="stable")]


def _bytes(vector: FloatArray) -> bytes:
    return vector.astype("<f4").tobytes()


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chunks", type=sizes_of, default=())
    parser.add_argument("--searches", type=int, default=SEARCHES)
    parser.add_argument("--indexes", action="store_true")
    parser.add_argument("--compared", action="store_true")
    chosen: Any = parser.parse_args()
    for found in figures(
        chosen.runs, chosen.chunks, chosen.searches, with_indexes=chosen.indexes, with_compared=chosen.compared
    ):
        print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Searches of a namespace of 100,000 chunks with vectors of 384, beside plain pgvector and NumPy, on one PostgreSQL in one run.

The chunks have the product's vectors of commits (`tests/bench/data.py`; what is missing to the number is made of these by noise),
a page of commits for a text, and are of a year; the searches are the vectors of other commits. Ours gives the ten best by the
formula of R3.17, with texts, scores and ages; exact is the same formula over all of them in NumPy. Plain pgvector is what its
manual shows: a table of ids and vectors with an index of its defaults, of which the ten nearest are asked for, without ages; it
is held to the ten nearest by NumPy; once more with the effort that ours has where it looks deeper. `hybrid` weighs words too. One
search after the other, on one connection.

Indexes: the same table with one of full and one of half precision: what each finds of the ten nearest at the same effort, the
time that it takes to build, and its size. `compared` is our search where it compares all chunks, by their number: where that
takes as long as a search by the index is `COMPARED_MAX`.

    python -m tests.bench.chunks_search [--runs N] [--chunks N] [--searches N]
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
from numpy.typing import NDArray

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.retrieval import search as chunk_search
from highwater.connectors.retrieval.search import search
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.postgres import Postgres
from highwater.streams.chunks.scoring import DAY_MS, Mode
from highwater.streams.clock import monotonic_seconds, to_datetime
from tests.bench import data
from tests.bench.figures import Figure, figure

CHUNKS, SEARCHES = 100_000, 200
LIMIT = 10
NS = "docs"
NOW_MS = 1_800_000_000_000
YEAR_DAYS = 365
# The namespace is as the default passport says.
HALF_LIFE_DAYS, ALPHA, BETA = 30.0, 0.8, 0.2
# Where the search compares all, by number of chunks.
COMPARED = (1_000, 3_000, 10_000, 30_000, 100_000)
READY_SECONDS_MAX = 60.0
# Lines of a chunk's text: with them it is as long as a page that is cut into chunks, and stands beside its vector as one would.
LINES = 25
# Of the vectors of chunks that are made of others' so much is noise: nobody's nearest is a copy.
NOISE = 0.5
# pgvector adds float32, NumPy here float64.
LAST_BITS = 1e-6

FloatArray = NDArray[np.float32]
FloatArray64 = NDArray[np.float64]
Ask = Callable[[int], Awaitable[list[int]]]


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
    noise = rng.standard_normal((max(0, chunks - len(rest)), made.shape[1])).astype(np.float32)
    made[len(rest) :] += NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
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


def figures(runs: int = 3, chunks: int = CHUNKS, searches: int = SEARCHES) -> list[Figure]:
    """All figures."""
    made = corpus(chunks, searches)
    with _postgres() as url:
        return asyncio.run(_measure(url, made, runs))


@contextlib.contextmanager
def _postgres() -> Iterator[str]:
    """A PostgreSQL of the benchmark's own."""
    with tempfile.TemporaryDirectory(prefix="highwater-bench-chunks-") as folder:
        Path(folder).chmod(0o755)
        part = Postgres(Path(folder), PortBook(Path(folder)))
        part.take_ports()
        part.prepare()
        part.process.start(part.command())
        try:
            asyncio.run(_until_ready(part.address))
            yield part.address
        finally:
            part.process.stop(part.grace_seconds)


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


async def _measure(url: str, made: Corpus, runs: int) -> list[Figure]:
    found: list[Figure] = []
    async with await open_pool(url, size_max=2) as pool:
        await migrate(pool)
        await _load(pool, made, len(made.texts))
        found += await _indexes(pool, made)
        await _index(pool)
        found += await _searches(pool, made, runs)
        found += await _crossing(pool, made, runs)
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


async def _load(pool: Any, made: Corpus, count: int, ns: str = NS) -> None:
    await pool.execute(
        "INSERT INTO chunk_namespaces (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, "
        "removal, grace_days, archives_cold, is_open, dimensions, created_at) "
        "VALUES ($1, $2, $3, 'filter', $4, $5, 14, 100, 'soft', 7, false, true, $6, 'epoch')",
        ns, HALF_LIFE_DAYS, float(2 * YEAR_DAYS), ALPHA, BETA, made.vectors.shape[1],
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
        await tx.copy_records_to_table("chunks", records=rows, columns=names, timeout=600)
        await tx.execute("VACUUM ANALYZE chunks", timeout=600)


async def _index(pool: Any) -> None:
    """The product's index."""
    async with pool.acquire() as connection:
        await connection.execute(QUERIES["set_build_memory"], "256MB")
        for wanted in await connection.fetch(QUERIES["vector_indexes_wanted"], chunk_search.COMPARED_MAX, 4_000):
            await connection.execute(wanted["create_statement"], timeout=1_800)


async def _indexes(pool: Any, made: Corpus) -> list[Figure]:
    """A plain table with an index of full precision, then with one of half; the last one stays."""
    exact = _nearest(made)
    found: list[Figure] = []
    async with pool.acquire() as tx:
        await vectors.enable(tx)
        await tx.execute(f"CREATE TABLE plain (id bigint PRIMARY KEY, embedding vector({made.vectors.shape[1]}))")
        records = ((n, row.astype("<f4").tobytes()) for n, row in enumerate(made.vectors))
        await tx.copy_records_to_table("plain", records=records, columns=("id", "embedding"), timeout=600)
        await tx.execute("VACUUM ANALYZE plain", timeout=600)
        await tx.execute("SET maintenance_work_mem = '512MB'")
        half = f"halfvec({made.vectors.shape[1]})"
        for system, indexed, operators, order in (
            (
                "half precision",
                f"(embedding::{half})",
                "halfvec_cosine_ops",
                f"embedding::{half} <=> $1::vector::{half}",
            ),
            (
                "half precision at unit length (ours)",
                f"(l2_normalize(embedding)::{half})",
                "halfvec_ip_ops",
                f"l2_normalize(embedding)::{half} <#> l2_normalize($1::vector)::{half}",
            ),
            ("full precision", "embedding", "vector_cosine_ops", "embedding <=> $1::vector"),
        ):
            await tx.execute("DROP INDEX IF EXISTS plain_vectors")
            began = monotonic_seconds()
            await tx.execute(f"CREATE INDEX plain_vectors ON plain USING hnsw (({indexed}) {operators})", timeout=1_800)
            found.append(figure("index, time to build", system, "s", [monotonic_seconds() - began]))
            size = await tx.fetchval("SELECT pg_relation_size('plain_vectors')")
            found.append(figure("index, size", system, "MB", [size / 1_000_000]))
            for effort in (40, 200):
                await tx.execute(f"SET hnsw.ef_search = {effort}")
                told = [
                    await tx.fetch(f"SELECT id FROM plain ORDER BY {order} LIMIT {LIMIT}", _bytes(one))
                    for one in made.asked
                ]
                recalls = [_share([row["id"] for row in rows], best) for rows, best in zip(told, exact, strict=True)]
                found.append(figure(f"index, recall@10 at ef_search {effort}", system, "", [float(np.mean(recalls))]))
    return found


# -- searches --------------------------------------------------------------------------------------------------------


async def _searches(pool: Any, made: Corpus, runs: int) -> list[Figure]:
    best, nearest = _best(made), _nearest(made)
    systems: dict[str, tuple[Ask, Sequence[FloatArray64] | None]] = {
        "highwater": (_ours(pool, made, Mode.SEMANTIC), best),
        "highwater, hybrid": (_ours(pool, made, Mode.HYBRID), None),
        "pgvector, nearest only": (_plain(pool, made, 40), nearest),
        "pgvector, nearest only, ef_search 1,000": (_plain(pool, made, 1_000), nearest),
        "NumPy, exact": (_numpy(made), best),
    }
    taken: dict[str, list[list[float]]] = {name: [] for name in systems}
    recalls: dict[str, list[float]] = {name: [] for name in systems}
    for ask, _ in systems.values():
        for number in range(min(20, len(made.asked))):
            await ask(number)
    for _ in range(runs):
        for name, (ask, held_to) in systems.items():
            latencies, shares = [], []
            for number in range(len(made.asked)):
                began = monotonic_seconds()
                told = await ask(number)
                latencies.append((monotonic_seconds() - began) * 1000)
                if held_to is not None:
                    shares.append(_share(told, held_to[number]))
            taken[name].append(latencies)
            recalls[name].append(float(np.mean(shares)) if shares else float("nan"))
    found = []
    for name in systems:
        for percent in (50, 99):
            values = [float(np.percentile(latencies, percent)) for latencies in taken[name]]
            found.append(figure(f"search, p{percent}", name, "ms", values))
        if not np.isnan(recalls[name]).any():
            found.append(figure("search, recall@10", name, "", recalls[name]))
    complete = [(await _search(pool, made, n, Mode.SEMANTIC)).is_complete for n in range(len(made.asked))]
    found.append(figure("search, known to be complete", "highwater", "", [float(np.mean(complete))]))
    return found


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


async def _search(pool: Any, made: Corpus, number: int, mode: Mode, ns: str = NS) -> chunk_search.Found:
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


def _best(made: Corpus) -> list[FloatArray64]:
    """The scores of all chunks, for each search."""
    decays = BETA * 0.5 ** (made.ages / HALF_LIFE_DAYS)
    return [ALPHA * cosines + decays for cosines in _nearest(made)]


def _nearest(made: Corpus) -> list[FloatArray64]:
    whole = made.vectors.astype(np.float64)
    return [whole @ one.astype(np.float64) for one in made.asked]


def _share(told: Sequence[int], scores: FloatArray64) -> float:
    """How many of the ten told are as good as the tenth best: commits repeat, and of equals one is as good as another."""
    tenth = np.partition(scores, -LIMIT)[-LIMIT]
    return float(np.count_nonzero(scores[list(told)] >= tenth - LAST_BITS) / LIMIT)


def _bytes(vector: FloatArray) -> bytes:
    return vector.astype("<f4").tobytes()


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--searches", type=int, default=SEARCHES)
    chosen: Any = parser.parse_args()
    for found in figures(chosen.runs, chosen.chunks, chosen.searches):
        print(json.dumps(found))


if __name__ == "__main__":
    main()

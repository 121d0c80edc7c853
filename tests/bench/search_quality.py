"""How good searches are: ours in each mode, beside BM25, vectors alone and PostgreSQL's full text, on the same texts in one run.

Two sets, both of the docstrings of installed packages (`search_corpus`), the same each time for one environment: *pairs*,
3,000 docstrings without their first lines, each to be found by its first line among all others; and *judged*, some 7,000
chunks of the standard library and of libraries of services, with the questions of `search_questions.tsv`. These were written
before any search, each with the names of the docstrings that answer it; a chunk of one of them is a hit. A question whose
answers this environment has not is left out. *judged, pooled* is the same set with the verdicts of `search_judgements.tsv`: a
text that was found and read and also answers is a hit too. An unread text is not a hit; *unread* is their share of the first
five.

A figure is the share of questions with a hit among the first 1, 5 and 10 results, or the mean of 1 / rank of the first hit (MRR,
of ten results). Ours are searches as the API makes them, with the default passport; all chunks are of one age. The vectors are
those of the configured embedder (`HIGHWATER_EMBEDDER`), for ours and for pgvector alike. *bm25s* is BM25 with its defaults and a
stemmer, *ts_rank* is PostgreSQL's manual: `to_tsvector('english', ...)`, any word of the question.

`--rerank`: also hybrid searches of the judged set with the local reranker (`HIGHWATER_RERANKER=local`), two minutes of one core.
A question whose texts take it too long keeps the order of the scores, as in the product; *not reranked* is their share.

    python -m tests.bench.search_quality [--rerank] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg

from highwater.api.chunks.reranking import RERANKED_MIN, Ranking, reranked
from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.models.local_reranker import open_local_reranker
from highwater.connectors.models.opening import open_embedder
from highwater.connectors.models.reranker import Reranker
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.retrieval.results import Result
from highwater.connectors.retrieval.search import search
from highwater.streams.chunks.scoring import TEXT_SHARE, Mode
from highwater.streams.clock import to_datetime
from highwater.streams.settings import environment_with_file, read_settings
from tests.bench.chunks_search import BUILD_SECONDS_MAX, _postgres
from tests.bench.figures import Figure, figure
from tests.bench.search_corpus import pairs, texts
from tests.bench.search_judgements import NOTHING_READ, text_key, verdicts

QUESTIONS = Path(__file__).with_name("search_questions.tsv")
LIMIT, DEPTHS = 10, (1, 5, 10)
# Of every system this many results of each question were read.
READ_DEPTH = 5
NOW_MS = 1_800_000_000_000
INSTALL = "the peer bm25s is not installed: pip install 'highwater[bench]'"
# Texts that are embedded at a time, as the worker has them.
TEXTS_MAX = 64
PEER = "bm25s"
RERANKED = "highwater hybrid, reranked"

Ask = Callable[[int], Awaitable[Sequence[int]]]


@dataclass(frozen=True)
class Judged:
    """Texts with the headings above them, questions, and by question the places of the texts that answer it.

    `pooled`: those, and those that a reader found to answer; `read`: those that somebody judged. None: nobody read anything.
    """

    name: str
    titles: list[str]
    contents: list[str]
    questions: list[str]
    answers: list[frozenset[int]]
    pooled: list[frozenset[int]] | None = None
    read: list[frozenset[int]] | None = None


def sets() -> list[Judged]:
    """Both sets."""
    made, found = pairs(), texts()
    by_name: dict[str, set[int]] = defaultdict(set)
    for place, text in enumerate(found):
        by_name[text.name].add(place)
    asked = [(question, frozenset().union(*(by_name[name] for name in names))) for question, names in questions()]
    answered = [(question, answers) for question, answers in asked if answers]
    keys = [text_key(text.title, text.content) for text in found]
    given = verdicts()
    read = [given.get(question, NOTHING_READ) for question, _ in answered]
    also = [frozenset(place for place, key in enumerate(keys) if key in one.yes) for one in read]
    not_so = [frozenset(place for place, key in enumerate(keys) if key in one.no) for one in read]
    return [
        Judged(
            "pairs", [""] * len(made), [one.rest for one in made], [one.summary for one in made],
            [frozenset([place]) for place in range(len(made))],
        ),
        Judged(
            "judged", [one.title for one in found], [one.content for one in found], [one for one, _ in answered],
            [answers for _, answers in answered],
            [answers | more for (_, answers), more in zip(answered, also, strict=True)],
            [answers | more | no for (_, answers), more, no in zip(answered, also, not_so, strict=True)],
        ),
    ]  # fmt: skip


def questions() -> list[tuple[str, list[str]]]:
    """The questions of the file, each with the names that answer it."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    found = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(question, names.split()) for question, names in found]


def run(runs: int = 1, *, with_reranker: bool = False) -> list[Figure]:
    """The figures. Every run finds the same, so there is one."""
    if importlib.util.find_spec("bm25s") is None:
        raise SystemExit(INSTALL)
    with _postgres() as part:
        return asyncio.run(_measure(part.address, open_local_reranker() if with_reranker else None))


def table(figures: Sequence[Figure]) -> str:
    """A row a system and set."""
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for one in figures:
        name, _, measure = one["name"].rpartition(", ")
        rows[f"{name:46} {one['system']:26}"][measure] = one["value"]
    measures = list(dict.fromkeys(one["name"].rpartition(", ")[2] for one in figures))
    lines = [" " * 74 + "  ".join(f"{measure:>6}" for measure in measures)]
    lines += [
        f"{row} " + "  ".join(f"{found[one]:6.3f}" if one in found else " " * 6 for one in measures)
        for row, found in rows.items()
    ]
    return "\n".join(lines)


async def _measure(url: str, reranker: Reranker | None) -> list[Figure]:
    embedder = open_embedder(read_settings(environment_with_file()))
    found = []
    async with await open_pool(url, size_max=2) as pool:
        await migrate(pool)
        for one in sets():
            of_texts = await _embedded(embedder, [_whole(one, place) for place in range(len(one.contents))])
            asked = await _embedded(embedder, one.questions)
            await _load(pool, one, of_texts)
            systems = await _systems(pool, one, asked, reranker if one.pooled else None)
            for system, ask in systems.asks.items():
                told = [await ask(number) for number in range(len(one.questions))]
                found += _figures(one, system, told)
            if RERANKED in systems.asks:
                share = len(systems.not_reranked) / len(one.questions)
                found.append(figure(f"{_sized(one)}, not reranked", RERANKED, "", [share]))
    return found


def _sized(made: Judged) -> str:
    """The name of a set, with how much is in it."""
    return f"{made.name}, {len(made.contents)} chunks, {len(made.questions)} questions"


def _figures(made: Judged, system: str, told: Sequence[Sequence[int]]) -> list[Figure]:
    """How good a system's results are, by the answers that were named and by those that were read."""
    found = _ranked(_sized(made), system, told, made.answers)
    if made.pooled is not None and made.read is not None:
        name = _sized(replace(made, name=f"{made.name}, pooled"))
        found += _ranked(name, system, told, made.pooled)
        first = [place in read for one, read in zip(told, made.read, strict=True) for place in one[:READ_DEPTH]]
        found.append(figure(f"{name}, unread", system, "", [1 - sum(first) / len(first)]))
    return found


def _ranked(name: str, system: str, told: Sequence[Sequence[int]], answers: Sequence[frozenset[int]]) -> list[Figure]:
    ranks = [_rank(one, right) for one, right in zip(told, answers, strict=True)]
    found = [figure(f"{name}, top {depth}", system, "", [_share(ranks, depth)]) for depth in DEPTHS]
    return [*found, figure(f"{name}, MRR", system, "", [sum(1 / rank for rank in ranks if rank) / len(ranks)])]


def _whole(made: Judged, place: int) -> str:
    """A text as the backfill worker embeds it: below its title."""
    return "\n\n".join(part for part in (made.titles[place], made.contents[place]) if part)


async def _embedded(embedder: Embedder, given: Sequence[str]) -> list[bytes]:
    made: list[bytes] = []
    for first in range(0, len(given), TEXTS_MAX):
        made += await embedder.embed(given[first : first + TEXTS_MAX])
    return made


def _rank(told: Sequence[int], answers: frozenset[int]) -> int:
    """The place of the first hit from 1; 0 for none."""
    return next((rank for rank, place in enumerate(told, start=1) if place in answers), 0)


def _share(ranks: Sequence[int], depth: int) -> float:
    return sum(0 < rank <= depth for rank in ranks) / len(ranks)


async def _load(pool: Any, made: Judged, of_texts: Sequence[bytes]) -> None:
    await pool.execute(
        "INSERT INTO chunk_namespaces (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, "
        "removal, grace_days, archives_cold, is_open, text_share, dimensions, created_at) "
        "VALUES ($1, 30, 365, 'filter', 0.8, 0.2, 14, 100, 'soft', 7, false, true, $2, $3, 'epoch')",
        made.name, TEXT_SHARE, len(of_texts[0]) // 4,
    )  # fmt: skip
    names = (
        *("ns", "slot", "source_id", "chunk_no", "title", "content", "content_hash", "embedding", "embedding_model"),
        *("created_at", "updated_at", "ingest_id", "source_partition", "source_offset"),
    )
    now = to_datetime(NOW_MS)
    rows = (
        (
            *(made.name, "bench", "s", place, made.titles[place] or None, made.contents[place], f"{place:064x}"),
            *(of_texts[place], "bench", now, now, "bench", 0, place),
        )
        for place in range(len(of_texts))
    )
    async with pool.acquire() as tx:
        await vectors.enable(tx)
        await tx.copy_records_to_table("chunks", records=rows, columns=names, timeout=BUILD_SECONDS_MAX)
        await tx.execute("VACUUM ANALYZE chunks", timeout=BUILD_SECONDS_MAX)


# -- systems -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Systems:
    """How each system is asked, by name, and the questions that the reranker took too long for."""

    asks: Mapping[str, Ask]
    not_reranked: set[int] = field(default_factory=set)


async def _systems(
    pool: asyncpg.Pool[asyncpg.Record], made: Judged, asked: Sequence[bytes], reranker: Reranker | None
) -> Systems:
    not_reranked: set[int] = set()
    row = await pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = $1", made.name)

    async def found(number: int, mode: Mode, has_vector: bool, limit: int) -> Sequence[Result]:
        told = await search(
            pool,
            row,
            q_vector=asked[number] if has_vector else None,
            words=made.questions[number],
            limit=limit,
            as_of_ms=NOW_MS,
            mode=mode,
        )
        return told.results

    async def ours(number: int, *, mode: Mode, has_vector: bool) -> list[int]:
        return [one.chunk_no for one in await found(number, mode, has_vector, LIMIT)]

    async def by_reranker(number: int) -> list[int]:
        assert reranker is not None
        results = await found(number, Mode.HYBRID, True, RERANKED_MIN)
        places, is_reranked = await reordered(reranker, made.questions[number], results, row)
        if not is_reranked:
            not_reranked.add(number)
        return places

    async def pgvector(number: int) -> list[int]:
        async with pool.acquire() as tx:
            await vectors.enable(tx)
            rows = await tx.fetch(
                "SELECT chunk_no FROM chunks WHERE ns = $1 ORDER BY embedding <=> $2, chunk_no LIMIT $3",
                made.name, asked[number], LIMIT,
            )  # fmt: skip
        return [row["chunk_no"] for row in rows]

    async def full_text(number: int) -> list[int]:
        rows = await pool.fetch(
            "WITH asked AS (SELECT replace(plainto_tsquery('english', $2)::text, ' & ', ' | ')::tsquery AS q) "
            "SELECT chunk_no FROM asked, plain WHERE ns = $1 AND words @@ q ORDER BY ts_rank(words, q) DESC, chunk_no LIMIT $3",
            made.name, made.questions[number], LIMIT,
        )  # fmt: skip
        return [row["chunk_no"] for row in rows]

    await pool.execute("DROP TABLE IF EXISTS plain")
    await pool.execute(
        "CREATE TABLE plain AS "
        "SELECT ns, chunk_no, to_tsvector('english', coalesce(title, '') || ' ' || content) AS words FROM chunks"
    )
    by_words = _bm25s([f"{title} {text}" for title, text in zip(made.titles, made.contents, strict=True)])
    more: dict[str, Ask] = {} if reranker is None else {RERANKED: by_reranker}
    others: dict[str, Ask] = {
        "highwater hybrid": lambda number: ours(number, mode=Mode.HYBRID, has_vector=True),
        "highwater words": lambda number: ours(number, mode=Mode.HYBRID, has_vector=False),
        "highwater semantic": lambda number: ours(number, mode=Mode.SEMANTIC, has_vector=True),
        PEER: lambda number: by_words(made.questions[number]),
        "pgvector": pgvector,
        "PostgreSQL ts_rank": full_text,
    }
    return Systems(more | others, not_reranked)


async def reordered(
    reranker: Reranker, question: str, results: Sequence[Result], passport: Any
) -> tuple[list[int], bool]:
    """The places of the first results in the reranker's order, and whether it gave one; else they are in their own."""
    ordered, ranking = await reranked(reranker, question, results, passport)
    return [one.chunk_no for one in ordered][:LIMIT], ranking is Ranking.RERANKER


def _bm25s(given: Sequence[str]) -> Callable[[str], Awaitable[list[int]]]:
    import bm25s
    import numpy as np
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(given), stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

    async def ask(question: str) -> list[int]:
        words = bm25s.tokenize([question], stopwords="en", stemmer=stemmer, show_progress=False, return_ids=False)[0]
        if not words:
            return []
        scores = index.get_scores(words)
        return [int(place) for place in np.argsort(-scores, kind="stable")[:LIMIT] if scores[place] > 0]

    return ask


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rerank", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = run(with_reranker=given.rerank)
    print("\n".join(json.dumps(one) for one in figures) if given.json else table(figures))

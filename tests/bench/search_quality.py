"""How good searches are: ours in each mode, beside BM25, vectors alone and PostgreSQL's full text, on the same texts in one run.

Two sets are of the docstrings of installed packages (`search_corpus`), the same each time for one environment: *pairs*,
3,000 docstrings without their first lines, each to be found by its first line among all others; and *judged*, some 7,000
chunks of the standard library and of libraries of services, with the questions of `search_questions.tsv`. These were written
before any search, each with the names of the docstrings that answer it; a chunk of one of them is a hit. A question whose
answers this environment has not is left out. *judged, pooled* is the same set with the verdicts of `search_judgements.tsv`: a
text that was found and read and also answers is a hit too. An unread text is not a hit; *unread* is their share of the first
five.

Nothing was chosen on the others, which run by their names (`--sets`): *standard*, the docstrings of the standard library that are
not among the pairs, asked for as pairs are; *scrapy* and *hatch*, handbooks; *ru* and *de*, man pages (`search_packages`, which
also says what they need). Nothing may be chosen on the *odd* questions of the last two.

A figure is the share of questions with a hit among the first 1, 5 and 10 results, or the mean of 1 / rank of the first hit (MRR,
of ten results). Ours are searches as the API makes them, with the default passport; all chunks are of one age. The vectors are
those of the configured embedder (`HIGHWATER_EMBEDDER`), for ours and for pgvector alike. *bm25s* is BM25 with its defaults, and
the stemmer and stop words of the set's language; *ts_rank* is PostgreSQL's manual: `to_tsvector` in the language, any word of the
question. *By index*: the same searches as in a namespace too large to be compared completely; *complete* is the share of them
that are known to be complete.

`--rerank`: also hybrid searches of the judged set with the local reranker (`HIGHWATER_RERANKER=local`), two minutes of one core.
A question whose texts take it too long keeps the order of the scores, as in the product; *not reranked* is their share.

    pip install 'highwater[bench]'    # bm25s and PyStemmer
    python -m tests.bench.search_quality [--sets NAME,NAME] [--rerank] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from highwater.api.chunks.query_vectors import QueryVectors
from highwater.api.chunks.reranking import RERANKED_MIN, Ranking, reranked
from highwater.connectors.models.local_reranker import open_local_reranker
from highwater.connectors.models.opening import open_embedder
from highwater.connectors.models.reranker import Reranker
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.retrieval import search as chunk_search
from highwater.connectors.retrieval.results import Result, SearchResults
from highwater.connectors.retrieval.search import search
from highwater.streams.chunks.scoring import Mode
from highwater.streams.settings import environment_with_file, read_settings
from tests.bench.chunks_search import BUILD_SECONDS_MAX, _index, _postgres
from tests.bench.figures import Figure, figure
from tests.bench.search_corpus import Pair, pairs, standard_pairs, texts
from tests.bench.search_judgements import NOTHING_READ, text_key, verdicts
from tests.bench.search_packages import Corpus, handbook_corpus, man_corpus
from tests.bench.stored import Titled, store_chunks

QUESTIONS = Path(__file__).with_name("search_questions.tsv")
LIMIT, DEPTHS = 10, (1, 5, 10)
# Of every system this many results of each question were read.
READ_DEPTH = 5
NOW_MS = 1_800_000_000_000
INSTALL = "the peer bm25s is not installed: pip install 'highwater[bench]'"
PEER = "bm25s"
RERANKED = "highwater hybrid, reranked"

Ask = Callable[[int], Awaitable[Sequence[int]]]


@dataclass(frozen=True)
class Judged:
    """Texts with the headings above them, questions, and by question the places of the texts that answer it.

    `pooled`: those, and those that a reader found to answer; `read`: those that somebody judged. None: nobody read anything.
    `language`: of the texts and questions, as PostgreSQL and PyStemmer name it. `parts`: by name the places of the questions of a
    part that has figures of its own; none: all are one.
    """

    name: str
    titles: list[str]
    contents: list[str]
    questions: list[str]
    answers: list[frozenset[int]]
    pooled: list[frozenset[int]] | None = None
    read: list[frozenset[int]] | None = None
    language: str = "english"
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)


def _held_out(name: str, made: Sequence[Pair]) -> Judged:
    answers = [frozenset([place]) for place in range(len(made))]
    return Judged(name, [""] * len(made), [one.rest for one in made], [one.summary for one in made], answers)


def _judged() -> Judged:
    found = texts()
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
    return Judged(
        "judged", [one.title for one in found], [one.content for one in found], [one for one, _ in answered],
        [answers for _, answers in answered],
        [answers | more for (_, answers), more in zip(answered, also, strict=True)],
        [answers | more | no for (_, answers), more, no in zip(answered, also, not_so, strict=True)],
    )  # fmt: skip


def _in_parts(name: str, corpus: Corpus, language: str) -> Judged:
    asked = [(part, one) for part, of_part in corpus.parts.items() for one in of_part]
    return Judged(
        name,
        [one.title for one in corpus.chunks],
        [one.content for one in corpus.chunks],
        [one.question for _, one in asked],
        [one.answers for _, one in asked],
        language=language,
        parts={part: [place for place, (of, _) in enumerate(asked) if of == part] for part in corpus.parts},
    )


# What is measured without names, and then what is fetched: each a minute or two, most of it for vectors.
SETS: dict[str, Callable[[], Judged]] = {
    "pairs": lambda: _held_out("pairs", pairs()),
    "judged": _judged,
    "standard": lambda: _held_out("standard", standard_pairs()),
    "scrapy": lambda: _in_parts("scrapy", handbook_corpus("scrapy"), "english"),
    "hatch": lambda: _in_parts("hatch", handbook_corpus("hatch"), "english"),
    "ru": lambda: _in_parts("ru", man_corpus("ru"), "russian"),
    "de": lambda: _in_parts("de", man_corpus("de"), "german"),
}
INSTALLED = ("pairs", "judged")


def questions() -> list[tuple[str, list[str]]]:
    """The questions of the file, each with the names that answer it."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    found = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(question, names.split()) for question, names in found]


def run(runs: int = 1, *, with_reranker: bool = False, chosen: Sequence[str] = INSTALLED) -> list[Figure]:
    """The figures. Every run finds the same, so there is one."""
    if importlib.util.find_spec("bm25s") is None:
        raise SystemExit(INSTALL)
    with _postgres() as part:
        return asyncio.run(_measure(part.address, open_local_reranker() if with_reranker else None, chosen))


def table(figures: Sequence[Figure]) -> str:
    """A table in Markdown for each set, or part of one; *x bm25s* is the MRR as a multiple of its."""
    rows: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in figures:
        name, _, measure = one["name"].rpartition(", ")
        rows[name][one["system"]][measure] = one["value"]
    return "\n\n".join(_table(name, systems) for name, systems in rows.items())


def _table(name: str, systems: Mapping[str, dict[str, float]]) -> str:
    peer = systems.get(PEER, {}).get("MRR")
    if peer:
        systems = {system: {**found, f"x {PEER}": found["MRR"] / peer} for system, found in systems.items()}
    measures = list(dict.fromkeys(measure for found in systems.values() for measure in found))
    lines = [[name, *measures], ["---"] * (1 + len(measures))]
    lines += [
        [system, *(f"{found[measure]:.3f}".removeprefix("0") if measure in found else "" for measure in measures)]
        for system, found in systems.items()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


async def _measure(url: str, reranker: Reranker | None, chosen: Sequence[str]) -> list[Figure]:
    embedder = open_embedder(read_settings(environment_with_file()))
    of_questions = QueryVectors([embedder], lambda _payer, _tokens: None)
    found = []
    async with await open_pool(url, size_max=2) as pool:
        await migrate(pool)
        for name in chosen:
            one = SETS[name]()
            chunks = [Titled(*text) for text in zip(one.titles, one.contents, strict=True)]
            await store_chunks(pool, embedder, name, "s", chunks, now_ms=NOW_MS)
            await pool.execute("VACUUM ANALYZE chunks", timeout=BUILD_SECONDS_MAX)
            with _all_by_index():
                await _index(pool)
            asked = [await of_questions.of(embedder.basis_id, question, None) for question in one.questions]
            systems = await _systems(pool, one, asked, reranker if one.pooled else None)
            for system, ask in systems.asks.items():
                told = [await ask(number) for number in range(len(one.questions))]
                incomplete = systems.incomplete.get(system)
                for part in _parts(one):
                    found += _figures(part.made, system, [told[place] for place in part.places])
                    if incomplete is not None:
                        share = 1 - len(incomplete & set(part.places)) / len(part.places)
                        found.append(figure(f"{_sized(part.made)}, complete", system, "", [share]))
            if RERANKED in systems.asks:
                share = len(systems.not_reranked) / len(one.questions)
                found.append(figure(f"{_sized(one)}, not reranked", RERANKED, "", [share]))
    return found


class _Part(NamedTuple):
    """A set with the questions of a part of it, and their places in the whole set."""

    made: Judged
    places: Sequence[int]


def _parts(made: Judged) -> list[_Part]:
    """A set in its parts; the whole if it has none."""
    return [
        _Part(
            replace(
                made,
                name=f"{made.name}, {part}",
                questions=[made.questions[place] for place in places],
                answers=[made.answers[place] for place in places],
            ),
            places,
        )
        for part, places in made.parts.items()
    ] or [_Part(made, range(len(made.questions)))]


@contextlib.contextmanager
def _all_by_index() -> Iterator[None]:
    """Every namespace is searched as one that is too large to be compared completely."""
    held, chunk_search.COMPARED_MAX = chunk_search.COMPARED_MAX, 0
    try:
        yield
    finally:
        chunk_search.COMPARED_MAX = held


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


def _rank(told: Sequence[int], answers: frozenset[int]) -> int:
    """The place of the first hit from 1; 0 for none."""
    return next((rank for rank, place in enumerate(told, start=1) if place in answers), 0)


def _share(ranks: Sequence[int], depth: int) -> float:
    return sum(0 < rank <= depth for rank in ranks) / len(ranks)


# -- systems -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Systems:
    """How each system is asked, by name; the questions that the reranker took too long for, and by system those whose results
    may be incomplete.
    """

    asks: Mapping[str, Ask]
    not_reranked: set[int] = field(default_factory=set)
    incomplete: Mapping[str, set[int]] = field(default_factory=dict)


async def _systems(
    pool: asyncpg.Pool[asyncpg.Record], made: Judged, asked: Sequence[bytes], reranker: Reranker | None
) -> Systems:
    not_reranked: set[int] = set()
    incomplete: dict[str, set[int]] = {}
    row = await pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = $1", made.name)

    async def found(number: int, mode: Mode, has_vector: bool, limit: int) -> SearchResults:
        return await search(
            pool,
            row,
            q_vector=asked[number] if has_vector else None,
            words=made.questions[number],
            limit=limit,
            as_of_ms=NOW_MS,
            mode=mode,
        )

    async def ours(number: int, *, mode: Mode, has_vector: bool) -> list[int]:
        return [one.chunk_no for one in (await found(number, mode, has_vector, LIMIT)).results]

    async def by_index(number: int, *, mode: Mode) -> list[int]:
        with _all_by_index():
            told = await found(number, mode, True, LIMIT)
        assert not told.is_exact
        if not told.is_complete:
            incomplete[f"highwater {mode}, by index"].add(number)
        return [one.chunk_no for one in told.results]

    async def by_reranker(number: int) -> list[int]:
        assert reranker is not None
        results = (await found(number, Mode.HYBRID, True, RERANKED_MIN)).results
        places, is_reranked = await reordered(reranker, made.questions[number], results, row)
        if not is_reranked:
            not_reranked.add(number)
        return places

    async def pgvector(number: int) -> list[int]:
        async with pool.acquire() as tx:
            await vectors.enable(tx)
            rows = await tx.fetch(
                "SELECT chunk_no FROM chunks WHERE ns = $1 ORDER BY embedding <=> $2, chunk_no LIMIT $3",
                made.name, asked[number], LIMIT, timeout=BUILD_SECONDS_MAX,
            )  # fmt: skip
        return [row["chunk_no"] for row in rows]

    async def full_text(number: int) -> list[int]:
        rows = await pool.fetch(
            "WITH asked AS (SELECT replace(plainto_tsquery($3::text::regconfig, $1)::text, ' & ', ' | ')::tsquery AS q) "
            "SELECT chunk_no FROM asked, plain WHERE words @@ q ORDER BY ts_rank(words, q) DESC, chunk_no LIMIT $2",
            made.questions[number], LIMIT, made.language, timeout=BUILD_SECONDS_MAX,
        )  # fmt: skip
        return [row["chunk_no"] for row in rows]

    await pool.execute("DROP TABLE IF EXISTS plain")
    await pool.execute(
        "CREATE TABLE plain AS SELECT chunk_no, "
        f"to_tsvector('{made.language}', coalesce(title, '') || ' ' || content) AS words FROM chunks WHERE ns = '{made.name}'",
        timeout=BUILD_SECONDS_MAX,
    )
    whole = [f"{title} {text}" for title, text in zip(made.titles, made.contents, strict=True)]
    by_words = _bm25s(whole, made.language)
    more: dict[str, Ask] = {} if reranker is None else {RERANKED: by_reranker}
    indexed = {f"highwater {mode}, by index": mode for mode in (Mode.HYBRID, Mode.SEMANTIC)}
    incomplete |= {name: set() for name in indexed}
    others: dict[str, Ask] = {
        "highwater hybrid": lambda number: ours(number, mode=Mode.HYBRID, has_vector=True),
        "highwater words": lambda number: ours(number, mode=Mode.HYBRID, has_vector=False),
        "highwater semantic": lambda number: ours(number, mode=Mode.SEMANTIC, has_vector=True),
        **{name: partial(by_index, mode=mode) for name, mode in indexed.items()},
        PEER: lambda number: by_words(made.questions[number]),
        "pgvector": pgvector,
        "PostgreSQL ts_rank": full_text,
    }
    return Systems(more | others, not_reranked, incomplete)


async def reordered(
    reranker: Reranker, question: str, results: Sequence[Result], passport: Any
) -> tuple[list[int], bool]:
    """The places of the first results in the reranker's order, and whether it gave one; else they are in their own."""
    ordered, ranking = await reranked(reranker, question, results, passport)
    return [one.chunk_no for one in ordered][:LIMIT], ranking is Ranking.RERANKER


def _bm25s(given: Sequence[str], language: str) -> Callable[[str], Awaitable[list[int]]]:
    import bm25s
    import numpy as np
    import Stemmer

    form: dict[str, Any] = {"stopwords": language, "stemmer": Stemmer.Stemmer(language), "show_progress": False}
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(given), **form), show_progress=False)

    async def ask(question: str) -> list[int]:
        words = bm25s.tokenize([question], return_ids=False, **form)[0]
        if not words:
            return []
        scores = index.get_scores(words)
        return [int(place) for place in np.argsort(-scores, kind="stable")[:LIMIT] if scores[place] > 0]

    return ask


def main() -> None:
    """Print a table for each set, or one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=lambda names: names.split(","), default=INSTALLED)
    parser.add_argument("--rerank", action="store_true")
    parser.add_argument("--json", action="store_true")
    given: Any = parser.parse_args()
    for name in given.sets:
        figures = run(with_reranker=given.rerank, chosen=[name])
        print("\n".join(json.dumps(one) for one in figures) if given.json else f"{table(figures)}\n", flush=True)


if __name__ == "__main__":
    main()

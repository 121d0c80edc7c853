"""How good answers are: sixty questions on the bundled data, answered by the pipeline with the built-in model.

The data: the 3,000 commit subjects of the bundled sample as insights, and pages of `docs/` as chunks of an open namespace, in
a PostgreSQL of the benchmark's own, with vectors of the local model where it is installed. The questions and their answers
are in `answer_questions.tsv`; they were written before the first run. Each has its own user.

By kind of question: *cited* is the share whose answer cites a source that answers it, *first* whose first citation is one,
*fact* whose first line contains the requested fact. Of questions without an answer in the data, *cited* is the share that is
answered "not found".

    python -m tests.bench.answers [--show]
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from highwater.connectors.models.embedding_calls import CountedEmbedder
from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.models.opening import open_embedder
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.queries.stages import Stages, answered_locally, conclude
from highwater.schemas.envelope import ms_from_iso
from highwater.streams.clock import to_datetime
from highwater.streams.documents.chunking import cut
from highwater.streams.documents.structure import markdown_blocks
from highwater.streams.models.costs import parse_prices
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.local_model import NOTHING_FOUND
from highwater.streams.queries.runs import Run, captured
from highwater.streams.queries.states import Stage, Status
from highwater.streams.settings import environment_with_file, read_settings
from tests import ROOT
from tests.bench.chunks_search import _postgres
from tests.bench.figures import Figure, figure

QUESTIONS = Path(__file__).with_name("answer_questions.tsv")
SAMPLE = ROOT / "api" / "sample" / "commits.jsonl.gz"
PAGES = ("compose", "operating", "scaling", "secure", "sign-in", "upgrading")
NOW_MS = 1_800_000_000_000
NONE = "none"
_TEXTS_MAX = 64
_CITED = re.compile(r"^\[\d+\] [-\d]+ [\d:]+, [^,]+, ([^,]+), ", re.MULTILINE)


class Question(NamedTuple):
    """A question, what answers it, and what its answer's first line must hold."""

    kind: str
    text: str
    sources: str
    fact: str


class Judged(NamedTuple):
    """An answer, and how good it is."""

    question: Question
    answer: str
    is_cited: bool
    is_first: bool
    has_fact: bool


def questions() -> list[Question]:
    """Those of the file."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return [Question(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def run(runs: int = 1) -> list[Figure]:
    """The figures."""
    found = defaultdict(list)
    for one in judged():
        found[one.question.kind].append(one)
        found["all"].append(one)
    figures = []
    for kind, of_kind in found.items():
        for measure in ("cited", "first", "fact"):
            values = [getattr(one, f"{'has' if measure == 'fact' else 'is'}_{measure}") for one in of_kind]
            figures.append(
                figure(f"{kind}, {len(of_kind)} questions, {measure}", "highwater", "", [sum(values) / len(values)])
            )
    return figures


def judged() -> list[Judged]:
    """All questions, asked and judged."""
    with _postgres() as part:
        return asyncio.run(_ask_all(part.address))


async def _ask_all(url: str) -> list[Judged]:
    embedder = open_embedder(read_settings(environment_with_file()))
    async with await open_pool(url, size_max=4) as pool:
        await migrate(pool)
        texts = await _load_insights(pool, embedder)
        await _load_pages(pool, embedder)
        counted = CountedEmbedder(pool, embedder, parse_prices(""), lambda: NOW_MS)
        stages = Stages(pool, model="small", strong_model="strong", embedder=counted)
        return [judge(one, await _answer(stages, one.text), texts) for one in questions()]


async def _answer(stages: Stages, text: str) -> str:
    run = Run(str(uuid.uuid4()), str(uuid.uuid4()), 1, text, Status.NEW, updated_ms=NOW_MS)
    for stage in (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER):
        ask = await stages.ask(captured(run, worker=1, lease_ms=1_000, now_ms=NOW_MS), stage)
        run = conclude(ask.run, stage, answered_locally(ask.call), NOW_MS).run
    return run.answer or ""


def judge(question: Question, answer: str, texts: dict[str, tuple[str, str]]) -> Judged:
    """An answer judged: `texts` has the channel and text of each insight by its id."""
    cited = _CITED.findall(answer)
    if question.kind == NONE:
        is_right = answer.startswith(NOTHING_FOUND)
        return Judged(question, answer, is_right, is_right, is_right)
    right = [_answers(question.sources, one, texts) for one in cited]
    first_line = answer.partition("\n")[0]
    has_fact = re.search(question.fact, first_line) is not None
    return Judged(question, answer, any(right), right[:1] == [True], has_fact)


def _answers(sources: str, cited: str, texts: dict[str, tuple[str, str]]) -> bool:
    """Whether a cited source is one that answers."""
    if sources.startswith("/"):
        pattern, _, channel = sources[1:].rpartition("/@") if "/@" in sources else ("", "", "")
        held = texts.get(cited)
        return held is not None and held[0] == channel and re.search(pattern, held[1]) is not None
    return cited in sources.split()


async def _load_insights(pool: asyncpg.Pool[asyncpg.Record], embedder: Embedder) -> dict[str, tuple[str, str]]:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as stream:
        rows: list[dict[str, Any]] = [json.loads(line) for line in stream]
    made = await _embedded(embedder, [row["text"] for row in rows])
    counts: dict[str, int] = defaultdict(int)
    records = []
    for place, (row, vector) in enumerate(zip(rows, made, strict=True)):
        counts[row["channel_id"]] += 1
        at = to_datetime(ms_from_iso(row["ts"]))
        key = (row["insight_id"], row["channel_id"], counts[row["channel_id"]])
        records.append((*key, at, at, row["text"], vector, embedder.basis_id, 0, place))
    async with pool.acquire() as tx:
        await tx.execute(
            "INSERT INTO bases VALUES ($1, 'remote', '', 0, 'epoch') ON CONFLICT DO NOTHING", embedder.basis_id
        )
        await tx.execute("UPDATE active_basis SET basis_id = $1", embedder.basis_id)
        await tx.executemany("INSERT INTO channels (channel_id, current_seq) VALUES ($1, $2)", list(counts.items()))
        names = ("insight_id", "channel_id", "seq", "ts", "arrived_at", "text", "embedding", "embedding_model")
        await tx.copy_records_to_table(
            "insights", records=records, columns=(*names, "source_partition", "source_offset")
        )
        await tx.execute("ANALYZE insights")
    return {row["insight_id"]: (row["channel_id"], row["text"]) for row in rows}


async def _load_pages(pool: asyncpg.Pool[asyncpg.Record], embedder: Embedder) -> None:
    records = []
    now = to_datetime(NOW_MS)
    for page in PAGES:
        chunks = cut(markdown_blocks((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")), count_tokens)
        made = await _embedded(embedder, [f"{one.title or ''}\n\n{one.content}" for one in chunks])
        records += [
            (
                *("docs", "main", f"{page}.md", place, one.title, one.content, f"{place:064x}", vector),
                *(embedder.basis_id, now, now, "bench", 0, len(records) + place),
            )
            for place, (one, vector) in enumerate(zip(chunks, made, strict=True))
        ]
    names = (
        *("ns", "slot", "source_id", "chunk_no", "title", "content", "content_hash", "embedding", "embedding_model"),
        *("created_at", "updated_at", "ingest_id", "source_partition", "source_offset"),
    )
    async with pool.acquire() as tx:
        await tx.execute(
            "INSERT INTO chunk_namespaces (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, "
            "removal, grace_days, archives_cold, is_open, dimensions, embedding_model, created_at) "
            "VALUES ('docs', 30, 365, 'filter', 0.8, 0.2, 14, 100, 'soft', 7, false, true, 384, $1, 'epoch')",
            embedder.basis_id,
        )
        await vectors.enable(tx)
        await tx.copy_records_to_table("chunks", records=records, columns=names)
        await tx.execute("ANALYZE chunks")


async def _embedded(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    made: list[bytes] = []
    for first in range(0, len(texts), _TEXTS_MAX):
        made += await embedder.embed(texts[first : first + _TEXTS_MAX])
    return made


def main() -> None:
    """The figures, or every answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--show", action="store_true", help="print every question with its answer")
    if parser.parse_args().show:
        for one in judged():
            marks = "".join(mark if good else "-" for mark, good in zip("cst", one[2:], strict=True))
            print(
                f"{marks} {one.question.kind}: {one.question.text}  ({one.question.sources}; {one.question.fact})\n{one.answer}\n"
            )
        return
    for found in run():
        print(f"{found['name']:40} {found['value']:.3f}")


if __name__ == "__main__":
    main()

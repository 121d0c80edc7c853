"""How good answers are: sixty questions on the bundled data, answered by the pipeline with the built-in model.

The data: the 3,000 commit subjects of the bundled sample as insights, and pages of `docs/` as chunks of an open namespace, in
a PostgreSQL of the benchmark's own, with vectors of the local model where it is installed. The questions and their answers
are in `answer_questions.tsv`; they were written before the first run. Each has its own user.

*ru* and *de* are sentences of man pages in Russian and in German as insights of a few channels, with thirty questions each in
other words (`answer_questions_ru.tsv`, `answer_questions_de.tsv`), written from the sentences before any was asked. The pages
are fetched (`search_packages`).

By kind of question: *cited* is the share whose answer cites a source that answers it, *first* whose first citation is one,
*fact* whose first line contains the requested fact. Of questions without an answer in the data, *cited* is the share that is
answered without any source.

    python -m tests.bench.answers [--data NAME,NAME] [--show]
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from highwater.connectors.models.embedding_calls import CountedEmbedder
from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.models.opening import open_embedder
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.queries.stages import Stages, answered_locally, conclude
from highwater.schemas.envelope import ms_from_iso
from highwater.streams.chunks.scoring import DAY_MS
from highwater.streams.documents.chunking import cut
from highwater.streams.documents.structure import markdown_blocks
from highwater.streams.models.costs import parse_prices
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.runs import Run, captured
from highwater.streams.queries.states import Stage, Status
from highwater.streams.settings import environment_with_file, read_settings
from tests import ROOT
from tests.bench.chunks_search import _postgres
from tests.bench.figures import Figure, figure
from tests.bench.search_packages import man_sentences
from tests.bench.stored import Insight, Titled, store_chunks, store_insights

FOLDER = Path(__file__).parent
SAMPLE = ROOT / "api" / "sample" / "commits.jsonl.gz"
NAMES = ("bundled", "ru", "de")
PAGES = ("compose", "operating", "scaling", "secure", "sign-in", "upgrading")
NOW_MS = 1_800_000_000_000
NONE = "none"
# A shown source: its number, date, channel and id.
_CITED = re.compile(r"^\[\d+\] [^,\n]+, [^,\n]+, ([^,\n]+), ", re.MULTILINE)
# The channel of a man page, by its section of the manual; the others are about functions and games.
CHANNELS = {"1": "commands", "4": "devices", "5": "formats", "7": "overviews", "8": "administration"}
# The channel and text of each insight by its id.
Texts = dict[str, tuple[str, str]]
Load = Callable[["asyncpg.Pool[asyncpg.Record]", Embedder], Awaitable[Texts]]


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


class Data(NamedTuple):
    """Questions, and what stores the data that they are about."""

    questions: list[Question]
    load: Load


def data(name: str) -> Data:
    """Those of a name in `NAMES`."""
    if name == NAMES[0]:
        return Data(_questions("answer_questions.tsv"), _load_bundled)
    return Data(_questions(f"answer_questions_{name}.tsv"), partial(_load_sentences, name))


def _questions(file: str) -> list[Question]:
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    return [Question(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def run(runs: int = 1, *, chosen: Sequence[str] = NAMES[:1]) -> list[Figure]:
    """The figures."""
    figures = []
    for name in chosen:
        found = defaultdict(list)
        for one in judged(name):
            found[one.question.kind].append(one)
            found["all"].append(one)
        for kind, of_kind in found.items():
            for measure in ("cited", "first", "fact"):
                values = [getattr(one, f"{'has' if measure == 'fact' else 'is'}_{measure}") for one in of_kind]
                title = f"{'' if name == NAMES[0] else f'{name}, '}{kind}, {len(of_kind)} questions, {measure}"
                figures.append(figure(title, "highwater", "", [sum(values) / len(values)]))
    return figures


def judged(name: str) -> list[Judged]:
    """All questions of some data, asked and judged."""
    with _postgres() as part:
        return asyncio.run(_ask_all(part.address, data(name)))


async def _ask_all(url: str, given: Data) -> list[Judged]:
    embedder = open_embedder(read_settings(environment_with_file()))
    async with await open_pool(url, size_max=4) as pool:
        await migrate(pool)
        texts = await given.load(pool, embedder)
        counted = CountedEmbedder(pool, embedder, parse_prices(""), lambda: NOW_MS)
        stages = Stages(pool, model="small", strong_model="strong", embedder=counted)
        return [judge(one, await _answer(stages, one.text), texts) for one in given.questions]


async def _answer(stages: Stages, text: str) -> str:
    run = Run(str(uuid.uuid4()), str(uuid.uuid4()), 1, text, Status.NEW, updated_ms=NOW_MS)
    for stage in (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER):
        ask = await stages.ask(captured(run, worker=1, lease_ms=1_000, now_ms=NOW_MS), stage)
        run = conclude(ask.run, stage, answered_locally(ask.call), NOW_MS).run
    return run.answer or ""


def judge(question: Question, answer: str, texts: Texts) -> Judged:
    """An answer judged."""
    cited = _CITED.findall(answer)
    if question.kind == NONE:
        return Judged(question, answer, not cited, not cited, not cited)
    right = [_answers(question.sources, one, texts) for one in cited]
    first_line = answer.partition("\n")[0]
    has_fact = re.search(question.fact, first_line) is not None
    return Judged(question, answer, any(right), right[:1] == [True], has_fact)


def _answers(sources: str, cited: str, texts: Texts) -> bool:
    """Whether a cited source is one that answers."""
    if sources.startswith("/"):
        pattern, _, channel = sources[1:].rpartition("/@") if "/@" in sources else ("", "", "")
        held = texts.get(cited)
        return held is not None and held[0] == channel and re.search(pattern, held[1]) is not None
    return cited in sources.split()


async def _load_bundled(pool: asyncpg.Pool[asyncpg.Record], embedder: Embedder) -> Texts:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as stream:
        rows: list[dict[str, Any]] = [json.loads(line) for line in stream]
    insights = [Insight(row["insight_id"], row["channel_id"], ms_from_iso(row["ts"]), row["text"]) for row in rows]
    await store_insights(pool, embedder, insights, now_ms=NOW_MS)
    for page in PAGES:
        chunks = cut(markdown_blocks((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")), count_tokens)
        titled = [Titled(one.title or "", one.content) for one in chunks]
        await store_chunks(pool, embedder, "docs", f"{page}.md", titled, now_ms=NOW_MS)
    await pool.execute("ANALYZE chunks")
    return _texts(insights)


async def _load_sentences(language: str, pool: asyncpg.Pool[asyncpg.Record], embedder: Embedder) -> Texts:
    """A sentence a day, the last one now."""
    found = enumerate(man_sentences(language).items())
    insights = [
        Insight(page, CHANNELS.get(page.rpartition(".")[2][0], "functions"), NOW_MS - day * DAY_MS, sentence)
        for day, (page, sentence) in found
    ]
    await store_insights(pool, embedder, insights, now_ms=NOW_MS)
    return _texts(insights)


def _texts(insights: Sequence[Insight]) -> Texts:
    return {one.insight_id: (one.channel_id, one.text) for one in insights}


def main() -> None:
    """The figures, or every answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=lambda names: names.split(","), default=NAMES[:1])
    parser.add_argument("--show", action="store_true", help="print every question with its answer")
    given = parser.parse_args()
    if given.show:
        for one in (found for name in given.data for found in judged(name)):
            marks = "".join(mark if good else "-" for mark, good in zip("cst", one[2:], strict=True))
            print(
                f"{marks} {one.question.kind}: {one.question.text}  ({one.question.sources}; {one.question.fact})\n{one.answer}\n"
            )
        return
    for found in run(chosen=given.data):
        print(f"{found['name']:40} {found['value']:.3f}")


if __name__ == "__main__":
    main()

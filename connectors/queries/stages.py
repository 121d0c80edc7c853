"""The four stages: what each reads, its call of the language model, and how it uses the answer.

Invariant: `ask` gathers and decides, `conclude` only decides; neither stores anything. The user data of a stage come
from runs before this one (R1.17, R1.20), regardless of later messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import asyncpg

from highwater.connectors.models.calls import ChatCall
from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.postgres.pool import Connection, reading
from highwater.connectors.queries.statements import QUERIES
from highwater.connectors.retrieval.context import ChunkContext
from highwater.connectors.retrieval.insights import SHARE_MIN, SIMILARITY_MIN, FoundInsight, InsightSearch
from highwater.connectors.retrieval.results import Result
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import HighwaterError
from highwater.streams.chunks.scoring import ANSWER_TEXT_SHARE, answer_similarity, saturation_of
from highwater.streams.clock import to_ms
from highwater.streams.messages import messages_for
from highwater.streams.models.context_windows import ContextWindows
from highwater.streams.models.wordpiece import reads_english
from highwater.streams.queries.analysis import finds_context, parse_analysis
from highwater.streams.queries.closed import not_searched, with_not_searched
from highwater.streams.queries.context import (
    DRAFT_TOKENS_MAX,
    LogLine,
    Matching,
    Memory,
    Source,
    analyzer_input,
    draft_context,
    final_payload,
    records_pointed_at,
    shorter_payload,
)
from highwater.streams.queries.local_model import local_answer
from highwater.streams.queries.memory import Summary, archivist_input, parse_summary
from highwater.streams.queries.runs import Run, finished
from highwater.streams.queries.states import Stage
from highwater.streams.queries.users import user_key
from highwater.streams.queries.words import asks_how_many, subject_words

# R1.17 and R1.20.
MEMORIES_READ, LOGS_READ = 20, 10
# Texts passed to the model besides the user's earlier messages: as many as a reader would check, some 1,000 tokens of
# commits.
SOURCES_TOLD = 12
# The passed part of a chunk: as much as of an insight.
CHUNK_CHARACTERS_MAX = 2_000
# More words than this do not describe the question better.
_WORDS_MAX = 12

# R1.24; the other stages give short, plain answers. The Assembler may fill its budget (R1.22).
_TOKENS = {Stage.ANALYZER: 1_000, Stage.ASSEMBLER: 8_000, Stage.RESPONDER: 2_000, Stage.ARCHIVIST: 1_000}
_RESPONDER_TEMPERATURE = 0.7
_ANALYZER, _ASSEMBLER, _MENTOR, _ARCHIVIST = "Analyzer", "Assembler", "Mentor", "Archivist"


class NoPromptError(HighwaterError):
    """A role of the pipeline has no active prompt. Set one: `PUT /api/prompts/{role}`."""


class Retrieved(NamedTuple):
    """The sources for a query; `matching`: how many insights have its words, if it asks for a number; `not_searched`: what is
    not open to questions.
    """

    sources: Sequence[Source]
    matching: Matching | None = None
    not_searched: str = ""


class Ask(NamedTuple):
    """A call that is ready to be made, with the run as it is to be stored before it (R1.21) and the prompts used."""

    call: ChatCall
    run: Run
    prompt_ids: tuple[int, ...]


class Prompt(NamedTuple):
    """An active prompt."""

    prompt_id: int
    text: str


class Stages:
    """The calls and conclusions of all stages."""

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        *,
        model: str,
        strong_model: str,
        embedder: CountedEmbedder | None = None,
        windows: ContextWindows | None = None,
    ) -> None:
        self._pool = pool
        self._chunks = ChunkContext(pool, embedder)
        self._insights = InsightSearch(pool)
        self._model = model
        self._strong_model = strong_model
        self._windows = windows or ContextWindows()

    async def ask(self, run: Run, stage: Stage) -> Ask:
        """Return the call of the run's current attempt.

        Raises:
            NoPromptError: a role that it needs has none (R1.11).
            UnavailableError: PostgreSQL is unavailable.
        """
        # On connections of its own, so before one is held.
        found = await self._found(run) if stage is Stage.ASSEMBLER else Retrieved([])
        async with reading(self._pool) as tx:
            if stage is Stage.ANALYZER:
                return await self._analyzer(tx, run)
            if stage is Stage.ASSEMBLER:
                return await self._assembler(tx, run, found)
            if stage is Stage.RESPONDER:
                return await self._responder(tx, run)
            return await self._archivist(tx, run)

    async def _analyzer(self, tx: Connection, run: Run) -> Ask:
        prompts = await _prompts(tx, _ANALYZER)
        room = self._room(Stage.ANALYZER, prompts[_ANALYZER])
        user = analyzer_input(run.query, await _memories(tx, run), room)
        return self._made(run, Stage.ANALYZER, prompts[_ANALYZER], user)

    async def _found(self, run: Run) -> Retrieved:
        """Return the sources for a query: insights of the user's channels, or of all without any, and chunks of open
        namespaces, of the age when the run reached this stage.
        """
        words = _words_of(run, run.analysis or {})
        if not words:
            return Retrieved([])
        async with reading(self._pool) as tx:
            channels = [row["channel_id"] for row in await tx.fetch(QUERIES["channels_of_reader"], run.user_id)] or None
        asked = self._chunks.asked(run.query, Work(run.id, user_key(run.user_id)))
        insights = await self._insights.of_query(run.query, words, asked, channels, limit=SOURCES_TOLD)
        chunks = await self._chunks.of_query(asked, words, limit=SOURCES_TOLD, as_of_ms=run.updated_ms)
        is_read = reads_english(run.query)
        sources = nearest([*map(_of_insight, insights), *(_of_chunk(chunk, is_read=is_read) for chunk in chunks)])
        matching = None
        if sources and asks_how_many(run.query):
            matching = await self._insights.count(subject_words(run.query), channels)
        closed = not_searched(await self._chunks.closed(), run.organization_id, messages_for(run.query))
        return Retrieved(sources, matching, closed)

    async def _assembler(self, tx: Connection, run: Run, found: Retrieved) -> Ask:
        """Return R1.20: the query, history, the memories that the analysis names, and the Mentor; element 4 is the
        system prompt.
        """
        prompts = await _prompts(tx, _MENTOR, _ASSEMBLER)
        analysis = run.analysis or {}
        logs = [
            LogLine(row["message_type"], row["content"], to_ms(row["created_at"]))
            for row in await tx.fetch(QUERIES["logs_before"], user_key(run.user_id), run.ordinal, LOGS_READ)
        ]
        has_pointers = analysis.get("needs_context") or finds_context(analysis)
        records = records_pointed_at(analysis, await _memories(tx, run)) if has_pointers else []
        mentor_text = prompts[_MENTOR].text
        room = self._room(Stage.ASSEMBLER, prompts[_ASSEMBLER])
        draft = draft_context(
            run.query,
            logs,
            analysis,
            records,
            found.sources,
            mentor_text,
            matching=found.matching,
            not_searched=found.not_searched,
            tokens_max=DRAFT_TOKENS_MAX if room is None else min(room, DRAFT_TOKENS_MAX),
        )
        told = replace(run, draft=draft, sources=[source._asdict() for source in found.sources])
        mentor = prompts[_MENTOR].prompt_id
        return self._made(told, Stage.ASSEMBLER, prompts[_ASSEMBLER], draft, mentor)

    async def _responder(self, tx: Connection, run: Run) -> Ask:
        prompts = await _prompts(tx, _MENTOR)
        room = self._room(Stage.RESPONDER, prompts[_MENTOR])
        payload = run.payload or ""
        if room is not None:
            payload = shorter_payload(run.query, payload, room)
        return self._made(replace(run, payload=payload), Stage.RESPONDER, prompts[_MENTOR], payload)

    async def _archivist(self, tx: Connection, run: Run) -> Ask:
        prompts = await _prompts(tx, _ARCHIVIST)
        answered = iso_from_ms(run.completed_ms or run.updated_ms)
        room = self._room(Stage.ARCHIVIST, prompts[_ARCHIVIST])
        user = archivist_input(run.query, run.answer or "", answered, room)
        return self._made(run, Stage.ARCHIVIST, prompts[_ARCHIVIST], user)

    def _model_of(self, stage: Stage) -> str:
        return self._strong_model if stage is Stage.RESPONDER else self._model

    def _room(self, stage: Stage, system: Prompt) -> int | None:
        """Return how many tokens of a message the model of a stage reads; None if that is unknown."""
        return self._windows.room(self._model_of(stage), system.text, _TOKENS[stage])

    def _made(self, run: Run, stage: Stage, system: Prompt, user: str, *more_ids: int) -> Ask:
        call = chat_call(
            stage,
            key=run.call_key(stage),
            model=self._model_of(stage),
            system=system.text,
            user=user,
        )
        return Ask(call, run, (system.prompt_id, *more_ids))


def chat_call(stage: Stage, *, key: str, model: str, system: str, user: str) -> ChatCall:
    """Return a call as its stage makes it: length, temperature and format of its answer."""
    return ChatCall(
        stage=stage,
        key=key,
        model=model,
        system=system,
        user=user,
        temperature=_RESPONDER_TEMPERATURE if stage is Stage.RESPONDER else 0.0,
        tokens_max=_TOKENS[stage],
        is_json=stage in (Stage.ANALYZER, Stage.ARCHIVIST),
    )


class Concluded(NamedTuple):
    """The result of a stage: the run after it, and the memory if it was the Archivist's."""

    run: Run
    memory: Summary | None = None


def conclude(run: Run, stage: Stage, answer: str, now_ms: int) -> Concluded:
    """Return the run after its stage.

    Raises:
        UnusableAnswerError: the answer has another format than requested.
    """
    if stage is Stage.ANALYZER:
        return Concluded(finished(run, now_ms, analysis=parse_analysis(answer)))
    if stage is Stage.ASSEMBLER:
        return Concluded(finished(run, now_ms, payload=final_payload(run.query, answer)))
    if stage is Stage.RESPONDER:
        said = with_not_searched(answer, run.draft or "", messages_for(run.query))
        return Concluded(finished(run, now_ms, answer=said))
    return Concluded(finished(run, now_ms), parse_summary(answer))


def answered_locally(call: ChatCall) -> str:
    """Return the built-in model's answer in a stage, used when no service is configured."""
    return local_answer(Stage(call.stage), call.system, call.user)


async def _prompts(tx: Connection, *roles: str) -> dict[str, Prompt]:
    rows = await tx.fetch(QUERIES["active_prompts"], list(roles))
    found = {row["role_name"]: Prompt(row["id"], row["prompt_template"]) for row in rows}
    missing = [role for role in roles if role not in found]
    if missing:
        raise NoPromptError(f"no active prompt for {' and '.join(missing)}")
    return found


async def _memories(tx: Connection, run: Run) -> list[Memory]:
    rows = await tx.fetch(QUERIES["memories_before"], user_key(run.user_id), run.ordinal, MEMORIES_READ)
    return [
        Memory(
            row["id"],
            row["time_bucket_start"].isoformat(),
            row["time_bucket_end"].isoformat(),
            tuple(row["tags"]),
            row["summary"],
        )
        for row in rows
    ]


def _words_of(run: Run, analysis: Mapping[str, Any]) -> list[str]:
    """Return the search words."""
    return list(dict.fromkeys([*analysis.get("search_keywords", ()), *subject_words(run.query)]))[:_WORDS_MAX]


def _of_insight(found: FoundInsight) -> Source:
    return Source(
        found.insight_id, found.channel_id, found.ts_ms, found.text, found.position, found.similarity, found.share
    )


def _of_chunk(result: Result, *, is_read: bool) -> Source:
    """Return a chunk as a source: its namespace serves as the channel, its key in the namespace as the id."""
    dated_ms = result.created_ms if result.published_ms is None else result.published_ms
    chunk_id = f"{result.slot}|{result.source_id}|{result.chunk_no}"
    # A text of average length with every word scores less than 1 because of its saturation.
    cosine = result.cosine or None
    share = min(1.0, (result.text_score or 0.0) * (1 + saturation_of(1.0 if cosine is None else ANSWER_TEXT_SHARE)))
    similarity = answer_similarity(cosine, share, is_read=is_read)
    return Source(
        chunk_id,
        result.ns,
        dated_ms,
        result.content[:CHUNK_CHARACTERS_MAX],
        result.position,
        round(similarity, 4),
        round(share, 4),
        result.source_id,
        result.title or "",
    )


def nearest(sources: Sequence[Source]) -> list[Source]:
    """Return the sources that are near enough to answer, the nearest first, then the newest."""
    near = [one for one in sources if one.share >= SHARE_MIN and one.similarity >= SIMILARITY_MIN]
    return sorted(near, key=lambda one: (-one.similarity, -one.ts_ms, one.insight_id))[:SOURCES_TOLD]

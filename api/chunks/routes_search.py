"""The route to search chunks.

Invariant: a search is answered with the version of its namespace, which is read before and after it: the ETag of a
version is never sent with the results of another version.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.chunks.answers import FoundChunks
from highwater.api.chunks.reranking import RERANKED_MIN, Ranking, reranked
from highwater.api.chunks.routes import INGEST_TOPICS, iso_or_none
from highwater.api.chunks.services import ChunkServices, WiredChunks
from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.errors import PaymentRequiredError, UnprocessableError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.openapi import NOT_MODIFIED, problems
from highwater.api.core.plan_limits import require_plan_allows
from highwater.api.core.resources import is_open
from highwater.api.core.services import Services, Wired
from highwater.connectors.chunks import read_model as chunk_reads
from highwater.connectors.chunks.read_model import Namespace
from highwater.connectors.models.embeddings import EmbeddingError
from highwater.connectors.models.reranker import Reranker
from highwater.connectors.redis.resource_cache import Head
from highwater.connectors.retrieval import search as chunk_search
from highwater.connectors.retrieval.results import Result, SearchResults
from highwater.connectors.retrieval.search import RESULTS_MAX, NothingToCompareError
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_text, check_time
from highwater.streams.chunks.asked_text import AskedText, asked_text
from highwater.streams.chunks.history import known_from_ms
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.passports import PASSPORT_KEYS
from highwater.streams.chunks.scoring import Mode
from highwater.streams.chunks.validation import check_embedding
from highwater.streams.clock import to_ms, to_ms_or_none
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import get_log

RATED, SWEPT = "chunks.namespace-rated", "chunks.sweep-requested"
SEARCH_TOPICS = INGEST_TOPICS | {RATED, SWEPT}
RESULTS_DEFAULT = 10
# A question of a few pages; more text does not improve a search.
QUESTION_CHARACTERS_MAX = 8_000
SOURCES_MAX = 100
# A chunk is a page: three on either side are the useful context; more is the document.
NEIGHBOURS_MAX = 3
# A search without a time uses the start of the current minute, so that polling it costs a 304: half a minute of age
# changes no score by more than a hundred-thousandth at a half-life of a month.
MINUTE_MS = 60_000
# A write during a search causes another attempt; after this many, the answer gets an ETag that is never reused.
_READS_MAX = 3
# base64 of 4,000 numbers, the limit of an index.
_VECTOR_CHARACTERS_MAX = 21_336

_log = get_log("search")

router = APIRouter(tags=["chunks"], route_class=GuardedRoute)


class SearchParameters(BaseModel):
    """The parameters of a search, except for the time."""

    model_config = ConfigDict(extra="forbid")
    ns: str
    q: Annotated[
        str,
        Field(
            max_length=QUESTION_CHARACTERS_MAX,
            description='search words or a question; `"in quotes"`: a text must have it, `NOT word`: it must not',
        ),
    ] = ""
    vector: Annotated[
        str | None,
        Field(
            max_length=_VECTOR_CHARACTERS_MAX,
            description="query vector instead of that of `q`: base64 of float32",
        ),
    ] = None
    limit: Annotated[int, Field(ge=1, le=RESULTS_MAX, description="maximum number")] = RESULTS_DEFAULT
    slot: Annotated[str | None, Field(description="only this slot")] = None
    source_id: Annotated[list[str], Field(max_length=SOURCES_MAX, description="only these sources")] = []
    mode: Annotated[
        Mode,
        Field(description="hybrid: by vectors and words; semantic: by vectors only, which finds less"),
    ] = Mode.HYBRID
    per_source: Annotated[
        int | None, Field(ge=1, le=RESULTS_MAX, description="maximum number of chunks per source")
    ] = None
    rerank: Annotated[
        bool, Field(description="hybrid mode: let the reranker count in the order of the results, if one is configured")
    ] = True
    neighbours: Annotated[
        int,
        Field(ge=0, le=NEIGHBOURS_MAX, description="number of chunks before and after each result to return with it"),
    ] = 0
    published_from: Annotated[
        str | None, Field(description="published at this time or later: ISO 8601 or ms since 1970")
    ] = None
    published_to: Annotated[str | None, Field(description="published at this time or earlier")] = None
    as_of: Annotated[
        str | None,
        Field(
            description=(
                "search as of this time, with the texts that were stored then; ages refer to it and younger chunks are not "
                "found; ISO 8601 or ms since 1970"
            )
        ),
    ] = None

    @cached_property
    def asked(self) -> AskedText:
        """Return `q` by its parts."""
        return asked_text(self.q)


@router.get(
    "/api/chunks/search",
    summary="Search a namespace; supports ETags",
    response_model=None,
    responses=answer(FoundChunks) | problems(PaymentRequiredError) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.CHUNKS, OwnedBy.NAMESPACE, limit=RateLimit.PLAN, cost=1)
async def get_search(
    request: Request,
    parameters: Annotated[SearchParameters, Query()],
    called: Called,
    services: Wired,
    chunks: WiredChunks,
) -> Response:
    """The best chunks by alpha * similarity + beta * decay(age), each with its scores, age and temperature.

    `similarity` is of vectors (`cosine`) and words (`text_score`); of words alone for a chunk that has no vector yet, of which
    there are `without_vector`.

    With `as_of`, texts that were replaced or removed since then are found as they were (`texts` is `as_of`). They are kept for
    90 days. For an earlier time, and in a namespace whose removals are hard, the current texts are searched (`texts` is `now`).

    If a reranker is configured, `rerank_score` counts beside similarity in the order of the results of hybrid searches;
    `ranking` says whether it did. `complete` and `exact` refer to the scores.

    If an embedding service is configured, the tokens of a new question count towards the usage of the caller's
    organization.
    """
    for name, value in (
        ("ns", parameters.ns),
        ("slot", parameters.slot),
        *(("source_id", one) for one in parameters.source_id),
    ):
        if value is not None:
            check_key_part(name, value)
    check_text("q", parameters.q, 4 * QUESTION_CHARACTERS_MAX)
    if parameters.q and not parameters.q.strip():
        raise UnprocessableError(
            "q is blank: omit it to list the youngest chunks", field="q", reason="nothing_to_compare"
        )
    vector = None if parameters.vector is None else _vector(parameters.vector)
    as_of_ms = (
        services.clock() // MINUTE_MS * MINUTE_MS if parameters.as_of is None else _moment("as_of", parameters.as_of)
    )
    _window(parameters, as_of_ms)  # refused before anything is read
    await services.fresh(request, SEARCH_TOPICS)
    pool = services.database.require()
    found = await chunk_reads.namespace(pool, parameters.ns)
    called.readable_namespace(parameters.ns, is_open=is_open(services.passports, parameters.ns, found.row))
    if found.row is not None:
        chunks.served.note(parameters.ns)
    head = _search_head(services, chunks, found, parameters, as_of_ms)
    if conditional.is_match(conditional.condition(request), head.etag):
        return conditional.not_modified("chunk_search", head)
    payload, payer = b"", called.principal.organization_id
    for _ in range(_READS_MAX):
        document = await _searched(services, chunks, found, parameters, vector, as_of_ms, payer)
        payload = orjson.dumps(document)
        now = await chunk_reads.namespace(pool, parameters.ns)
        if _search_head(services, chunks, now, parameters, as_of_ms).etag == head.etag:
            if document["ranking"] == Ranking.RERANKER_UNAVAILABLE:
                break  # the next search may get another order
            return conditional.answer(request, "chunk_search", head, payload)
        found, head = now, _search_head(services, chunks, now, parameters, as_of_ms)
    mixed = Head(head.version, conditional.tag_of(head.etag, payload), head.caused_by, head.checked_ms)
    return conditional.answer(request, "chunk_search", mixed, payload)


def _search_head(
    services: Services, chunks: ChunkServices, found: Namespace, parameters: SearchParameters, as_of_ms: int
) -> Head:
    """Return the version and ETag of an answer: from the namespace, its passport and all parameters."""
    of_row = None if found.row is None else {name: found.row[name] for name in (*PASSPORT_KEYS, "is_hot")}
    said = [parameters.model_dump(exclude={"as_of"}), parameters.as_of is not None]
    texts_of_ms = _texts_of(services, found, parameters, as_of_ms)
    reranker = _reranker(chunks, parameters)
    basis = [found.etag, said, as_of_ms, texts_of_ms, of_row, chunks.query_vectors.model, reranker and reranker.name]
    digest = sha256(orjson.dumps(basis)).hexdigest()[:16]
    return Head(found.version, f"chunks-{found.version}-{digest}", found.caused_by, services.clock())


def _reranker(chunks: ChunkServices, parameters: SearchParameters) -> Reranker | None:
    """Return the reranker of this search, if there is one."""
    return chunks.reranker if parameters.rerank and parameters.asked.text and parameters.mode is Mode.HYBRID else None


def _texts_of(services: Services, found: Namespace, parameters: SearchParameters, as_of_ms: int) -> int | None:
    """Return the time whose texts are searched; None: the current ones."""
    if parameters.as_of is None or found.row is None:
        return None
    row = found.row
    since_ms = to_ms_or_none(row["history_since"])
    known_ms = known_from_ms(row["removal"], to_ms(row["created_at"]), since_ms, services.clock())
    return None if known_ms is None or as_of_ms < known_ms else as_of_ms


async def _searched(
    services: Services,
    chunks: ChunkServices,
    found: Namespace,
    parameters: SearchParameters,
    vector: bytes | None,
    as_of_ms: int,
    payer: str | None,
) -> dict[str, Any]:
    results: Sequence[Result] = ()
    is_complete, is_exact, compared_by, cold_hidden, without_vector = True, True, None, 0, 0
    texts_of_ms = _texts_of(services, found, parameters, as_of_ms)
    asked = parameters.asked
    reranker, ranking = _reranker(chunks, parameters), Ranking.SCORES
    if found.row is not None:
        vector, compared_by = await _compared(services, chunks, found, asked.text, vector, payer)
        answer = await _search(
            services.database.require(),
            found.row,
            q_vector=vector,
            words=asked,
            limit=parameters.limit if reranker is None else max(parameters.limit, RERANKED_MIN),
            slot=parameters.slot,
            source_ids=parameters.source_id or None,
            as_of_ms=as_of_ms,
            **_window(parameters, as_of_ms),
            mode=parameters.mode,
            per_source=parameters.per_source,
            neighbours=parameters.neighbours,
            texts_of_ms=texts_of_ms,
        )
        results, is_complete, is_exact = answer.results, answer.is_complete, answer.is_exact
        cold_hidden, without_vector = answer.cold_hidden, answer.without_vector
        if reranker is not None:
            results, ranking = await reranked(reranker, asked.text, results, found.row)
            results = results[: parameters.limit]
    return {
        "ns": parameters.ns,
        "as_of": iso_from_ms(as_of_ms),
        "texts": "now" if texts_of_ms is None else "as_of",
        "mode": parameters.mode,
        "compared_by": compared_by,
        "ranking": ranking,
        "complete": is_complete,
        "exact": is_exact,
        "cold_hidden": cold_hidden,
        "without_vector": without_vector,
        "required": asked.required,
        "excluded": asked.excluded,
        "results": [{**result_document(one), **(_beside(one) if parameters.neighbours else {})} for one in results],
    }


async def _search(*given: Any, **asked: Any) -> SearchResults:
    """Run a search; 422 if nothing can be compared: an order by age alone would not answer the question."""
    try:
        return await chunk_search.search(*given, **asked)
    except NothingToCompareError as error:
        raise UnprocessableError(str(error), field="q", reason="nothing_to_compare") from error


def _window(parameters: SearchParameters, as_of_ms: int) -> dict[str, int | None]:
    """Return the publication times that results must lie between.

    Without a requested time the upper end is the start of the current minute, and newer chunks are found as well.
    """
    bounds = [
        as_of_ms if parameters.as_of is not None else None,
        None if parameters.published_to is None else _moment("published_to", parameters.published_to),
    ]
    return {
        "newest_ms": min((bound for bound in bounds if bound is not None), default=None),
        "oldest_ms": None
        if parameters.published_from is None
        else _moment("published_from", parameters.published_from),
    }


def _beside(one: Result) -> dict[str, list[dict[str, Any]]]:
    """Return the chunks beside a result."""
    return {
        "before": [neighbour._asdict() for neighbour in one.before],
        "after": [neighbour._asdict() for neighbour in one.after],
    }


def result_document(one: Result) -> dict[str, Any]:
    """Return a result as it is served. `final` is alpha * similarity + beta * decay."""
    return {
        "ns": one.ns,
        "slot": one.slot,
        "source_id": one.source_id,
        "chunk_no": one.chunk_no,
        "title": one.title,
        "url": one.url,
        "content": one.content,
        "published_at": iso_or_none(one.published_ms),
        "created_at": iso_from_ms(one.created_ms),
        "updated_at": iso_from_ms(one.updated_ms),
        "similarity": one.similarity,
        "cosine": one.cosine,
        "text_score": one.text_score,
        "decay": one.decay,
        "age_days": one.age_days,
        "temperature": one.temperature,
        "final": one.final,
        "stale": one.is_stale,
        "position": one.position,
        "valid_until": iso_or_none(one.valid_until_ms),
        "rerank_score": one.rerank_score,
    }


async def _compared(
    services: Services,
    chunks: ChunkServices,
    found: Namespace,
    question: str,
    vector: bytes | None,
    payer: str | None,
) -> tuple[bytes | None, str | None]:
    """Return the vector that chunks are compared with, and its source: a model, or the request; `words` if there can be
    none.

    Neither without a question: then the newest chunks are listed.
    """
    dimensions, model = found.row["dimensions"], found.row["embedding_model"]
    by_words = "words" if question else None
    if vector is not None:
        if dimensions is None:
            if not question:
                raise UnprocessableError(f"no chunk of {found.ns!r} has a vector to compare with", field="vector")
            return None, by_words
        if len(vector) != 4 * dimensions:
            raise UnprocessableError(
                f"vector has {len(vector) // 4} numbers; those of {found.ns!r} have {dimensions}", field="vector"
            )
        return (vector, "sent") if np.frombuffer(vector, "<f4").any() else (vector, by_words)
    if not question or not chunks.query_vectors.makes(model):
        return None, by_words
    if payer is not None and chunks.query_vectors.is_paid(model, question):
        await require_plan_allows(services, payer, is_query=True)
    try:
        made = await chunks.query_vectors.of(model, question, payer)
    except EmbeddingError as error:  # a damaged model, or a service with other vectors: words find most results
        _log.warning("searched_by_words_alone", reason=str(error)[:300])
        return None, by_words
    is_comparable = len(made) == 4 * (dimensions or 0) and np.frombuffer(made, "<f4").any()
    return (made, model) if is_comparable else (None, by_words)


def _vector(text: str) -> bytes:
    try:
        found = text.translate(_URL_SAFE).rstrip("=")
        value = base64.b64decode(found + "=" * (-len(found) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnprocessableError(f"vector is not base64: {error}", field="vector", reason="wrong_type") from error
    check_embedding("vector", value)
    return value


# Both alphabets of base64 are accepted; an unencoded + of a query has become a space.
_URL_SAFE = str.maketrans("-_ ", "+/+")


def _moment(field: str, text: str) -> int:
    """Parse a time as milliseconds.

    Raises:
        InvalidEventError: it is not a time.
    """
    try:
        moment = int(text) if text.lstrip("-").isdecimal() else ms_from_iso(text)
    except (ValueError, OverflowError) as error:
        raise InvalidEventError("not_a_time", f"{field} is neither ISO 8601 nor milliseconds", field=field) from error
    check_time(field, moment)
    return moment

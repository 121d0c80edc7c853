"""Chunks over HTTP on real parts: ingests, their status, searches, lifecycles, counts of searches, and authorization."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import struct
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import httpx2
import numpy as np
import orjson
import pytest

from highwater.connectors.identity.sink_tokens import TokensSink
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.connectors.models.embeddings import BuiltInEmbedder
from highwater.connectors.models.local_model import MINILM, LocalEmbedder
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.retrieval import search as chunk_search
from highwater.schemas.jobs import TOKENS_USED, USAGE_RECORDED, TokensUsed
from highwater.schemas.positions import parse_position
from highwater.streams.chunks.passports import PASSPORT_KEYS, load_passports
from highwater.streams.chunks.scoring import TEXT_SHARE
from highwater.streams.chunks.temperature import temperature
from highwater.streams.feeds.basis import UNFITTED_ID
from highwater.streams.settings import read_settings
from tests.integration.api_server import NOW, Api, eventually, running_api
from tests.integration.chunks.making import FINISHED, SUBMITTED, bump, store_chunk, store_ingest, store_namespace
from tests.integration.connecting import event, fresh, in_outbox, in_transaction, surroundings
from tests.integration.identity.making import organization
from tests.integration.jobs.watching import ADA
from tests.integration.json_service import JsonService
from tests.integration.records import ends, record_at, records

SERVED = "chunks.queries-served"
KEYS = f"admin:root-key,viewer:eye-key,editor:ed-key,viewer:ada-key:{ADA}"
INGEST, SEARCH, LIFECYCLE = "/api/chunks/ingest", "/api/chunks/search", "/api/chunks/lifecycle"
SOURCE = {"ns": "docs", "slot": "main", "source_id": "readme"}
BODY = {**SOURCE, "chunks": [{"chunk_no": 0, "content": "first"}, {"chunk_no": 1, "content": "second"}]}


@pytest.fixture
async def own_around(stack, seeds) -> AsyncIterator[ProcessContext]:
    """The shared resources of a sink, on this module's database."""
    async with surroundings(stack) as made, await open_pool(seeds.url) as pool:
        yield ProcessContext(pool, made.client, made.admin, made.registry, made.codec, made.clock)


@pytest.fixture
def ns() -> str:
    """A namespace that no other test uses."""
    return f"ns-{uuid.uuid4().hex[:8]}"


async def post(api: Api, body: Any, token: str | None = None) -> httpx2.Response:
    """POST /api/chunks/ingest."""
    return await api.post(INGEST, body, token)


# -- ingesting ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.25")
async def test_chunks_are_taken_down_as_events(stack, api, codec):
    """202 with an id; the answer has the last position of each partition, and the end has the number of sent chunks."""
    window = {"source": "github", "page_from": 1, "page_to": 3, "cursor": None, "limit": 100, "truncated": False}
    chunk = {"chunk_no": 0, "content": "first", "title": "T", "url": "https://example.org", "embedding": [1.0, 0.5]}
    body = {
        **BODY,
        "full": True,
        "window": window,
        "chunks": [{**chunk, "published_at": "2026-01-01T00:00:00Z"}, BODY["chunks"][1]],
    }
    answer = await post(api, body)
    assert answer.status_code == 202, answer.text
    first, second = answer.json()["positions"]
    record = record_at(stack, first)
    assert record.key() == b"docs|main|readme"
    whole = {**SOURCE, "ingest_id": answer.json()["ingest_id"]}
    empty = {"title": None, "url": None, "embedding": None, "published_at": None, "lasts": False, "opens": False}
    assert codec.decode(SUBMITTED, record.value()) == {**whole, **empty, "chunk_no": 1, "content": "second"}
    topic, partition, offset = parse_position(first)
    before = codec.decode(SUBMITTED, record_at(stack, f"{topic}/{partition}/{offset - 1}").value())
    assert before == {
        **whole, "chunk_no": 0, "content": "first", "title": "T", "url": "https://example.org",
        "embedding": struct.pack("<2f", 1.0, 0.5), "published_at": 1_767_225_600_000, "lasts": False, "opens": False,
    }  # fmt: skip
    end = codec.decode(FINISHED, record_at(stack, second).value())
    assert end.pop("ts") == pytest.approx(api.clock(), abs=60_000)
    assert orjson.loads(end.pop("window")) == window
    assert end == {**whole, "full": True, "expected_count": 2, "truncated": False, "force": False}


async def test_a_source_in_several_requests(stack, api, codec):
    """Only the last one says that it is finished, and how many there are; a window that is cut off means truncated."""
    first = await post(api, {**BODY, "ingest_id": "mine", "finish": False, "full": True})
    assert (first.status_code, first.json()["ingest_id"], len(first.json()["positions"])) == (202, "mine", 1)
    last = {**SOURCE, "ingest_id": "mine", "full": True, "expected_count": 2, "window": {"truncated": True}}
    second = await post(api, last)
    end = codec.decode(FINISHED, record_at(stack, second.json()["positions"][0]).value())
    assert (end["expected_count"], end["full"], end["truncated"], end["ingest_id"]) == (2, True, True, "mine")
    nothing = await post(api, {**SOURCE, "finish": False})
    assert (nothing.status_code, nothing.json()["field"]) == (422, "chunks")


async def test_the_same_chunk_twice_counts_once(stack, api, codec):
    """The expected number is that of distinct chunks."""
    answer = await post(api, {**BODY, "chunks": [BODY["chunks"][0]] * 3})
    end = codec.decode(FINISHED, record_at(stack, answer.json()["positions"][1]).value())
    assert end["expected_count"] == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ns": "a|b"}, "ns"),
        ({"ns": None}, "ns"),
        ({"slot": " "}, "slot"),
        ({"source_id": "a\x00"}, "source_id"),
        ({"source_id": "s" * 513}, "source_id"),
        ({"ingest_id": ""}, "ingest_id"),
        ({"full": "yes"}, "full"),
        ({"color": "red"}, "color"),
        ({"expected_count": -1}, "expected_count"),
        ({"expected_count": 2**60}, "expected_count"),
        ({"window": []}, "window"),
        ({"window": {"cursor": "\x00"}}, "window"),
        ({"window": {"cursor": 2**80}}, "window"),
        ({"chunks": {}}, "chunks"),
        ({"chunks": ["a"]}, "chunks.0"),
        ({"chunks": [BODY["chunks"][0], {"chunk_no": 1}]}, "chunks.1.content"),
        ({"chunks": [{"content": "a"}]}, "chunks.0.chunk_no"),
        ({"chunks": [{"chunk_no": True, "content": "a"}]}, "chunks.0.chunk_no"),
        ({"chunks": [{"chunk_no": 2**63, "content": "a"}]}, "chunks.0.chunk_no"),
        ({"chunks": [{"chunk_no": 0, "content": 5}]}, "chunks.0.content"),
        ({"chunks": [{"chunk_no": 0, "content": ""}]}, "chunks.0.content"),
        ({"chunks": [BODY["chunks"][0], {"chunk_no": 1, "content": " \n\u200b"}]}, "chunks.1.content"),
        ({"chunks": [{"chunk_no": 0, "content": "a", "ns": "other"}]}, "chunks.0.ns"),
        ({"chunks": [{"chunk_no": 0, "content": "a", "size": 3}]}, "chunks.0.size"),
        ({"chunks": [{"chunk_no": 0, "content": "a", "embedding": ["a"]}]}, "chunks.0.embedding"),
        ({"chunks": [{"chunk_no": 0, "content": "a", "embedding": "not base64"}]}, "chunks.0.embedding"),
        ({"chunks": [{"chunk_no": 0, "content": "a", "published_at": "soon"}]}, "chunks.0.published_at"),
        ({"chunks": [{"chunk_no": 0, "content": "a" * (8 << 20)}]}, "chunks.0.content"),
        ({"chunks": [BODY["chunks"][0]] * 10_001}, "chunks"),
    ],
)
async def test_what_no_event_can_carry_is_refused(stack, api, change, field):
    """422 that names the field, and the chunk; nothing of the request is taken."""
    before = ends(stack, SUBMITTED)
    answer = await post(api, {**BODY, **change})
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    if field.startswith("chunks.") and field != "chunks.0":
        assert answer.json()["index"] == int(field.split(".")[1])
    assert ends(stack, SUBMITTED) == before


async def test_half_a_character_is_refused(api):
    """A lone surrogate has no UTF-8; in the window neither."""
    for body, field in (
        ({"chunks": [{"chunk_no": 0, "content": "\ud800"}]}, "chunks.0.content"),
        ({"window": {"a": "\ud800"}}, "window"),
    ):
        content = json.dumps({**BODY, **body}).encode()
        async with api.client() as client:
            answer = await client.post(INGEST, content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["field"]) == (422, field)


@pytest.mark.parametrize(
    "chunk",
    [
        {"chunk_no": -1},
        {"content": "a\x00"},
        {"content": "a" * ((1 << 20) + 1)},
        {"embedding": base64.b64encode(b"abc").decode()},
        {"embedding": [1e39]},
        {"published_at": 2**60},
    ],
)
async def test_a_bad_chunk_is_left_to_the_sink(stack, api, codec, chunk):
    """Any chunk that the schema permits is accepted, so that it is counted and named with the others."""
    sent = {"chunk_no": 0, "content": "a", **chunk}
    answer = await post(api, {**BODY, "chunks": [sent]})
    assert answer.status_code == 202, answer.text
    event = codec.decode(SUBMITTED, record_at(stack, answer.json()["positions"][0]).value())
    assert (event["chunk_no"], event["content"]) == (sent["chunk_no"], sent["content"])


# -- status -----------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.25")
async def test_an_ingest_as_it_is_served(api, seeds):
    """Counters over its sources, the window, each source, refused chunks; conditional."""
    ingest_id = str(uuid.uuid4())
    done = {"status": "complete", "decided_at": NOW, "is_full": True, "expected": 4, "revision": 2}
    window = '{"source": "github", "page_to": 3}'
    await store_ingest(seeds, ingest_id, "a", **done, inserted=3, unchanged=1, orphaned=2, pagination=window)
    await store_ingest(
        seeds, ingest_id, "b", failures=1, updated=5, updated_at=NOW + timedelta(seconds=1), position=f"{SUBMITTED}/3/9"
    )
    refused = {
        "ingest_id": ingest_id,
        "ns": "docs",
        "slot": "main",
        "source_id": "b",
        "chunk_no": -1,
        "content_hash": "h",
    }
    await seeds.insert(
        "chunk_failures",
        **refused,
        reason="bad_number",
        detail="it is -1",
        position=f"{SUBMITTED}/3/8",
        failed_at=NOW,
    )
    answer = await api.get(f"{INGEST}/{ingest_id}")
    document = answer.json()
    assert [one.pop("source_id") for one in document["sources"]] == ["a", "b"]
    assert document.pop("sources")[0] == {
        "ns": "docs", "slot": "main", "status": "complete", "reason": None, "full": True, "force": False, "truncated": False,
        "expected_count": 4, "inserted": 3, "updated": 0, "unchanged": 1, "failures": 0, "orphaned": 2,
        "window": {"source": "github", "page_to": 3}, "created_at": "2026-11-20T12:00:00Z", "updated_at": "2026-11-20T12:00:00Z",
        "finished_at": "2026-11-20T12:00:00Z", "position": f"{SUBMITTED}/0/7",
    }  # fmt: skip
    assert document == {
        "ingest_id": ingest_id, "status": "running", "reason": None,
        "received": 10, "inserted": 3, "updated": 5, "unchanged": 1, "failures": 1,
        "orphaned": 2, "window": {"source": "github", "page_to": 3}, "created_at": "2026-11-20T12:00:00Z",
        "updated_at": "2026-11-20T12:00:01Z", "finished_at": None, "sources_total": 2, "sources_done": 1,
        "statuses": {"complete": 1, "running": 1}, "next_cursor": None,
        "failed": [{
            "ns": "docs", "slot": "main", "source_id": "b", "chunk_no": -1, "reason": "bad_number", "detail": "it is -1",
            "position": f"{SUBMITTED}/3/8", "failed_at": "2026-11-20T12:00:00Z",
        }],
    }  # fmt: skip
    assert answer.headers["x-caused-by"] == f"{SUBMITTED}/3/9"
    same = await api.get(f"{INGEST}/{ingest_id}", If_None_Match=answer.headers["etag"])
    assert (same.status_code, same.content) == (304, b"")
    await seeds.run(
        "UPDATE chunk_ingests SET status = 'failed', decided_at = $2 WHERE ingest_id = $1 AND source_id = 'b'",
        ingest_id,
        NOW,
    )
    after = await api.get(f"{INGEST}/{ingest_id}", If_None_Match=answer.headers["etag"])
    refused = "1 of 6 chunks were refused; `failed` names the first of them"
    assert after.json()["reason"] == f"1 of 2 sources, first docs / main / b: {refused}"
    assert [one["reason"] for one in after.json()["sources"]] == [None, refused]
    assert (after.status_code, after.json()["status"], after.json()["finished_at"]) == (
        200,
        "failed",
        "2026-11-20T12:00:00Z",
    )
    assert int(after.headers["x-resource-version"]) > int(answer.headers["x-resource-version"])


async def test_an_accepted_ingest_is_running_before_it_is_stored(api, guarded, ns):
    """Of its chunks and of its end, to those who may read its namespace."""
    for body in ({**BODY, "finish": False}, {**SOURCE, "ns": ns}):
        ingest_id = (await post(api, body)).json()["ingest_id"]
        shown = (await api.get(f"{INGEST}/{ingest_id}")).json()
        assert (shown["status"], shown["received"], shown["sources"]) == ("running", 0, [])
        ada = await guarded.get(f"{INGEST}/{ingest_id}", "ada-key")
        assert ada.status_code == (200 if body["ns"] == "docs" else 404)


async def test_sources_come_in_pages(api, seeds):
    """Each once, in order, with the counters of all; a cursor of another list is refused."""
    ingest_id = str(uuid.uuid4())
    for number in range(5):
        await store_ingest(seeds, ingest_id, f"s{number}", inserted=1)
    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.get(f"{INGEST}/{ingest_id}", params=params)).json()
        assert (page["inserted"], page["sources_total"]) == (5, 5)
        seen += [one["source_id"] for one in page["sources"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"s{number}" for number in range(5)]
    for bad in (
        "x",
        base64.urlsafe_b64encode(b'["a","b"]').decode(),
        base64.urlsafe_b64encode(b'["a","b\\u0000","c"]').decode(),
    ):
        assert (await api.get(f"{INGEST}/{ingest_id}", params={"cursor": bad})).status_code == 400


async def test_a_read_waits_for_its_position(api, seeds):
    """503 until the sink has been there, and then never 404; what does not feed it is refused."""
    taken = (await post(api, BODY)).json()
    path, positions = f"{INGEST}/{taken['ingest_id']}", ",".join(taken["positions"])
    assert (await api.get(path, X_Min_Position=positions, X_Max_Wait_Ms="50")).status_code == 503
    reading = asyncio.create_task(api.get(path, X_Min_Position=positions))
    await store_ingest(seeds, taken["ingest_id"], "readme")
    for position in taken["positions"]:
        await seeds.account_for(position)
    assert (await reading).status_code == 200
    assert (await api.get(path, X_Min_Position="jobs.job-submitted/0/0")).status_code == 400
    assert (await api.get(f"{INGEST}/a%00")).status_code == 422


# -- searching --------------------------------------------------------------------------------------------------------------


def vector_text(vector: bytes) -> str:
    """A vector as PostgreSQL reads it."""
    return "[" + ",".join(str(number) for number in np.frombuffer(vector, "<f4")) + "]"


async def test_a_question_is_embedded_as_the_chunks_were(api, seeds, ns):
    """It is compared with vectors of the same model or of its former version; with those of another it is not."""
    embedder = BuiltInEmbedder()
    contents = ["the broker rebalances partitions", "apples and pears", "a consumer of partitions rebalances"]
    await store_namespace(seeds, ns, dimensions=384, embedding_model=embedder.basis_id)
    for number, vector in enumerate(await embedder.embed(contents)):
        await store_chunk(
            seeds, ns, number, content=contents[number], embedding=vector_text(vector), title="T", url="u"
        )
    await bump(seeds, ns)
    params = {"ns": ns, "q": contents[0], "as_of": "2026-11-20T12:00:00Z"}
    answer = await api.get(SEARCH, params=params)
    document = answer.json()
    assert [one["chunk_no"] for one in document["results"]] == [0, 2, 1]
    first = document["results"][0]
    assert (first["cosine"], first["decay"], first["age_days"]) == (pytest.approx(1, abs=1e-5), 1.0, 0.0)
    assert first["similarity"] == pytest.approx((1 - TEXT_SHARE) * first["cosine"] + TEXT_SHARE * first["text_score"])
    assert first["final"] == 0.8 * first["similarity"] + 0.2 * first["decay"]
    assert {name: first[name] for name in ("ns", "slot", "source_id", "content", "title", "url", "temperature", "stale")} == {
        "ns": ns, "slot": "main", "source_id": "readme", "content": contents[0], "title": "T", "url": "u", "temperature": "warm",
        "stale": False,
    }  # fmt: skip
    assert (first["position"], first["created_at"], first["published_at"]) == (
        f"{SUBMITTED}/0/0",
        "2026-11-20T12:00:00Z",
        None,
    )
    assert (document["compared_by"], document["complete"], document["exact"]) == (embedder.basis_id, True, True)
    former = UNFITTED_ID  # for texts without marks it gives the same vectors
    await seeds.run("UPDATE chunk_namespaces SET embedding_model = $2 WHERE ns = $1", ns, former)
    older = (await api.get(SEARCH, params=params)).json()
    assert (older["compared_by"], older["results"][0]["cosine"]) == (former, pytest.approx(1, abs=1e-5))
    await seeds.run("UPDATE chunk_namespaces SET embedding_model = 'another@384' WHERE ns = $1", ns)
    other = (await api.get(SEARCH, params=params)).json()
    assert (other["compared_by"], {one["cosine"] for one in other["results"]}) == ("words", {None})
    assert [one["chunk_no"] for one in other["results"]] == [0, 2, 1]
    assert (await api.get(SEARCH, params={**params, "q": "of the"})).json()["reason"] == "nothing_to_compare"
    vector = base64.urlsafe_b64encode((await embedder.embed(contents[1:2]))[0]).rstrip(b"=").decode()
    own = (await api.get(SEARCH, params={**params, "vector": vector})).json()
    assert (own["compared_by"], own["results"][0]["chunk_no"]) == ("sent", 1)


async def test_a_question_has_the_model_of_the_namespace(own_settings, seeds, ns, tmp_path):
    """With the local model a namespace of its vectors finds what means the same in other words; one of built-in
    vectors is compared by those. Of a damaged model words are left.
    """
    local, older = LocalEmbedder(read_settings({}).model_dir), BuiltInEmbedder()
    contents = ["the suite was repaired by Anna", "apples and pears", "partitions of a topic"]
    for name, embedder in ((ns, local), (f"{ns}-older", older)):
        await store_namespace(seeds, name, dimensions=384, embedding_model=embedder.basis_id)
        for number, vector in enumerate(await embedder.embed(contents)):
            await store_chunk(seeds, name, number, content=contents[number], embedding=vector_text(vector))
        await bump(seeds, name)
    question = "who fixed the broken tests"
    with running_api(own_settings(HIGHWATER_EMBEDDER="local")) as here:
        for name, embedder in ((ns, local), (f"{ns}-older", older)):
            answer = (await here.get(SEARCH, params={"ns": name, "q": question})).json()
            assert answer["compared_by"] == embedder.basis_id
            wanted = np.frombuffer(b"".join(await embedder.embed([question, *contents])), "<f4").reshape(-1, 384)
            expected = dict(enumerate(wanted[1:] @ wanted[0]))
            found = {one["chunk_no"]: one["cosine"] for one in answer["results"]}
            assert found == {number: pytest.approx(expected[number], abs=1e-5) for number in found}
            if embedder is local:
                assert answer["results"][0]["chunk_no"] == 0
    damaged = tmp_path / "models"
    shutil.copytree(read_settings({}).model_dir, damaged)
    (damaged / f"{MINILM.name}-tokenizer.json").write_bytes(b"{}")
    with running_api(own_settings(HIGHWATER_EMBEDDER="local", HIGHWATER_MODEL_DIR=damaged)) as here:
        answer = (await here.get(SEARCH, params={"ns": ns, "q": "repaired suite"})).json()
        assert (answer["compared_by"], answer["results"][0]["chunk_no"]) == ("words", 0)


async def test_what_a_search_has_embedded_is_paid_by_its_organization(
    own_settings, stack, redis_url, seeds, own_around, codec, ns, tmp_path
):
    """An event a question, counted once in the ledger that `/usage` and limits read, however often it is delivered; beyond the
    limit only what costs nothing is answered.
    """
    asking = fresh("asking")
    await organization(redis_url, seeds, asking, "free", "active")
    keys = f"admin:root-key,viewer:asks-key:{ADA}:{asking}"
    passports = tmp_path / "namespaces.toml"
    passports.write_text(f"[namespaces.{ns}]\nis_open = true\n")
    with Embeddings(tokens=99_999) as service:
        settings = own_settings(
            HIGHWATER_API_KEYS=keys, EMBEDDINGS_BASE_URL=service.url, EMBEDDINGS_MODEL="m", HIGHWATER_EMBEDDING_DIMENSIONS="2",
            HIGHWATER_LLM_PRICES="m=1/0", HIGHWATER_NAMESPACES=str(passports),
        )  # fmt: skip
        await store_namespace(seeds, ns, dimensions=2, embedding_model="m@2", is_open=True)
        await store_chunk(seeds, ns, 0, content="apples and pears", embedding="[1,0]")
        with running_api(settings) as paid:

            async def search(question: str, token: str = "asks-key") -> httpx2.Response:
                return await paid.get(SEARCH, token, params={"ns": ns, "q": question})

            answers = [await search(question) for question in ("apples", "apples", "pears")]
            assert [answer.json()["compared_by"] for answer in answers] == ["m@2"] * 3
            assert (await search("figs", "root-key")).status_code == 200  # the operator's, not counted
            uses: list[Event[TokensUsed]] = []

            async def are_published() -> bool:
                found = await asyncio.to_thread(records, stack, TOKENS_USED, lambda key: key == asking)
                uses[:] = [
                    event(TOKENS_USED, codec.decode(TOKENS_USED, one.value()), offset=one.offset()) for one in found
                ]
                return len(uses) == 2

            await eventually(are_published, "the events of the two questions")
            assert (
                await seeds.run("SELECT FROM usage_entries WHERE organization_id = $1", asking) == []
            )  # an event first
            sink = TokensSink(own_around)
            for batch in ([*uses, *uses], uses):  # again within a batch, and delivered again
                assert await in_transaction(own_around, sink, batch) == []
            used = (await paid.get(f"/api/organizations/{asking}/usage", "root-key")).json()
            assert (used["tokens"], used["cost_cents"], service.texts) == (2 * 99_999, 20, ["apples", "pears", "figs"])
            refused = await search("nuts")
            assert (refused.status_code, refused.json()["limit"]) == (402, "ai_tokens_per_month")
            assert (await search("apples")).status_code == 200
    entries = await seeds.run("SELECT seq, tokens FROM usage_entries WHERE organization_id = $1 ORDER BY seq", asking)
    told = await in_outbox(own_around, USAGE_RECORDED, asking)
    assert ([tuple(row) for row in entries], [one["seq"] for one in told]) == ([(1, 99_999), (2, 99_999)], [1, 2])


class Embeddings(JsonService):
    """A service of embeddings that reports the number of tokens read; `texts`: the requested texts, in order."""

    def __init__(self, tokens: int) -> None:
        super().__init__("/v1")
        self._tokens = tokens

    @property
    def texts(self) -> list[str]:
        """The texts of all calls."""
        return [text for _, _, body in self.asked for text in body["input"]]

    def answer(self, body: dict[str, Any]) -> Any:
        """A vector for each text."""
        data = [{"object": "embedding", "index": n, "embedding": [1.0, 0.0]} for n in range(len(body["input"]))]
        usage = {"prompt_tokens": self._tokens, "total_tokens": self._tokens}
        return {"object": "list", "model": "m", "data": data, "usage": usage}


async def test_a_vector_that_nothing_has_is_refused(api, seeds, ns):
    """422 if no chunk has a vector; if the query has words they decide, and chunks hidden by age are counted."""
    await store_namespace(seeds, ns)
    await store_chunk(seeds, ns, 0, content="apples and pears")
    await store_chunk(seeds, ns, 1, content="the outbox", created_at=NOW - timedelta(days=60))
    await store_chunk(seeds, ns, 2, content="the outbox", created_at=NOW - timedelta(days=400))
    vector = base64.urlsafe_b64encode(struct.pack("<2f", 1, 2)).decode()
    params = {"ns": ns, "vector": vector, "as_of": "2026-11-20T12:00:00Z"}
    refused = await api.get(SEARCH, params=params)
    assert (refused.status_code, refused.json()["field"]) == (422, "vector")
    found = (await api.get(SEARCH, params={**params, "q": "outbox"})).json()
    assert (found["compared_by"], [one["chunk_no"] for one in found["results"]]) == ("words", [1, 0])
    assert found["cold_hidden"] == 1


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"ns": None}, "ns"),
        ({"ns": "a|b"}, "ns"),
        ({"slot": ""}, "slot"),
        ({"source_id": ["a", "b|c"]}, "source_id"),
        ({"q": "a\x00b"}, "q"),
        ({"q": "q" * 8_001}, "q"),
        ({"q": " \u2003\n"}, "q"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"mode": "magic"}, "mode"),
        ({"as_of": "soon"}, "as_of"),
        ({"as_of": str(2**60)}, "as_of"),
        ({"published_from": "soon"}, "published_from"),
        ({"published_to": str(2**60)}, "published_to"),
        ({"per_source": 0}, "per_source"),
        ({"neighbours": 4}, "neighbours"),
        ({"vector": "!"}, "vector"),
        ({"vector": base64.b64encode(b"abc").decode()}, "vector"),
        ({"vector": base64.b64encode(struct.pack("<2f", 1, 2)).decode()}, "vector"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_no_search_is_refused(api, seeds, params, field):
    """422 that names the parameter."""
    await seeds.run("DELETE FROM chunk_namespaces WHERE ns = 'three'")
    await store_namespace(seeds, "three", dimensions=3)
    asked = {name: value for name, value in {"ns": "three", "q": "a", **params}.items() if value is not None}
    answer = await api.get(SEARCH, params=asked)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


@pytest.mark.requirement("R3.25")
async def test_a_search_is_conditional(api, seeds, ns):
    """304 while the namespace, its passport and the query are unchanged; the version is the namespace's."""
    await store_namespace(seeds, ns)
    await store_chunk(seeds, ns, 0)
    await bump(seeds, ns)
    params = {"ns": ns, "q": "chunk", "as_of": "2026-12-01T00:00:00Z"}
    first = await api.get(SEARCH, params=params)
    tag, version = first.headers["etag"], int(first.headers["x-resource-version"])
    assert (first.headers["x-caused-by"], first.headers["cache-control"]) == (f"{SUBMITTED}/0/1", "private, no-cache")
    same = await api.get(SEARCH, params=params, If_None_Match=tag)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    for other in (
        {"q": "else"},
        {"limit": 3},
        {"mode": "semantic"},
        {"slot": "x"},
        {"source_id": "x"},
        {"as_of": "1"},
        {"neighbours": 1},
    ):
        assert (await api.get(SEARCH, params={**params, **other})).headers["etag"] != tag, other
    moment = {**params, "as_of": "1796083200000"}  # the same moment, in another notation
    assert (await api.get(SEARCH, params=moment)).headers["etag"] == tag
    await seeds.run("UPDATE chunk_namespaces SET alpha = 0.5 WHERE ns = $1", ns)
    assert (await api.get(SEARCH, params=params, If_None_Match=tag)).status_code == 200
    await bump(seeds, ns)
    after = await api.get(SEARCH, params=params, If_None_Match=tag)
    assert (after.status_code, int(after.headers["x-resource-version"])) == (200, version + 1)


async def test_a_search_without_a_moment_is_as_of_the_minute(api, seeds, ns):
    """So that polling it costs a 304; a minute later it is another answer."""
    await store_namespace(seeds, ns)
    await store_chunk(seeds, ns, 0)
    params = {"ns": ns, "q": "chunk"}
    first = (await api.get(SEARCH, params=params)).json()["as_of"]
    assert datetime.fromisoformat(first).second == 0
    api.clock.offset_ms += 60_000
    try:
        second = (await api.get(SEARCH, params=params)).json()["as_of"]
    finally:
        api.clock.offset_ms -= 60_000
    assert datetime.fromisoformat(second) > datetime.fromisoformat(first)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:01Z", "9999-12-31T23:59:59Z", "1900-01-01", "-1"])
async def test_any_moment_may_be_asked_for(api, seeds, ns, moment):
    """Any time in the years 1 to 9999 works: later chunks are not found; without a time they are, at an age of 0."""
    await store_namespace(seeds, ns, ttl_days=36_600)
    for number, year in enumerate((2, 1900, 9999)):
        await store_chunk(seeds, ns, number, published_at=datetime(year, 1, 1, tzinfo=UTC))
    answer = await api.get(SEARCH, params={"ns": ns, "q": "chunk", "as_of": moment})
    assert answer.status_code == 200, answer.text
    ages = {one["chunk_no"]: one["age_days"] for one in answer.json()["results"]}
    assert all(0 <= age <= 36_600 for age in ages.values())
    assert (2 in ages) == moment.startswith("9999")
    today = (await api.get(SEARCH, params={"ns": ns, "q": "chunk"})).json()["results"]
    assert {one["chunk_no"]: one["age_days"] for one in today}[2] == 0


async def test_a_search_of_a_moment_knows_nothing_younger(api, seeds, ns):
    """By when it was published, or stored where it does not say that; the tag is not that of a search without a moment."""
    await store_namespace(seeds, ns, ttl_days=36_600)
    await store_chunk(seeds, ns, 0, published_at=datetime(2020, 1, 1, tzinfo=UTC))
    await store_chunk(seeds, ns, 1, published_at=datetime(2024, 1, 1, tzinfo=UTC))
    await store_chunk(seeds, ns, 2)
    for as_of, expected in (("2019-12-31", set()), ("2020-01-01", {0}), ("2025-01-01", {0, 1}), (None, {0, 1, 2})):
        for mode in ("semantic", "hybrid"):
            params = {"ns": ns, "q": "chunk", "mode": mode} | ({} if as_of is None else {"as_of": as_of})
            found = (await api.get(SEARCH, params=params)).json()["results"]
            assert {one["chunk_no"] for one in found} == expected, (as_of, mode)


async def test_a_search_of_a_moment_has_the_texts_of_then(api, seeds, ns):
    """With the time at which a text was replaced; of a time before former texts are kept it has the current ones, and says so."""
    first, second = (datetime.fromtimestamp(api.clock() // 1_000 - days * 86_400, UTC) for days in (3, 2))
    await store_namespace(seeds, ns, created_at=first)
    await store_chunk(seeds, ns, 0, content="Partitions are moved by hand", created_at=first, content_since=first)
    await seeds.run(
        "UPDATE chunks SET content = 'Cruise control', content_hash = 'i', content_since = $2 WHERE ns = $1", ns, second
    )
    await bump(seeds, ns)

    async def texts(at: datetime | None) -> tuple[str, list[tuple[str, str | None]]]:
        of_time = {} if at is None else {"as_of": at.isoformat().replace("+00:00", "Z")}
        answer = (await api.get(SEARCH, params={"ns": ns, "q": "partitions", **of_time})).json()
        return answer["texts"], [(one["content"], one["valid_until"]) for one in answer["results"]]

    until = second.isoformat().replace("+00:00", "Z")
    assert await texts(None) == ("now", [("Cruise control", None)])
    assert await texts(second) == ("as_of", [("Cruise control", None)])
    assert await texts(second - timedelta(milliseconds=1)) == ("as_of", [("Partitions are moved by hand", until)])
    assert await texts(first - timedelta(milliseconds=1)) == ("now", [])
    await seeds.run("UPDATE chunk_namespaces SET history_since = $2 WHERE ns = $1", ns, second)
    assert await texts(first) == ("now", [("Cruise control", None)])


async def test_a_search_is_narrowed_and_shows_what_stands_around(api, seeds, ns):
    """By a window of publication, by some chunks of a source; neighbours of a result are returned only on request."""
    await store_namespace(seeds, ns)
    await store_chunk(seeds, ns, 0, content="before it", published_at=NOW)
    await store_chunk(seeds, ns, 1, content="the outbox", published_at=NOW)
    await store_chunk(seeds, ns, 2, content="an outbox that is old", published_at=NOW - timedelta(days=9))
    asked = {"ns": ns, "q": "outbox", "as_of": NOW.isoformat().replace("+00:00", "Z")}
    found = (await api.get(SEARCH, params={**asked, "per_source": 1, "neighbours": 1})).json()["results"]
    assert [one["chunk_no"] for one in found] == [1]
    assert found[0]["before"] == [{"chunk_no": 0, "title": None, "content": "before it"}]
    assert [one["chunk_no"] for one in found[0]["after"]] == [2]
    since = (NOW - timedelta(days=9)).isoformat().replace("+00:00", "Z")
    old = (await api.get(SEARCH, params={**asked, "published_from": since, "published_to": since})).json()["results"]
    assert ([one["chunk_no"] for one in old], "before" in old[0]) == ([2], False)


async def test_a_namespace_that_nobody_has_heard_of(api, ns):
    """There are no results, but still an ETag."""
    answer = await api.get(SEARCH, params={"ns": ns, "q": "a"})
    assert (answer.status_code, answer.json()["results"]) == (200, [])
    assert (await api.get(SEARCH, params={"ns": ns, "q": "a"}, If_None_Match=answer.headers["etag"])).status_code in (
        200,
        304,
    )


async def test_a_write_during_a_search_is_noticed(api, seeds, ns):
    """The tag of a version never stands over what another gave: it reads again, and under writes without end has its own tag."""
    await store_namespace(seeds, ns)
    await bump(seeds, ns)
    params = {"ns": ns, "q": "chunk", "as_of": "2026-12-01T00:00:00Z"}
    real, writes = chunk_search.search, [1, 0]

    async def disturbed(*args: Any, **more: Any) -> Any:
        found = await real(*args, **more)
        if writes:
            number = writes.pop()
            await store_chunk(seeds, ns, number)
            await bump(seeds, ns)
        return found

    with patch.object(chunk_search, "search", disturbed):
        settled = await api.get(SEARCH, params=params)
        assert len(settled.json()["results"]) == 2
        assert (await api.get(SEARCH, params=params, If_None_Match=settled.headers["etag"])).status_code == 304
        writes[:] = range(10, 20)
        mixed = await api.get(SEARCH, params=params)
    assert (await api.get(SEARCH, params=params)).headers["etag"] != mixed.headers["etag"]


async def test_a_search_waits_for_its_position(api, seeds, ns):
    """503 until the sink has been there."""
    taken = (await post(api, {**BODY, "ns": ns})).json()
    positions = ",".join(taken["positions"])
    params = {"ns": ns, "q": "first"}
    assert (await api.get(SEARCH, params=params, X_Min_Position=positions, X_Max_Wait_Ms="50")).status_code == 503
    for position in taken["positions"]:
        await seeds.account_for(position)
    assert (await api.get(SEARCH, params=params, X_Min_Position=positions)).status_code == 200


# -- counts of searches -----------------------------------------------------------------------------------------------------


async def test_searches_are_counted_and_told(own_settings, stack, seeds, codec, ns):
    """A 304 counts too, a missing namespace does not; unpublished counts are published at the end."""
    await store_namespace(seeds, ns)
    starts = ends(stack, SERVED)
    with running_api(own_settings()) as running:
        before = running.clock()
        params = {"ns": ns, "q": "log", "as_of": "2026-12-01T00:00:00Z"}
        first = await running.get(SEARCH, params=params)
        assert (await running.get(SEARCH, params=params, If_None_Match=first.headers["etag"])).status_code == 304
        await running.get(SEARCH, params={**params, "ns": f"{ns}-else"})
        after = running.clock()
    events = [codec.decode(SERVED, record.value()) for record in _since(stack, SERVED, starts)]
    assert [(one["ns"], one["queries"]) for one in events if one["ns"].startswith(ns)] == [(ns, 2)]
    assert before <= next(one["since"] for one in events if one["ns"] == ns) <= after


def _since(stack, topic: str, starts: dict[int, int]) -> Sequence[Any]:
    """The records of a topic from these offsets on."""
    found = []
    for partition, end in ends(stack, topic).items():
        found += [record_at(stack, f"{topic}/{partition}/{offset}") for offset in range(starts[partition], end)]
    return found


# -- lifecycle ----------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.25")
async def test_a_lifecycle_counts_as_the_temperatures_do(api, seeds, ns):
    """Hot, warm and cold by age to the millisecond; marked chunks are in none of them."""
    await store_namespace(
        seeds, ns, is_hot=True, queries_per_day=120.5, rated_at=NOW, dimensions=3, embedding_model="m@3"
    )
    await seeds.run("INSERT INTO chunk_sources (ns, slot, source_id) VALUES ($1, 'main', 'readme')", ns)
    now = NOW + timedelta(days=400)
    day = timedelta(days=1)
    ages = [
        0 * day,
        14 * day,
        14 * day + timedelta(milliseconds=1),
        365 * day,
        365 * day + timedelta(milliseconds=1),
        -day,
    ]
    for number, age in enumerate(ages):
        await store_chunk(seeds, ns, number, published_at=now - age, embedding="[1,2,3]" if number else None)
    await store_chunk(seeds, ns, 90, to_delete=True, marked_at=NOW)
    await store_chunk(seeds, ns, 91, embedding="[1,2,3]", embedding_stale=True)
    passport = load_passports().of(ns)
    real = api.app.state.services.clock
    shift = round(now.timestamp() * 1000)
    object.__setattr__(api.app.state.services, "clock", lambda: shift)
    try:
        document = (await api.get(LIFECYCLE, params={"ns": ns})).json()
    finally:
        object.__setattr__(api.app.state.services, "clock", real)
    told = [str(temperature(age / day, passport, is_hot=True)) for age in (*ages, 400 * day)]
    assert {name: document[name] for name in ("hot", "warm", "cold")} == {
        name: told.count(name) for name in ("hot", "warm", "cold")
    }
    counts = {"chunks": 7, "sources": 1, "without_embedding": 1, "stale_embedding": 1, "to_delete": 1, "archived": 0}
    assert {name: document[name] for name in counts} == counts
    assert (document["is_hot"], document["queries_per_day"], document["embedding_model"]) == (True, 120.5, "m@3")
    assert document["passport"] == {name: getattr(passport, name) for name in PASSPORT_KEYS}
    listed = (await api.get(LIFECYCLE)).json()["namespaces"]
    assert ns in [one["ns"] for one in listed]


async def test_a_lifecycle_of_nothing(api, ns):
    """Zeros, and the passport that it would have."""
    document = (await api.get(LIFECYCLE, params={"ns": ns})).json()
    assert (document["chunks"], document["passport"]["half_life_days"], document["is_hot"]) == (0, 30.0, False)
    assert (await api.get(LIFECYCLE, params={"ns": "a|b"})).status_code == 422


# -- who may ------------------------------------------------------------------------------------------------------------------


async def test_roles(guarded, seeds, ns):
    """Only admins ingest, by any route; viewers read, and bound callers read open namespaces."""
    for token, status in (("root-key", 202), ("ed-key", 403), ("eye-key", 403), ("ada-key", 403), ("x", 401)):
        assert (await post(guarded, BODY, token)).status_code == status, token
    event = {**SOURCE, "ingest_id": "i", **BODY["chunks"][0]}
    async with guarded.client("ed-key") as client:
        assert (await client.post(f"/api/events/{SUBMITTED}", json=event)).status_code == 403
    async with guarded.client("root-key") as client:
        assert (await client.post(f"/api/events/{SUBMITTED}", json=event)).status_code == 202
    await store_namespace(seeds, ns)
    for token, closed, opened in (
        ("root-key", 200, 200),
        ("eye-key", 200, 200),
        ("ada-key", 403, 200),
        ("x", 401, 401),
    ):
        assert (await guarded.get(SEARCH, token, params={"ns": ns, "q": "log"})).status_code == closed, token
        assert (await guarded.get(SEARCH, token, params={"ns": "docs", "q": "log"})).status_code == opened, token
    assert (await guarded.get(LIFECYCLE, "eye-key", params={"ns": ns})).status_code == 200
    assert (await guarded.get(LIFECYCLE, params={"ns": ns})).status_code == 401


async def test_every_answer_says_what_is_left_of_the_minute(guarded):
    """The routes stand under the limits, an error too."""
    for answer in (
        await post(guarded, {}, "root-key"),
        await guarded.get(SEARCH, "eye-key", params={"ns": "docs"}),
        await guarded.get(LIFECYCLE, "eye-key"),
    ):
        assert "ratelimit" in answer.headers

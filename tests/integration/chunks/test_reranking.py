"""Searches whose results a reranking service puts in order: a real HTTP server that speaks as such services do, or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from highwater.connectors.models import reranker
from tests.integration.api_server import running_api
from tests.integration.chunks.making import bump, store_chunk, store_namespace
from tests.integration.json_service import JsonService

SEARCH = "/api/chunks/search"


class RerankService(JsonService):
    """Texts with "answer" in them score .9, others .1."""

    def __init__(self) -> None:
        super().__init__("/v1/")

    def answer(self, body: dict[str, Any]) -> Any:
        """In the form in which it was asked."""
        texts = body["documents"] if "model" in body else body["texts"]
        name = "relevance_score" if "model" in body else "score"
        rows = [{"index": place, name: 0.9 if "answer" in text else 0.1} for place, text in enumerate(texts)]
        ordered = sorted(rows, key=lambda row: -row[name])
        return {"results": ordered} if "model" in body else ordered


@pytest.fixture
def service() -> Iterator[RerankService]:
    """A service of its own."""
    with RerankService() as made:
        yield made


@pytest.mark.parametrize("model", [None, "rerank-v3.5"])
async def test_a_service_puts_the_results_in_order(
    own_settings: Callable[..., Any], seeds: Any, service: Any, model: str | None
):
    """In either form, also a result that would not have been among those asked for; not where it is not wanted."""
    ns = f"reranked-{model}"
    await store_namespace(seeds, ns)
    for number in range(15):
        await store_chunk(seeds, ns, number, content="outbox " * (15 - number), title="T")
    await store_chunk(seeds, ns, 15, content="an answer about the outbox among many other words that are in it")
    await bump(seeds, ns)
    settings = {"HIGHWATER_RERANK_BASE_URL": service.url} | (
        {} if model is None else {"HIGHWATER_RERANK_MODEL": model, "HIGHWATER_RERANK_API_KEY": "secret"}
    )
    params: dict[str, Any] = {"ns": ns, "q": "outbox", "limit": 2, "mode": "hybrid", "as_of": "2026-11-20T12:00:00Z"}
    with running_api(own_settings(**settings)) as api:
        answer = await api.get(SEARCH, params=params)
        found = answer.json()
        assert (found["ranking"], [one["chunk_no"] for one in found["results"]]) == ("reranker", [15, 0])
        assert [one["rerank_score"] for one in found["results"]] == [0.9, 0.1]
        same = await api.get(SEARCH, params=params, If_None_Match=answer.headers["etag"])
        assert (same.status_code, len(service.asked)) == (304, 1)
        for other in ({"rerank": "false"}, {"mode": "semantic"}):
            plain = await api.get(SEARCH, params={**params, **other})
            assert (plain.json()["ranking"], [one["chunk_no"] for one in plain.json()["results"]]) == ("scores", [0, 1])
            assert {one["rerank_score"] for one in plain.json()["results"]} == {None}
            assert plain.headers["etag"] != answer.headers["etag"]
    path, key, body = service.asked[0]
    texts = body["texts" if model is None else "documents"]
    assert (path, key, body["query"], len(texts)) == ("/v1/rerank", model and "Bearer secret", "outbox", 16)
    assert texts[0].startswith("T\n\noutbox")
    assert len(service.asked) == 1


async def test_without_its_answer_results_are_in_the_order_of_their_scores(
    own_settings: Callable[..., Any], seeds: Any, service: Any, monkeypatch: pytest.MonkeyPatch
):
    """It fails, answers something else, or not in time: the answer reports it, and is not reused for the next caller.

    After a failure the service is not called for a while.
    """
    monkeypatch.setattr(reranker, "REST_SECONDS", 0.0)
    monkeypatch.setattr(reranker, "CALL_SECONDS_MAX", 1.0)
    ns = "not-reranked"
    await store_namespace(seeds, ns)
    await store_chunk(seeds, ns, 0, content="outbox outbox")
    await store_chunk(seeds, ns, 1, content="an answer about the outbox")
    await bump(seeds, ns)
    params = {"ns": ns, "q": "outbox", "mode": "hybrid", "as_of": "2026-11-20T12:00:00Z"}
    with running_api(own_settings(HIGHWATER_RERANK_BASE_URL=service.url)) as api:

        async def ranked() -> tuple[str, list[int], str]:
            answer = await api.get(SEARCH, params=params)
            found = answer.json()
            return found["ranking"], [one["chunk_no"] for one in found["results"]], answer.headers["etag"]

        unranked = ("reranker_unavailable", [0, 1])
        service.status = 503
        *refused, tag = await ranked()
        assert tuple(refused) == unranked
        service.status = 200
        with monkeypatch.context() as patched:
            patched.setattr(service, "answer", lambda _: [{"index": 0, "score": 1}])
            assert (await ranked())[:2] == unranked
        service.released.clear()
        assert (await ranked())[:2] == unranked
        service.released.set()
        again = await api.get(SEARCH, params=params, If_None_Match=tag)
        assert (again.status_code, again.json()["ranking"]) == (200, "reranker")
        assert (await ranked())[:2] == ("reranker", [1, 0])
        monkeypatch.setattr(reranker, "REST_SECONDS", 600.0)
        service.status, calls = 500, len(service.asked)
        assert [(await ranked())[:2] for _ in range(2)] == [unranked] * 2
        assert len(service.asked) == calls + 1

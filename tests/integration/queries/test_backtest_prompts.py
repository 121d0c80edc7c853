"""`highwater backtest prompts`: a recorded query is answered again by the service, and nothing is stored."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.integration.commands import run
from tests.integration.models.scripted_llm import answer, status
from tests.integration.queries.making import Queries, queries
from tests.integration.queries.pipeline import sources

_STORED = ("pipeline_runs", "llm_calls", "outbox", "raw_logs", "run_events")


async def stored(q: Queries) -> dict[str, list[Any]]:
    """All rows of what a run leaves behind."""
    return {table: sorted(map(repr, await q.context.pool.fetch(f"SELECT * FROM {table}"))) for table in _STORED}


async def answered(q: Queries) -> str:
    """A query that was answered by a source, and remembered."""
    worker = q.worker()
    q.llm.script("responder", answer("It stays.\nIt is so [1]."))
    request_id = await q.ask("why?")
    await q.request(worker, request_id)
    await q.until_status(request_id, "COMPLETED", archive="STORED")
    await worker.end()
    await q.context.pool.execute("UPDATE pipeline_runs SET sources = $1", sources())
    return request_id


async def test_a_recorded_query_is_answered_by_another_prompt_and_model(stack, environment, tmp_path):
    """From its recorded draft, with keys of its own; one that fails says why, and the exit status is 1."""
    prompt = tmp_path / "mentor.txt"
    prompt.write_text("Answer in one line.")
    async with queries(stack) as q:
        request_id = await answered(q)
        before, draft = await stored(q), q.llm.seen("assembler")[0].user
        q.llm.clear()
        q.llm.script("responder", answer("It stays.\nNobody knows."), status(401))
        given = {"DATABASE_URL": q.database, "LLM_BASE_URL": q.llm.url, "LLM_API_KEY": "key"}
        prices = {"HIGHWATER_LLM_PRICES": "small=1/2,other=100/200"}
        arguments = ("backtest", "prompts", "--since", "2000-01-01T00:00:00Z", "--model", "other")
        options = ("--prompt", f"Mentor={prompt}", "--json")
        replayed = await asyncio.to_thread(run, {**environment, **given, **prices}, *arguments, *options)
        refused = await asyncio.to_thread(run, {**environment, **given}, *arguments)
        assert await stored(q) == before
        assembler, responder, alone = q.llm.seen()
    assert replayed.returncode == 0, replayed.stderr
    (one,) = json.loads(replayed.stdout)["queries"]
    assert (one["request_id"], one["sources_lost"], one["sources_added"]) == (request_id, ["i#1"], [])
    assert one["lines"] == ["- It is so [1].", "+ Nobody knows."]
    # 100 tokens read and 20 written by each of two calls.
    sides = [(side["model"], side["tokens"], side["cost_usd"]) for side in (one["recorded"], one["replayed"])]
    assert sides == [("strong", 240, 0.00154), ("other", 240, 0.01414)]
    assert assembler.user == f"{draft.rpartition('<mentor>')[0]}<mentor>\nAnswer in one line.\n</mentor>"
    assert (assembler.body["model"], responder.body["model"], responder.system) == (
        "small",
        "other",
        prompt.read_text(),
    )
    assert all(call.key.startswith("backtest-") and request_id in call.key for call in (assembler, responder))
    assert (refused.returncode, refused.stderr.count("\n"), alone.stage) == (1, 1, "responder")
    assert "failed: " in refused.stdout

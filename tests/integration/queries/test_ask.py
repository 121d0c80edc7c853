"""`highwater ask` against a running API, as a user runs it: output, exit status, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from typing import Any

from highwater.connectors.kafka.registry import Registry
from highwater.schemas.queries import QUERY_SUBMITTED, RUN_CONTROLLED
from highwater.schemas.topics import TOPICS
from tests.integration.api_server import Seeds, running_api
from tests.integration.commands import ended, started
from tests.integration.connecting import Reader
from tests.integration.queries.pipeline import complete, new_id, store_run


def ask(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """The command, started."""
    return started(environment, "ask", *arguments)


async def taken_down(stack: Any, seeds: Seeds, log: Reader, user: str) -> str:
    """The run of the user's query, stored in place of the sink, which then has been there."""
    codec = await Registry(stack.schema_registry).codec([TOPICS[QUERY_SUBMITTED]])
    (message,) = await log.until(lambda m: m.key() == user.encode(), 1, "the query is in the log")
    event = codec.decode(QUERY_SUBMITTED, message.value())
    said = {"user_query": event["query"], "organization_id": event["organization_id"]}
    run = await store_run(seeds, user, id=event["request_id"], **said)
    await seeds.account_for(f"{QUERY_SUBMITTED}/{message.partition()}/{message.offset()}")
    return run


async def test_the_answer_is_printed(stack, api, seeds, api_environment):
    """And nothing else in a pipe; exit status 0. What a terminal would obey is escaped."""
    user = new_id()
    with Reader(stack.kafka, QUERY_SUBMITTED) as log:
        command = ask(api_environment, user.upper(), "what changed?", "--organization", "acme")
        await complete(seeds, await taken_down(stack, seeds, log, user), "two\nlines\x1b[2J")
        assert await ended(command) == (0, "two\nlines\\x1b[2J\n", "")
    rows = await seeds.run("SELECT organization_id FROM pipeline_runs WHERE user_id = $1", user)
    assert [row["organization_id"] for row in rows] == ["acme"]


async def test_the_status_document_is_printed(stack, api, seeds, api_environment):
    """By `--json`; exit status 1 for a run that failed, which without it is one line."""
    user, other = new_id(), new_id()
    failed = {"status": "FAILED", "error": "Max retries exceeded", "archive_status": None, "completed_at": None}
    with Reader(stack.kafka, QUERY_SUBMITTED) as log:
        command = ask(api_environment, user, "q", "--json")
        run = await taken_down(stack, seeds, log, user)
        await complete(seeds, run, **failed)
        code, out, err = await ended(command)
        expected = {"request_id": run, "status": "failed", "error": "Max retries exceeded"}
        assert (code, json.loads(out), err) == (1, expected, "")
        command = ask(api_environment, other, "q")
        run = await taken_down(stack, seeds, log, other)
        await complete(seeds, run, **failed)
        assert await ended(command) == (1, "", f"highwater: request {run} failed: Max retries exceeded\n")


async def test_wrong_use(api, api_environment):
    """Exit status 2 and one line for an invalid id, an empty question, or wrong options; 1 without an API."""
    for arguments in (("a\nb", "q"), (new_id(), " "), (new_id(),), (new_id(), "q", "--timeout-seconds", "0")):
        code, out, err = await ended(ask(api_environment, *arguments))
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
    code, _, err = await ended(ask({**api_environment, "HIGHWATER_PORT": "1"}, new_id(), "q"))
    assert (code, err.count("\n"), "does not answer" in err) == (1, 1, True)


async def test_who_stops_waiting_leaves_the_run_alone(stack, api, seeds, api_environment):
    """By Ctrl-C (130) or by the time limit (1): the id is printed, and the run is not cancelled."""
    user, other = new_id(), new_id()
    with Reader(stack.kafka, QUERY_SUBMITTED) as log, Reader(stack.kafka, RUN_CONTROLLED) as controls:
        command = ask(api_environment, user, "q")
        run = await taken_down(stack, seeds, log, user)
        await asyncio.sleep(1)  # it waits for the answer now
        command.send_signal(signal.SIGINT)
        code, out, err = await ended(command)
        assert (code, out, run in err) == (130, "", True)
        command = ask(api_environment, other, "q", "--timeout-seconds", "0.5")
        run = await taken_down(stack, seeds, log, other)
        code, out, err = await ended(command)
        assert (code, out, run in err) == (1, "", True)
        await asyncio.to_thread(controls.read)
        assert controls.messages == []


async def test_the_key_that_may_ask_is_used(own_settings, stack, seeds, api_environment):
    """The first key in the settings that may submit for the user; none gives one line."""
    user = new_id()
    keys = f"editor:tom-key:tom:acme,viewer:look-key:{user}:acme,editor:poor-key:{user},editor:own-key:{user}:acme"
    with running_api(own_settings(HIGHWATER_API_KEYS=keys)) as guarded, Reader(stack.kafka, QUERY_SUBMITTED) as log:
        there = {**api_environment, "HIGHWATER_PORT": guarded.url.rsplit(":", 1)[1], "HIGHWATER_API_KEYS": keys}
        command = ask(there, user, "q")
        await complete(seeds, await taken_down(stack, seeds, log, user), "42")
        assert await ended(command) == (0, "42\n", "")
        code, _, err = await ended(ask(there, new_id(), "q"))
        assert (code, "no key in HIGHWATER_API_KEYS" in err) == (1, True)


async def test_failed_queries_are_restarted_by_reason(api, seeds, api_environment):
    """Without `--execute` the plan is shown, with what it is expected to take, and nothing is published."""
    user = new_id()
    run = await store_run(seeds, user, status="FAILED", error="no model: timeout")
    arguments = ("queries", "restart-failed", "--user", user, "--reason", "no model")
    code, out, err = await ended(started(api_environment, *arguments))
    assert (code, "1 of 1 failed queries would be restarted" in out, run in out, err) == (0, True, True, "")
    assert "3 stages" in out
    code, out, err = await ended(started(api_environment, *arguments, "--execute", "--json"))
    found = json.loads(out)
    assert (code, [one["request_id"] for one in found["queries"]], len(found["positions"])) == (0, [run], 1), err

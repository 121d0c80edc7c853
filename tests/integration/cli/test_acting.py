"""Commands that act through a running API: each prints what a script wants, and leaves an event in the log."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from highwater.connectors.kafka.registry import Registry
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import to_datetime
from tests.integration.commands import printed, run
from tests.integration.queries.pipeline import complete, new_id, store_call, store_run
from tests.integration.records import record_at


@pytest.fixture
def act(api_environment: dict[str, str]) -> Any:
    """A command run to its end."""

    async def acted(*arguments: str) -> Any:
        return await asyncio.to_thread(run, api_environment, *arguments)

    return acted


async def event_at(stack: Any, position: str) -> dict[str, Any]:
    """The event at a position."""
    topic = position.partition("/")[0]
    codec = await Registry(stack.schema_registry).codec([TOPICS[topic]])
    event: dict[str, Any] = codec.decode(topic, record_at(stack, position).value())
    return event


async def test_a_query_is_listed_shown_cancelled_and_restarted(stack, api, seeds, act):
    """A stage that was never reached is refused in a line, exit status 1; one that does not exist is a wrong use, 2."""
    user = new_id()
    query = await store_run(seeds, user, user_query="why?")
    done = await act("queries", "list", user, "--json")
    assert [json.loads(line)["request_id"] for line in done.stdout.splitlines()] == [query]
    assert printed(await act("queries", "show", query, "--json"))["query"] == "why?"
    await store_call(seeds, query, user, "analyzer")
    done = await act("queries", "show", query)
    assert (done.returncode, "why?" in done.stdout, "analyzer" in done.stdout, done.stderr) == (0, True, True, "")
    answer = printed(await act("queries", "cancel", query, "--json"))
    event = await event_at(stack, answer["positions"][0])
    assert (event["request_id"], event["action"]) == (query, "cancel")
    await complete(seeds, query, "42")
    done = await act("queries", "restart", query)
    assert (done.returncode, len(done.stdout.strip()), done.stderr) == (0, 36, "")
    done = await act("queries", "restart", query, "--stage", "responder")
    assert (done.returncode, "never reached that stage" in done.stderr) == (1, True)
    done = await act("queries", "restart", query, "--stage", "writer")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


async def test_a_user_is_subscribed_to_channels_one_by_one(stack, api, seeds, act):
    """Each channel is an event of its own, so other subscriptions stay; an empty name is a wrong use that sends nothing."""
    done = await act("users", "subscribe", "cli/2", "apache/kafka", "b", "b")
    events = [await event_at(stack, position) for position in done.stdout.split()]
    assert [(e["user_id"], e["channel_id"], e["subscribed"]) for e in events] == [
        ("cli/2", "apache/kafka", True), ("cli/2", "b", True),
    ]  # fmt: skip
    (position,) = printed(await act("users", "unsubscribe", "cli/2", "b", "--json"))["positions"]
    event = await event_at(stack, position)
    assert (event["user_id"], event["channel_id"], event["subscribed"]) == ("cli/2", "b", False)
    await seeds.user("cli/2", ["a\u0085", "apache/kafka"])
    assert (await act("users", "subscriptions", "cli/2")).stdout == "apache/kafka\na\\x85\n"
    assert printed(await act("users", "subscriptions", "cli/2", "--limit", "1", "--json"))["channels"] == [
        "apache/kafka"
    ]
    event = await event_at(stack, (await act("users", "plan", "cli/2", "pro")).stdout.strip())
    assert (event["user_id"], event["plan"]) == ("cli/2", "pro")
    done = await act("users", "subscribe", "cli/2", "")
    assert (done.returncode, done.stdout, "CHANNEL is empty" in done.stderr) == (2, "", True)


async def answered(seeds: Any, api: Any, user: str, position: str, **columns: Any) -> None:
    """The worker has answered the demands behind a position, though nothing is at these positions yet."""
    partition, offset = position.rsplit("/", 2)[1:]
    for later in range(int(offset) + 1, int(offset) + 9):
        await seeds.insert(
            "rebuild_demands", user_id=user, position=f"feeds.rebuild-demanded/{partition}/{later}", revision=later,
            demanded_at=to_datetime(api.clock()), finished_at=to_datetime(api.clock()), **columns,
        )  # fmt: skip


async def test_a_user_is_rebuilt_and_erased(stack, api, seeds, act):
    """What delays a rebuild comes first. Erasing takes the name twice: without it nothing is sent."""
    await seeds.user("cli/1", [])
    assert printed(await act("users", "pending", "cli/1", "--json"))["user_id"] == "cli/1"
    done = await act("users", "pending", "cli/1")
    assert (done.returncode, "cli/1" in done.stdout, "{" in done.stdout, done.stderr) == (0, True, False, "")
    assert "delayed" not in done.stdout
    await seeds.user("cli/1", [], delayed_at=to_datetime(api.clock()), delay_reason="no progress", delays=1)
    assert (await act("users", "pending", "cli/1")).stdout.startswith(
        "Rebuilds are delayed: no progress (1 time in a row"
    )
    done = await act("users", "rebuild", "cli/1", "--if-new", "--no-wait")
    event = await event_at(stack, done.stdout.strip())
    assert (event["user_id"], event["if_new"], event["force"]) == ("cli/1", True, False)
    await answered(seeds, api, "cli/1", done.stdout.strip(), outcome="rebuilt", cluster_version=3)
    done = await act("users", "rebuild", "cli/1")
    assert (done.returncode, done.stdout) == (0, "Version 3 was made.\n")
    await seeds.user("cli/3", [])
    position = (await act("users", "rebuild", "cli/3", "--no-wait")).stdout.strip()
    await answered(seeds, api, "cli/3", position, outcome="failed", reason="no\u0085memory", cluster_version=3)
    done = await act("users", "rebuild", "cli/3")
    assert (done.returncode, done.stdout) == (1, "The rebuild failed: no\\x85memory. The version is 3.\n")
    assert (await act("users", "clusters", "cli/1")).stdout.startswith("There is no version yet")
    done = await act("users", "erase", "cli/1", "--confirm", "cli/2")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    done = await act("users", "erase", "cli/1", "--confirm", "cli/1")
    position = done.stdout.strip()
    assert position.startswith("feeds.user-erased/")
    assert (await event_at(stack, position))["user_id"] == "cli/1"


async def test_a_match_is_finalized(stack, api, seeds, act):
    """An invalid result is wrong use, and an unknown match is refused."""
    now = to_datetime(api.clock())
    await seeds.insert("league_seasons", season="cli")
    await seeds.insert(
        "league_matches",
        match_id="cli-m", season="cli", round="1", kickoff=now - timedelta(hours=2), time_unknown=False,
        status="scheduled", home="Leeds", away="York", schedule_ms=1, schedule_position="league.match-scheduled/0/1",
    )  # fmt: skip
    done = await act("matches", "finalize", "cli-m", "2:1")
    event = await event_at(stack, done.stdout.strip())
    assert (event["match_id"], event["home_goals"], event["away_goals"]) == ("cli-m", 2, 1)
    done = await act("matches", "finalize", "cli-m", "two:one")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    done = await act("matches", "finalize", "cli-none", "2:1")
    assert (done.returncode, "cli-none" in done.stderr) == (1, True)

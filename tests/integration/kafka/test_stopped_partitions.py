"""A producer of garbage stops its own partition of a consumer and nothing else, and the command that is printed resumes it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from highwater.connectors.kafka.consumer import BatchConsumer, degraded
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.known import KnownIds, Origin
from highwater.connectors.kafka.reading import log_ranges_of
from highwater.connectors.kafka.resetting import SET_POSITIONS
from highwater.connectors.league.sink_posts import PostsSink
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import DEAD_LETTER_SUFFIX
from tests.conftest import Stack
from tests.integration.api_server import Api, Seeds
from tests.integration.commands import printed, run
from tests.integration.connecting import running, send, surroundings, until
from tests.integration.league.making import League

TOPIC, GROUP, BAD, GOOD = "league.comment-posted", "posts", 3, 5


@dataclass
class Posts:
    """The consumer of posts on a database of the module's own, and a match that its comments are about."""

    context: ProcessContext
    league: League
    environment: dict[str, str]
    kafka: str

    def send(self, partition: int, *texts: str | None) -> int:
        """Publish comments to a partition, garbage for None; the offset of the first."""
        values = [b"garbage" if text is None else self.encoded(text) for text in texts]
        return send(self.kafka, TOPIC, [(b"k", value, None, partition) for value in values])[0].offset

    def encoded(self, text: str) -> bytes:
        """A good comment."""
        value = {"match_id": self.league.match("A-B"), "user_id": "ada", "text": text, "ts": 1}
        return self.context.codec.encode(TOPIC, value)

    def consumer(self) -> BatchConsumer:
        """A member of the group."""
        return BatchConsumer(PostsSink(self.context), self.context)

    async def stands_at_the_end(self, group: str, *topics: str) -> None:
        """Let a group begin where topics end now."""
        ranges = await log_ranges_of(self.context.admin, list(topics))
        ids = await self.context.admin.topic_ids(topics)
        rows = [(topic, number, ids[topic], held.high) for (topic, number), held in ranges.items()]
        await self.context.pool.execute(SET_POSITIONS, group, *map(list, zip(*rows, strict=True)))

    async def comments(self) -> list[str]:
        """The stored comments of this match."""
        query = "SELECT body FROM league_comments WHERE match_id = $1 ORDER BY body"
        return [row["body"] for row in await self.context.pool.fetch(query, self.league.match("A-B"))]

    async def stored(self, *texts: str) -> None:
        """Wait until these are stored, and nothing else."""

        async def look() -> bool:
            return set(await self.comments()) >= set(texts)

        await until(look, f"{texts} are stored")
        assert await self.comments() == sorted(texts)

    async def position(self, partition: int) -> int:
        """Where the group stands."""
        query = 'SELECT next FROM positions WHERE "group" = $1 AND topic = $2 AND partition = $3'
        return int(await self.context.pool.fetchval(query, GROUP, TOPIC, partition))

    async def dead(self) -> int:
        """Dead letters that wait to be published."""
        return len(await in_outbox_raw(self.context, TOPIC + DEAD_LETTER_SUFFIX))

    async def command(self, *arguments: str) -> Any:
        """A command's JSON."""
        return printed(await asyncio.to_thread(run, self.environment, *arguments, "--json"))

    async def as_printed(self, line: str) -> str:
        """Run a command line exactly as it was printed; what it says."""
        program, *arguments = shlex.split(line)
        assert program == "highwater"
        done = await asyncio.to_thread(run, self.environment, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


async def in_outbox_raw(context: ProcessContext, topic: str) -> Sequence[Any]:
    """Rows of the outbox for a topic that has no schema."""
    return await context.pool.fetch("SELECT 1 FROM outbox WHERE topic = $1", topic)


@pytest.fixture
async def posts(stack: Stack, seeds: Seeds, environment: dict[str, str]) -> AsyncIterator[Posts]:
    """Reads from the present ends on; records of other tests in the topics are skipped."""
    own = dataclasses.replace(stack, database=seeds.url)
    async with surroundings(own) as context:
        await context.pool.execute("DELETE FROM outbox; DELETE FROM stopped_partitions")
        league = League(context)
        await league.stores(league.scheduled("A-B"))
        made = Posts(context, league, {**environment, "DATABASE_URL": seeds.url}, stack.kafka)
        await made.stands_at_the_end(GROUP, *PostsSink.topics)
        yield made


def command_in(text: str | None) -> str:
    """The command line between backticks."""
    found = re.findall(r"`(highwater [^`]+)`", text or "")
    assert len(found) == 1, text
    return str(found[0])


async def test_garbage_stops_one_partition_and_the_printed_command_resumes_it(posts: Posts, api: Api):
    """130 bad comments: their partition stops, also over a restart; others continue; the command stores the later ones."""
    first = posts.send(BAD, "before", *[None] * 130, "after")
    member = posts.consumer()
    async with running(member):
        await until(lambda: member.degraded, "the partition is stopped")
        posts.send(GOOD, "beside")
        await posts.stored("before", "beside")
        assert member.problem is None
    line = f"highwater dlq park {GROUP} {TOPIC} --partition {BAD}"
    dead = await posts.dead()
    assert (dead < 100, await posts.position(BAD)) == (True, first + 1 + dead)
    again = posts.consumer()
    async with running(again):  # a restart changes nothing
        await until(lambda: again.degraded, "the partition is still stopped")
        posts.send(GOOD, "beside it")
        await posts.stored("before", "beside", "beside it")
        assert {command_in(text) for text in degraded([again]).values()} == {line}
        (lag,) = [one for one in await posts.command("lag") if one["group"] == GROUP]
        assert command_in(lag["problem"]) == line
        ready = (await api.get("/readyz")).json()
        assert (ready["ready"], command_in(ready["degraded"][GROUP])) == (True, line)
        said = await posts.as_printed(line)
        assert said.startswith(f"{GROUP} has passed {TOPIC}/{BAD} up to offset {first + 132}")
        await posts.stored("before", "beside", "beside it", "after")
        assert (again.degraded, await posts.dead(), await posts.position(BAD)) == (None, 130, first + 132)
    assert await posts.context.pool.fetch("SELECT * FROM stopped_partitions") == []


async def test_one_partition_is_reset_while_the_others_are_read(posts: Posts):
    """A stopped partition may be reset under a live consumer, which continues there; one that is read may not."""
    first = posts.send(BAD, *[None] * 130, "later")
    member = posts.consumer()
    async with running(member):
        await until(lambda: member.degraded, "the partition is stopped")
        chosen = ("--topic", TOPIC, "--partition")
        refused = await asyncio.to_thread(
            run, posts.environment, "reset", GROUP, "--to", "latest", *chosen, str(GOOD), "--execute"
        )
        assert (refused.returncode, "live members" in refused.stderr) == (1, True)
        reset = ("reset", GROUP, "--to", str(first + 130), *chosen, str(BAD))
        (planned,) = (await posts.command(*reset))["partitions"]
        assert (planned["partition"], planned["after"]) == (BAD, first + 130)
        assert member.degraded
        await posts.command(*reset, "--execute")
        await posts.stored("later")
        assert (member.degraded, await posts.position(BAD)) == (None, first + 131)


async def test_what_comes_after_a_parked_run_is_judged_anew(posts: Posts):
    """The permission ends where the log ended when it was given: garbage that comes later stops the partition again."""
    posts.send(BAD, *[None] * 130)
    member = posts.consumer()
    async with running(member):
        line = command_in(await until(lambda: member.degraded, "the partition is stopped"))
        await posts.as_printed(line)
        second = posts.send(BAD, *[None] * 130)
        await until(lambda: member.degraded, "it is stopped again")
        assert second <= await posts.position(BAD) < second + 100
        await posts.as_printed(line)
        assert (member.degraded, await posts.dead()) == (None, 260)


async def test_only_what_is_stopped_can_be_parked(posts: Posts):
    """A partition that is read is left alone, and the command says where to look."""
    done = await asyncio.to_thread(run, posts.environment, "dlq", "park", GROUP, TOPIC, "--partition", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{GROUP} has not stopped {TOPIC}/1" in done.stderr


async def test_nobody_waits_for_a_stopped_partition(posts: Posts):
    """A caller that checks for existence waits for its topic to be stored, but not for a partition that waits for an operator."""

    async def find(_tx: Any, _ids: list[str]) -> set[str]:
        return set()

    context = posts.context
    (place,) = send(posts.kafka, "league.match-scheduled", [(b"k", b"garbage", None, 2)])
    await posts.stands_at_the_end("fixtures", place.topic)
    await context.pool.execute("UPDATE positions SET next = next - 1 WHERE \"group\" = 'fixtures' AND partition = 2")
    known = KnownIds(context.pool, context.admin, Origin(place.topic, "fixtures", "the match", "schedules", find))
    with pytest.raises(UnavailableError, match="1 schedules behind"):
        await known.unknown(["m"])
    await context.pool.execute(
        "INSERT INTO stopped_partitions VALUES ('fixtures', $1, 2, $2, now(), 'garbage', 130, 130)", *place[::2]
    )
    assert await known.unknown(["m"]) == {"m"}

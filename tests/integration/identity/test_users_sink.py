"""The sink of users on real parts: the last word wins, an erasure leaves nothing, and versions keep growing after it."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.connectors.pages.statements import QUERIES as PAGE_QUERIES
from highwater.connectors.slices import ERASURE
from highwater.streams.clock import to_datetime
from highwater.streams.telemetry import DEMANDS_SKIPPED
from tests.integration.connecting import event, fresh, in_outbox, in_transaction

# Everything that is kept of a user, and must be gone after an erasure.
TABLES = (
    *("subscriptions", "user_cluster_hwm", "user_cluster_marks", "user_clusters", "cluster_history", "feed_documents"),
    *("rebuild_demands", "cluster_curations", "digests_sent", "user_stats"),
)


class Person:
    """A user, its events, and its stored state."""

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.id = fresh("u")
        self._at = 1_000

    def says(self, topic: str, **value: Any) -> Event:
        """The user's next event; broker time advances by a millisecond."""
        self._at += 1
        return event(f"feeds.{topic}", {"user_id": self.id, "ts": 1, **value}, offset=self._at, arrived_ms=self._at)

    async def stores(self, *events: Event) -> Any:
        """One batch through the sink."""
        return await in_transaction(
            self.context, UsersSink(self.context.codec, lambda: 10**12, ERASURE, dimensions=384), events
        )

    async def channels(self) -> list[str]:
        """Subscribed channels."""
        query = "SELECT channel_id FROM subscriptions WHERE user_id = $1 AND subscribed ORDER BY 1"
        return [row["channel_id"] for row in await self.context.pool.fetch(query, self.id)]

    async def stats(self) -> Any:
        """The row of the user."""
        return await self.context.pool.fetchrow("SELECT * FROM user_stats WHERE user_id = $1", self.id)

    async def published(self) -> list[dict[str, Any]]:
        """The `user-changed` events so far."""
        return await in_outbox(self.context, "feeds.user-changed", self.id)


@pytest.fixture
def person(context: ProcessContext) -> Person:
    """A user of the test's own."""
    return Person(context)


async def test_the_replaced_set_is_the_set(person: Person):
    """A replaced set drops the missing entries and keeps the rest; only changes are published."""
    await person.stores(person.says("subscriptions-replaced", channels=["a", "b"]))
    await person.stores(person.says("subscriptions-replaced", channels=["b", "c"]))
    assert await person.channels() == ["b", "c"]
    assert [(e["subscribed"], e["unsubscribed"]) for e in await person.published()] == [
        (["a", "b"], []),
        (["c"], ["a"]),
    ]


async def test_two_quick_changes_end_as_the_last(person: Person):
    """In one batch or in two, the later event wins, and the batch publishes one event."""
    await person.stores(
        person.says("subscription-changed", channel_id="a", subscribed=True),
        person.says("subscription-changed", channel_id="a", subscribed=False),
        person.says("plan-changed", plan="pro"),
        person.says("plan-changed", plan="team"),
    )
    assert (await person.channels(), (await person.stats())["plan"], len(await person.published())) == ([], "team", 1)
    await person.stores(person.says("subscription-changed", channel_id="a", subscribed=True))
    assert await person.channels() == ["a"]


async def test_a_redelivered_batch_changes_nothing(person: Person):
    """The same batch again stores and publishes nothing."""
    batch = [person.says("subscriptions-replaced", channels=["a"]), person.says("user-active", ts=77)]
    await person.stores(*batch)
    before = await person.stats()
    await person.stores(*batch)
    assert (before, 1) == (await person.stats(), len(await person.published()))


async def test_a_bad_event_of_a_user_is_dead_and_the_others_count(person: Person):
    """A set with an empty channel is refused by name, its neighbours are stored."""
    dead = await person.stores(
        person.says("plan-changed", plan="pro"), person.says("subscriptions-replaced", channels=[""])
    )
    assert [letter.reason for letter in dead] == ["empty_id"]
    assert (await person.stats())["plan"] == "pro"


async def test_a_demand_is_told(person: Person):
    """A demanded rebuild reaches the user's side, each one with a higher revision."""
    await person.stores(person.says("plan-changed", plan="pro"))
    for _ in range(2):
        await person.stores(person.says("rebuild-demanded"))
    _, first, second = await person.published()
    assert (first["rebuild_demanded"], second["rebuild_demanded"]) == (True, True)
    assert second["revision"] > first["revision"]


async def test_a_demand_for_nobody_makes_nobody(person: Person):
    """A mistyped user is not a user: no row, no event, and the demand is counted; with others in the batch as alone."""
    before = DEMANDS_SKIPPED._value.get()
    assert await person.stores(person.says("rebuild-demanded")) == []
    other = Person(person.context)
    assert await person.stores(person.says("rebuild-demanded"), other.says("plan-changed", plan="pro")) == []
    assert (await person.published(), DEMANDS_SKIPPED._value.get() - before) == ([], 2)
    query = "SELECT user_id FROM user_stats WHERE user_id = ANY ($1::text[])"
    rows = await person.context.pool.fetch(query, [person.id, other.id])
    assert [row["user_id"] for row in rows] == [other.id]


async def test_a_demand_is_remembered_by_its_position(person: Person):
    """It has the revision that was published for it, so that the request that serves it can answer it; it must be met unless it
    opts out.
    """
    await person.stores(person.says("plan-changed", plan="pro"))
    both = [person.says("rebuild-demanded"), person.says("rebuild-demanded", if_new=True)]
    await person.stores(*both)
    await person.stores(person.says("rebuild-demanded", if_new=True))
    await person.stores(person.says("rebuild-demanded", if_new=True, force=True))
    _, *told = await person.published()
    assert [event["rebuild_forced"] for event in told] == [True, False, True]
    rows = await person.context.pool.fetch(
        "SELECT position, revision, outcome, forced FROM rebuild_demands WHERE user_id = $1 ORDER BY demanded_at",
        person.id,
    )
    assert [row["position"] for row in rows][:2] == [str(one.record.position) for one in both]
    first, second, third = (event["revision"] for event in told)
    assert [row["revision"] for row in rows] == [first, first, second, third]
    assert [row["forced"] for row in rows] == [False, False, False, True]
    await person.stores(*(person.says("rebuild-demanded") for _ in range(120)))
    assert (
        await person.context.pool.fetchval("SELECT count(*) FROM rebuild_demands WHERE user_id = $1", person.id) == 100
    )


async def fill(person: Person) -> None:
    """Something of the user in every table."""
    pool, user, now = person.context.pool, person.id, to_datetime(1)
    await person.stores(person.says("subscriptions-replaced", channels=["a"]), person.says("plan-changed", plan="pro"))
    await pool.execute("INSERT INTO user_cluster_hwm VALUES ($1, 'a', 3)", user)
    await pool.execute("INSERT INTO user_cluster_marks VALUES ($1, 'a', '1970-01-01', 3, $2)", user, now)
    await pool.execute("INSERT INTO rebuild_demands VALUES ($1, $2, 1, $3)", user, f"t/0/{user}", now)
    await pool.execute("INSERT INTO digests_sent VALUES ($1, 'mail', 1, 1, $2)", user, now)
    await pool.execute("INSERT INTO cluster_curations VALUES ($1, 'c', '{}', 1, 0, 0)", user)
    await pool.execute(
        QUERIES["insert_clusters"],
        user, 1, "[]", 0, 0, 0, "{}", now, "t/0/0", "b", "{}", b"", 0, 0, None, [], False, False,
    )  # fmt: skip
    await pool.execute(
        "INSERT INTO cluster_history VALUES ($1, 'c', 1, 'born', 'l', 1, 0, 1, 1, 0, 0, 0, '{}', $2, 't/0/0')",
        user,
        now,
    )
    await pool.execute("INSERT INTO feed_documents VALUES ($1, 1, $2, 1, '')", user, now)
    for kind in ("feed", "clusters"):
        await pool.execute("INSERT INTO surrogate_keys VALUES ($1, 1, 'channel:a', '{[1,4)}')", f"{kind}:{user}")
        for _ in range(3):
            await pool.execute(PAGE_QUERIES["bump_version"], f"{kind}:{user}", "t/0/0", now, None)


async def test_an_erasure_leaves_no_row(person: Person):
    """After it nothing of the user is in any table, and one event says so with the channels that were held."""
    await fill(person)
    await person.stores(person.says("user-erased"))
    pool = person.context.pool
    left = {
        table: await pool.fetchval(f"SELECT count(*) FROM {table} WHERE user_id = $1", person.id) for table in TABLES
    }
    assert dict.fromkeys(TABLES, 0) == left
    assert await pool.fetchval("SELECT count(*) FROM resource_versions WHERE key LIKE '%:' || $1", person.id) == 0
    assert await pool.fetchval("SELECT count(*) FROM surrogate_keys WHERE document LIKE '%:' || $1", person.id) == 0
    last = (await person.published())[-1]
    assert (last["erased"], last["unsubscribed"], last["plan"]) == (True, ["a"], "free")


async def test_versions_grow_over_an_erasure(person: Person):
    """A user who returns starts above every version that was ever served, and above the published revision."""
    await fill(person)
    await person.stores(person.says("user-erased"))
    before = (await person.published())[-1]["revision"]
    await person.stores(person.says("subscription-changed", channel_id="b", subscribed=True))
    bump = await person.context.pool.fetchrow(
        PAGE_QUERIES["bump_version"], f"clusters:{person.id}", "t/0/0", to_datetime(1), None
    )
    assert bump["version"] > 3
    assert (await person.published())[-1]["revision"] > before
    assert (
        await person.channels(), (await person.stats())["plan"], (await person.stats())["cluster_version"],
    ) == (["b"], "free", 0)  # fmt: skip


async def test_a_return_in_the_same_batch_counts(person: Person):
    """An event after the erasure in its batch is stored."""
    await fill(person)
    await person.stores(
        person.says("user-erased"), person.says("subscription-changed", channel_id="z", subscribed=True)
    )
    last = (await person.published())[-1]
    assert (
        await person.channels(), last["erased"], last["subscribed"], last["unsubscribed"],
    ) == (["z"], True, ["z"], ["a"])  # fmt: skip

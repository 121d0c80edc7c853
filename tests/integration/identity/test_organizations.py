"""Organizations on real parts: published plans and roles, their limits in Redis, and the requests that change them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from highwater.connectors.identity import organizations, roles
from highwater.connectors.identity.organizations import Organizations
from highwater.connectors.identity.sessions import token_hash
from highwater.connectors.identity.sink_organizations import OrganizationsSink
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import open_pool, transaction
from highwater.connectors.redis.link import RedisAwayError, RedisLink, open_redis
from highwater.streams.clock import to_ms
from highwater.streams.identity.plans import PLANS
from tests.integration.api_server import Api, Seeds
from tests.integration.connecting import event, fresh, in_transaction, running, surroundings, until
from tests.integration.identity.making import open_session, status_of

PLAN, ROLE = "jobs.plan-changed", "jobs.role-changed"
KEYS = "admin:root,editor:pen,viewer:eye,viewer:ada-key:ada"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
async def context(stack, seeds: Seeds) -> AsyncIterator[ProcessContext]:
    """The shared resources of the sink, on this module's database."""
    async with surroundings(stack) as made, await open_pool(seeds.url, size_max=10) as pool:
        yield ProcessContext(pool, made.client, made.admin, made.registry, made.codec, made.clock)


@pytest.fixture(scope="module")
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    """A link to this module's Redis."""
    made = await open_redis(redis_url)
    yield made
    await made.close()


@pytest.fixture
def sink(context: ProcessContext, link: RedisLink) -> OrganizationsSink:
    """The sink."""
    return OrganizationsSink(context, link, PLANS)


@pytest.fixture
def stored(context: ProcessContext, link: RedisLink) -> Organizations:
    """Limits as the API reads them."""
    return Organizations(link, lambda: context.pool, PLANS)


def _plan(org: str, plan: str, at: int, status: str | None = None, end: int | None = None) -> Event:
    value = {"organization_id": org, "plan": plan, "ts": 1, "subscription_status": status, "period_end": end}
    return event(PLAN, value, offset=at, arrived_ms=at)


def _role(user: str, role: str, at: int) -> Event:
    return event(ROLE, {"user_id": user, "role": role, "ts": 1}, offset=at, arrived_ms=at)


async def _stores(context: ProcessContext, sink: OrganizationsSink, *events: Event) -> list[str]:
    dead: list[DeadLetter] = await in_transaction(context, sink, events)
    return [letter.reason for letter in dead]


# -- plans ---------------------------------------------------------------------------------------------------------------


async def test_who_was_not_told_of_has_the_plan_free(stored: Organizations):
    """And an active subscription."""
    found = await stored.read_limits(fresh("org"))
    assert (found.plan, found.status, found.period_end_ms) == (PLANS["free"], "active", None)


@pytest.mark.requirement("R2.32")
async def test_limits_are_one_hash_for_five_minutes(stored: Organizations, context, sink, redis):
    """R2.32: the fields by their names, all text, read back as they were."""
    org = fresh("org")
    assert await _stores(context, sink, _plan(org, "team", 5, "trialing", 1_700_000_000_000)) == []
    found = await stored.read_limits(org)
    assert (found.plan, found.status, found.period_end_ms) == (PLANS["team"], "trialing", 1_700_000_000_000)
    fields = await redis.hgetall(f"plan_limits:{org}")
    assert orjson.loads(fields.pop("features")) == {"brand_kit": True, "api_access": True, "webhooks": True}
    assert fields == {
        "plan_name": "team", "max_presentations_per_month": "100", "ai_tokens_per_month": "5000000", "max_file_size_mb": "50",
        "storage_gb": "50", "requests_per_minute": "60", "subscription_status": "trialing",
        "period_end": "2023-11-14T22:13:20Z",
    }  # fmt: skip
    assert 290 <= await redis.ttl(f"plan_limits:{org}") <= 300
    assert found == await stored.read_limits(org)


@pytest.mark.requirement("R2.32")
async def test_no_limit_is_said_to_be_unlimited(stored: Organizations, context, sink, redis):
    """R2.32: number or 'unlimited'."""
    org = fresh("org")
    assert await _stores(context, sink, _plan(org, "enterprise", 5)) == []
    assert (await stored.read_limits(org)).plan == PLANS["enterprise"]
    found = await redis.hmget(f"plan_limits:{org}", "max_presentations_per_month", "ai_tokens_per_month")
    assert found == ["unlimited"] * 2
    assert (await stored.read_limits(org)).plan == PLANS["enterprise"]


@pytest.mark.requirement("R2.33")
async def test_limits_are_read_from_redis_alone(stored: Organizations, context, sink):
    """R2.33: a row that changes behind the sink's back is not seen while there is a copy."""
    org = fresh("org")
    assert (await stored.read_limits(org)).plan.name == "free"
    await context.pool.execute(
        "INSERT INTO organizations VALUES ($1, 'pro', 'active', NULL, 1, 'jobs.plan-changed/0/1', now())", org
    )
    assert (await stored.read_limits(org)).plan.name == "free"
    assert await _stores(context, sink, _plan(org, "team", 5)) == []
    assert (await stored.read_limits(org)).plan.name == "team"


async def test_the_last_word_counts_in_the_order_of_the_brokers_time(stored: Organizations, context, sink):
    """In a batch and over batches; an omitted field stays; a repeated or late event changes nothing."""
    org = fresh("org")
    words = [_plan(org, "pro", 5, "past_due", 9), _plan(org, "team", 7), _plan(org, "free", 6, "active")]
    assert await _stores(context, sink, *words) == []
    found = await stored.read_limits(org)
    assert (found.plan.name, found.status, found.period_end_ms) == ("team", "active", 9)
    assert await _stores(context, sink, _plan(org, "free", 4, "suspended")) == []
    assert found == await stored.read_limits(org)
    assert await _stores(context, sink, _plan(org, "enterprise", 8, "suspended")) == []
    found = await stored.read_limits(org)
    assert (found.plan.name, found.status, found.period_end_ms) == ("enterprise", "suspended", 9)


async def test_words_at_once_end_as_the_last_one(stored: Organizations, context, link):
    """Batches of the same organizations at once, in any order, neither block each other nor lose the last word."""
    names = [fresh("org") for _ in range(5)]
    plans = ["free", "pro", "team", "enterprise"]
    work = []
    for at in range(40):
        order = names[at % 5 :] + names[: at % 5]
        said = [_plan(name, plans[at % 4], at + 1) for name in order]
        work.append(_stores(context, OrganizationsSink(context, link, PLANS), *said))
    await asyncio.gather(*reversed(work))
    assert {(await stored.read_limits(name)).plan.name for name in names} == {"enterprise"}


async def test_an_earlier_word_that_is_stored_at_the_same_time_does_not_win(stored: Organizations, context, sink):
    """It waits for the transaction of the later one, and finds it."""
    org = fresh("org")
    async with transaction(context.pool) as tx:
        await organizations.store_words(tx, [organizations.plan_word(_plan(org, "team", 5))], 1)
        earlier = asyncio.create_task(_stores(context, sink, _plan(org, "free", 4)))
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await until(lambda: tx.fetchval(query), "the earlier one waits")
    assert await earlier == []
    assert (await stored.read_limits(org)).plan.name == "team"


async def test_bad_words_are_dead_and_those_around_them_count(stored: Organizations, context, sink):
    """An unknown plan, status or role is refused by name."""
    org = fresh("org")
    bad = [_plan(org, "gold", 9), _plan(org, "pro", 9, "happy"), _role(fresh("user"), "king", 9)]
    assert await _stores(context, sink, *bad, _plan(org, "team", 5)) == ["unknown_plan", "bad_status", "bad_role"]
    assert (await stored.read_limits(org)).plan.name == "team"


async def test_a_copy_that_was_begun_before_a_change_is_not_stored(stored: Organizations, context, sink, monkeypatch):
    """A reader that has the old row while the new one is committed and the copy taken away leaves no old copy behind."""
    org, reads = fresh("org"), asyncio.Event()
    read, goes_on = stored._of_postgres, asyncio.Event()

    async def slow(organization_id: str) -> Any:
        found = await read(organization_id)
        reads.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(stored, "_of_postgres", slow)
    reader = asyncio.create_task(stored.read_limits(org))
    await reads.wait()
    assert await _stores(context, sink, _plan(org, "team", 5)) == []
    goes_on.set()
    assert (await reader).plan.name == "free"
    assert (await stored.read_limits(org)).plan.name == "team"


async def test_without_redis_limits_come_from_postgresql(context, sink, stored: Organizations):
    """And a change is stored there at once, though its event waits for Redis."""
    org = fresh("org")
    away = RedisLink("redis://127.0.0.1:1/0")
    try:
        with pytest.raises(RedisAwayError):
            await _stores(context, OrganizationsSink(context, away, PLANS), _plan(org, "team", 5))
        assert (await Organizations(away, lambda: context.pool, PLANS).read_limits(org)).plan.name == "team"
    finally:
        await away.close()
    assert await _stores(context, sink, _plan(org, "team", 5)) == []
    assert (await stored.read_limits(org)).plan.name == "team"


# -- roles ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.9")
async def test_a_role_that_is_told_ends_sessions_and_caps_new_ones(api: Api, admin, context, sink):
    """R2.9 by the log: the next request is 401, and later sessions have at most that role."""
    user = fresh("user")
    token = (await open_session(admin, user, role="admin"))["session_id"]
    assert await _stores(context, sink, _role(user, "viewer", 5)) == []
    assert await status_of(api, token, "/api/channels") == 401
    assert (await admin.post("/api/sessions", json={"user_id": user, "role": "editor"})).status_code == 403
    assert (await open_session(admin, user))["role"] == "viewer"


async def test_a_word_that_is_known_ends_no_session_made_since(api: Api, admin, context, sink):
    """A redelivery, and an earlier word that comes late, leave new sessions and the role alone."""
    user = fresh("user")
    assert await _stores(context, sink, _role(user, "editor", 5)) == []
    token = (await open_session(admin, user, role="editor"))["session_id"]
    assert await _stores(context, sink, _role(user, "editor", 5)) == []
    assert await _stores(context, sink, _role(user, "viewer", 4)) == []
    assert await status_of(api, token, "/api/channels") == 200
    assert (await open_session(admin, user))["role"] == "editor"


async def test_a_word_that_redis_missed_is_told_again(api: Api, admin, context, sink, redis):
    """The worker that stored it died before Redis had it: the redelivery voids earlier sessions, and no later ones."""
    user = fresh("user")
    old = (await open_session(admin, user, role="editor"))["session_id"]
    kept = await redis.hgetall(f"session:{token_hash(old)}")
    assert await _stores(context, sink, _role(user, "viewer", 5)) == []
    await redis.delete(f"revoked_at:{user}")
    await redis.hset(f"session:{token_hash(old)}", mapping=kept)
    new = (await open_session(admin, user))["session_id"]
    assert await status_of(api, old, "/api/channels") == 200  # as if Redis had never received it
    assert await _stores(context, sink, _role(user, "viewer", 5)) == []
    assert [await status_of(api, token, "/api/channels") for token in (old, new)] == [401, 200]


async def test_of_a_user_in_a_batch_the_last_role_counts(admin, context, sink):
    """In the order of the broker's time."""
    user = fresh("user")
    assert (
        await _stores(context, sink, _role(user, "admin", 5), _role(user, "editor", 7), _role(user, "viewer", 6)) == []
    )
    assert (await open_session(admin, user))["role"] == "editor"


@pytest.mark.requirement("R2.10")
async def test_no_session_made_during_a_change_of_role_survives_with_the_old_one(api: Api, admin, context, link):
    """R2.10: a session that was created while roles changed is void or has the last role."""
    user = fresh("user")
    made: list[dict[str, Any]] = []

    async def make() -> None:
        made.extend([await open_session(admin, user) for _ in range(15)])

    async def change() -> None:
        for at in range(1, 12):
            one = OrganizationsSink(context, link, PLANS)
            assert await _stores(context, one, _role(user, "editor" if at % 2 else "viewer", at)) == []

    await asyncio.gather(make(), make(), change())
    alive = [one["role"] for one in made if await status_of(api, one["session_id"], "/api/channels") == 200]
    assert set(alive) <= {"editor"}
    assert await _stores(context, OrganizationsSink(context, link, PLANS), _role(user, "viewer", 99)) == []
    assert {await status_of(api, one["session_id"], "/api/channels") for one in made} == {401}


async def test_the_role_of_an_erased_user_is_void(context, sink):
    """A role from before the erasure is not restored by reading the log again."""
    user = fresh("user")
    await context.pool.execute(
        "INSERT INTO user_erasures (user_hash, erased_ms) VALUES (sha256(convert_to($1, 'UTF8')), 10)", user
    )
    assert await _stores(context, sink, _role(user, "admin", 10)) == []
    assert await context.pool.fetchval("SELECT count(*) FROM user_roles WHERE user_id = $1", user) == 0


# -- the API -------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.34")
async def test_a_plan_is_changed_at_once_and_its_sink_finds_it_done(api: Api, admin, context, sink, link):
    """R2.34: the next read has it, before any sink has read the event; the event changes nothing any more."""
    org = fresh("org")
    assert (await admin.get(f"/api/organizations/{org}/limits")).json()["plan_name"] == "free"
    body = {"plan": "team", "subscription_status": "trialing", "period_end": "2026-12-01T00:00:00Z"}
    response = await admin.put(f"/api/organizations/{org}/plan", json=body)
    assert response.status_code == 202, response.text
    (position,) = response.json()["positions"]
    assert position.startswith(f"{PLAN}/")
    async with api.client("eye") as viewer:
        found = (await viewer.get(f"/api/organizations/{org}/limits")).json()
    assert found == {
        "organization_id": org, "plan_name": "team", "max_presentations_per_month": 100, "ai_tokens_per_month": 5_000_000,
        "max_file_size_mb": 50, "storage_gb": 50, "requests_per_minute": 60,
        "features": {"brand_kit": True, "api_access": True, "webhooks": True},
        "subscription_status": "trialing", "period_end": "2026-12-01T00:00:00Z",
    }  # fmt: skip
    before = await context.pool.fetchrow("SELECT * FROM organizations WHERE organization_id = $1", org)
    assert (before["position"], before["arrived_ms"] > 1_700_000_000_000) == (position, True)
    async with running(BatchConsumer(sink, context)):
        headers = {"X-Min-Position": position, "X-Max-Wait-Ms": "20000"}
        response = await admin.get(f"/api/organizations/{org}/limits", headers=headers)
        assert (response.status_code, response.json()) == (200, found)
    assert before == await context.pool.fetchrow("SELECT * FROM organizations WHERE organization_id = $1", org)


async def test_a_role_is_changed_at_once_and_its_sink_ends_nothing_more(api: Api, admin, context, sink):
    """The number of sessions ended is the request's; a session made after it outlives the sink's reading of the event."""
    user = fresh("user")
    old = [(await open_session(admin, user))["session_id"] for _ in range(2)]
    async with running(BatchConsumer(sink, context)):
        for role in ("editor", "viewer", "editor"):
            response = await admin.put(f"/api/users/{user}/role", json={"role": role})
            assert response.json()["revoked"] == len(old)
            assert {await status_of(api, token, "/api/channels") for token in old} == {401}
            old = [(await open_session(admin, user))["session_id"]]
            (position,) = response.json()["positions"]
            topic, partition, offset = position.split("/")

            async def is_read(partition: int = int(partition), offset: int = int(offset), topic: str = topic) -> bool:
                query = "SELECT next FROM positions WHERE \"group\" = 'organizations' AND topic = $1 AND partition = $2"
                return (await context.pool.fetchval(query, topic, partition) or 0) > offset

            await until(is_read, "the sink has read it")
            assert await status_of(api, old[0], "/api/channels") == 200
    row = await context.pool.fetchrow("SELECT * FROM user_roles WHERE user_id = $1", user)
    assert (row["role"], row["position"]) == ("editor", position)


async def test_a_session_carries_the_plan_of_its_organization(admin, context, sink):
    """Unless one is given; without an organization it is free."""
    org = fresh("org")
    assert await _stores(context, sink, _plan(org, "team", 5)) == []
    plans = [
        (await open_session(admin, fresh("user"), **given))["plan"]
        for given in (
            {"organization_id": org},
            {"organization_id": org, "plan": "pro"},
            {"organization_id": fresh("org")},
            {},
        )
    ]
    assert plans == ["team", "pro", "free", "free"]
    response = await admin.post("/api/sessions", json={"user_id": "ada", "organization_id": "a\u0000b"})
    assert (response.status_code, response.json()["field"]) == (422, "organization_id")


async def test_a_session_reads_its_own_organization_alone(api: Api, admin):
    """Another one's limits are 403; an admin's session reads all."""
    org, other = fresh("org"), fresh("org")
    token = (await open_session(admin, fresh("user"), organization_id=org))["session_id"]
    async with api.client(token) as client:
        statuses = [(await client.get(f"/api/organizations/{name}/limits")).status_code for name in (org, other)]
    assert statuses == [200, 403]


async def test_a_session_submits_jobs_of_its_own_organization_alone(api: Api, admin):
    """By the door of events too: another one's limits are not its to use up."""
    org, user = fresh("org"), fresh("user")
    token = (await open_session(admin, user, organization_id=org, role="editor"))["session_id"]
    job = {"kind": "generation", "user_id": user, "args": '{"query": "x"}', "ts": 1}
    async with api.client(token) as client:
        statuses = [
            (await client.post("/api/events/jobs.job-submitted", json={**job, "job_id": fresh_id, **named})).status_code
            for fresh_id, named in (
                (str(uuid.uuid4()), {"organization_id": org}),
                (str(uuid.uuid4()), {"organization_id": fresh("org")}),
                (str(uuid.uuid4()), {"organization_id": org, "user_id": "bob"}),
                (str(uuid.uuid4()), {"organization_id": org, "kind": "dream"}),
                (str(uuid.uuid4()), {"organization_id": org, "args": "{"}),
            )
        ]
    assert statuses == [202, 403, 403, 422, 422]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"plan": "gold"}, "plan"),
        ({}, "plan"),
        ({"plan": "pro", "subscription_status": "happy"}, "subscription_status"),
        ({"plan": "pro", "period_end": "soon"}, "period_end"),
        ({"plan": "pro", "period_end": "2026-13-01"}, "period_end"),
        ({"plan": "pro", "price": 0}, "price"),
    ],
)
async def test_a_bad_change_of_plan_is_refused_by_its_field(admin, body: dict[str, Any], field: str):
    """422, and nothing is published."""
    response = await admin.put(f"/api/organizations/{fresh('org')}/plan", json=body)
    assert response.status_code == 422, response.text
    assert response.json()["field"] == field


async def test_plans_and_roles_are_an_admins(api: Api, admin):
    """By their own requests and by the door of events."""
    plan = {"organization_id": "acme", "plan": "enterprise", "ts": 1}
    role = {"user_id": "ada", "role": "admin", "ts": 1}
    for token in ("pen", "eye", "ada-key"):
        async with api.client(token) as client:
            answers = [
                await client.put("/api/organizations/acme/plan", json={"plan": "enterprise"}),
                await client.put("/api/users/ada/role", json={"role": "admin"}),
                await client.post(f"/api/events/{PLAN}", json=plan),
                await client.post(f"/api/events/{ROLE}", json=role),
            ]
            assert [answer.status_code for answer in answers] == [403] * 4, token
    for topic, value in ((PLAN, {**plan, "plan": "gold"}), (ROLE, {**role, "role": "king"})):
        response = await admin.post(f"/api/events/{topic}", json=value)
        assert response.status_code == 422


async def test_a_revocation_by_a_word_is_that_of_postgresql(context, link):
    """The time in Redis, by which sessions are void, is the one that is stored."""
    user = fresh("user")
    async with transaction(context.pool) as tx:
        word = roles.RoleWord("viewer", roles.Cause(5, f"{ROLE}/0/5"))
        (revocation,) = await roles.store_words(tx, {user: word}, HOUR_MS)
    row = await context.pool.fetchrow("SELECT * FROM session_revocations WHERE user_id = $1", user)
    assert (revocation.revoked_ms, revocation.is_new, to_ms(row["revoked_at"])) == (HOUR_MS, True, HOUR_MS)

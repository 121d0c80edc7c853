"""Sessions over real Redis and PostgreSQL: made, renewed, ended, revoked (R2.4 to R2.10)."""

from __future__ import annotations

import asyncio

import pytest

from highwater.connectors.identity.sessions import token_hash
from tests.integration.api_server import Api, Seeds, eventually, running_api
from tests.integration.identity.making import open_session, status_of

KEYS = "admin:root,editor:pen,viewer:eye,viewer:ada-key:ada"


@pytest.mark.requirement("R2.4")
async def test_a_session_is_its_users_bearer_token(api: Api, admin, redis) -> None:
    """A session reads its own user and no other; Redis holds the fields of R2.4 and a day to live, renewed by each request."""
    made = await open_session(admin, "sue", email="s@x.org", organization_id="org", plan="pro", role="editor")
    name = f"session:{token_hash(made['session_id'])}"
    assert set(await redis.hgetall(name)) == {
        "user_id", "organization_id", "role", "email", "plan", "created_at", "last_active", "ip",
    }  # fmt: skip
    await redis.expire(name, 100)
    await redis.expire("user_sessions:sue", 100)
    assert await status_of(api, made["session_id"], "/api/users/sue/feed") == 200
    assert await redis.ttl(name) > 86_000
    assert await redis.ttl("user_sessions:sue") > 86_000
    assert await status_of(api, made["session_id"], "/api/users/bob/feed") == 403
    assert made["expires_at"].endswith("Z")


async def test_redis_holds_no_token(api: Api, admin, redis) -> None:
    """Names and values have the hash of a token only; a session that is stored under its token, as once, is not accepted."""
    token = (await open_session(admin, "tea"))["session_id"]
    names = [name async for name in redis.scan_iter("*")]
    assert f"session:{token_hash(token)}" in names
    stored = await redis.hgetall(f"session:{token_hash(token)}")
    assert [name for name in names if token in name] == []
    assert token not in str(stored) + str(await redis.smembers("user_sessions:tea"))
    old = "hws_" + "o" * 43
    await redis.hset(f"session:{old}", mapping=stored)
    assert await status_of(api, old, "/api/channels") == 401


@pytest.mark.requirement("R2.5")
async def test_a_session_ends_a_day_after_its_last_request(api: Api, admin) -> None:
    """The stored time decides: a request within the day renews it, one after the day is 401."""
    token = (await open_session(admin, "tim"))["session_id"]
    try:
        api.clock.offset_ms += 80_000_000
        assert await status_of(api, token, "/api/users/tim/feed") == 200
        api.clock.offset_ms += 80_000_000
        assert await status_of(api, token, "/api/users/tim/feed") == 200
        api.clock.offset_ms += 86_400_000
        assert await status_of(api, token, "/api/users/tim/feed") == 401
    finally:
        api.clock.offset_ms = 0


async def test_who_may_make_which_session(api: Api) -> None:
    """A role is never above the creator's; a user's own key makes sessions of that user only and of no organization."""
    cases = [
        ("pen", {"user_id": "x", "role": "admin"}, 403),
        ("pen", {"user_id": "x", "role": "editor"}, 201),
        ("pen", {"user_id": "x", "role": "assistant"}, 403),  # enters results, which an editor may not
        ("root", {"user_id": "x", "role": "assistant"}, 201),
        ("eye", {"user_id": "x"}, 403),
        ("ada-key", {"user_id": "ada"}, 201),
        ("ada-key", {"user_id": "ada", "role": "editor"}, 403),
        ("ada-key", {"user_id": "bob"}, 403),
        ("ada-key", {"user_id": "ada", "organization_id": "acme"}, 403),
        ("ada-key", {"user_id": "ada", "plan": "enterprise"}, 403),
        ("pen", {"user_id": "x", "organization_id": "acme", "plan": "team"}, 201),
        ("root", {"user_id": "x", "role": "king"}, 422),
        ("root", {"user_id": ""}, 422),
        ("root", {}, 422),
    ]
    for token, body, status in cases:
        async with api.client(token) as client:
            assert (await client.post("/api/sessions", json=body)).status_code == status, (token, body)
    async with api.client("ada-key") as ada:
        token = (await open_session(ada, "ada"))["session_id"]
    async with api.client(token) as session:
        assert (await session.post("/api/sessions", json={"user_id": "ada"})).status_code == 403


@pytest.mark.requirement("R2.7")
async def test_logout_ends_one_session(api: Api, admin, redis) -> None:
    """DELETE of a session ends that one, takes it off the list, and leaves the user's others; a stranger's is 404."""
    one, two = [(await open_session(admin, "una"))["session_id"] for _ in range(2)]
    async with api.client("ada-key") as stranger:
        assert (await stranger.delete(f"/api/sessions/{one}")).status_code == 404
    async with api.client(one) as own:
        assert (await own.delete(f"/api/sessions/{one}")).status_code == 204
    assert await status_of(api, one, "/api/channels") == 401
    assert await status_of(api, two, "/api/channels") == 200
    assert await redis.smembers("user_sessions:una") == {token_hash(two)}


@pytest.mark.requirement("R2.6", "R2.8")
async def test_revoking_ends_all_and_says_how_many(api: Api, admin) -> None:
    """After DELETE of a user's sessions each gets 401 at its next request, and a new one works."""
    tokens = [(await open_session(admin, "vic"))["session_id"] for _ in range(3)]
    response = await admin.delete("/api/users/vic/sessions")
    assert response.json()["revoked"] == 3
    assert [await status_of(api, token, "/api/channels") for token in tokens] == [401, 401, 401]
    assert await status_of(api, (await open_session(admin, "vic"))["session_id"], "/api/channels") == 200


@pytest.mark.requirement("R2.9")
async def test_a_change_of_role_ends_sessions_and_caps_new_ones(api: Api, admin) -> None:
    """PUT of a role revokes at once, and later sessions have at most that role (R2.9)."""
    token = (await open_session(admin, "wes", role="admin"))["session_id"]
    response = await admin.put("/api/users/wes/role", json={"role": "viewer"})
    answer = response.json()
    (position,) = answer.pop("positions")
    assert answer == {"user_id": "wes", "role": "viewer", "revoked": 1}
    assert position.startswith("jobs.role-changed/")
    assert await status_of(api, token, "/api/channels") == 401
    assert (await admin.post("/api/sessions", json={"user_id": "wes", "role": "editor"})).status_code == 403
    assert (await open_session(admin, "wes"))["role"] == "viewer"


async def test_an_assistant_is_made_by_administrators(api: Api, admin) -> None:
    """A role of its own: it is stored, given to sessions, and neither includes an editor nor comes with one."""
    assert (await admin.put("/api/users/ref/role", json={"role": "assistant"})).is_success
    assert (await open_session(admin, "ref"))["role"] == "assistant"
    assert (await admin.post("/api/sessions", json={"user_id": "ref", "role": "editor"})).status_code == 403
    async with api.client("pen") as editor:
        assert (await open_session(editor, "ref"))["role"] == "viewer"


async def test_roles_that_change_at_once_end_as_the_last_event_says(api: Api, admin, seeds: Seeds) -> None:
    """However requests overtake each other, the stored role is that of the highest position, and older sessions are void."""
    tokens = [(await open_session(admin, "abe"))["session_id"] for _ in range(3)]
    roles = ["viewer", "editor", "admin"] * 4
    answers = await asyncio.gather(*(admin.put("/api/users/abe/role", json={"role": role}) for role in roles))
    said = {int(answer.json()["positions"][0].rsplit("/", 1)[1]): answer.json() for answer in answers}
    assert sum(answer["revoked"] for answer in said.values()) == 3
    (row,) = await seeds.run("SELECT role, position FROM user_roles WHERE user_id = 'abe'")
    assert (row["role"], row["position"]) == (said[max(said)]["role"], said[max(said)]["positions"][0])
    assert {await status_of(api, token, "/api/channels") for token in tokens} == {401}


@pytest.mark.requirement("R2.10")
async def test_no_session_of_before_a_revocation_survives_it(api: Api, admin) -> None:
    """Sessions made while revocations run: after the last revocation only those made after it are alive (R2.10)."""
    tokens: list[str] = []

    async def make() -> None:
        tokens.extend([(await open_session(admin, "xia"))["session_id"] for _ in range(15)])

    async def revoke() -> None:
        for _ in range(10):
            assert (await admin.delete("/api/users/xia/sessions")).status_code == 200

    await asyncio.gather(make(), make(), revoke())
    await admin.delete("/api/users/xia/sessions")
    assert {await status_of(api, token, "/api/channels") for token in tokens} == {401}


async def test_a_session_that_redis_kept_is_void_by_its_time(api: Api, admin, redis) -> None:
    """A session that escaped deletion, created at or before the revocation, is still refused."""
    token = (await open_session(admin, "yan"))["session_id"]
    name = f"session:{token_hash(token)}"
    kept = await redis.hgetall(name)
    assert kept["user_id"] == "yan"
    await admin.delete("/api/users/yan/sessions")
    await redis.hset(name, mapping=kept)
    assert await status_of(api, token, "/api/channels") == 401


async def test_without_redis_sessions_are_503_and_keys_work(stack, seeds: Seeds) -> None:
    """With Redis unavailable, a session is neither accepted nor refused, and API keys still work."""
    settings = stack.settings(DATABASE_URL=seeds.url, REDIS_URL="redis://127.0.0.1:1/0", HIGHWATER_API_KEYS=KEYS)
    with running_api(settings, is_awaited=False) as running:
        async with running.client("root") as http:

            async def is_served() -> bool:
                return (await http.get("/api/channels")).status_code == 200

            await eventually(is_served, "PostgreSQL is reached")
            assert (await http.post("/api/sessions", json={"user_id": "zoe"})).status_code == 503
            assert (await http.delete("/api/users/zoe/sessions")).status_code == 503
        assert await status_of(running, "hws_abc", "/api/channels") == 503
        assert await status_of(running, "wrong", "/api/channels") == 401


async def test_a_revocation_without_redis_holds_once_redis_is_back(own_settings, seeds: Seeds, redis) -> None:
    """A revocation that was stored while Redis was unavailable voids its remaining sessions when a process reconnects."""
    settings = own_settings(HIGHWATER_API_KEYS=KEYS)
    with running_api(settings) as before:
        async with before.client("root") as http:
            token = (await open_session(http, "zed"))["session_id"]
    await seeds.run("INSERT INTO session_revocations VALUES ('zed', now() + interval '1 second')")
    with running_api(settings) as after:
        assert await status_of(after, token, "/api/channels") == 401

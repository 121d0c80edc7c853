"""The log of refused and privileged actions: complete for actions, bounded for attempts, and without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from highwater.api.core import services as api_services
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnavailableError
from highwater.schemas.security import ACTION_RECORDED
from highwater.streams.identity.refusals import ADDRESS_MAX
from tests.conftest import Stack
from tests.integration.api_server import Api, Seeds, running_api
from tests.integration.commands import run, tail
from tests.integration.connecting import fresh, until
from tests.integration.records import records

KEYS = "admin:root-key,editor:pen-key,viewer:eye-key,viewer:ada-key:ada"


def actions(stack: Stack, codec: Codec, is_wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The records that are wanted, in their order."""
    found = [codec.decode(ACTION_RECORDED, one.value()) for one in records(stack, ACTION_RECORDED, lambda _: True)]
    return [dict(one) for one in found if is_wanted(dict(one))]


async def of_request(stack: Stack, codec: Codec, answer: Any, count: int) -> list[dict[str, Any]]:
    """The records of a request, once there are enough."""
    request_id = answer.headers["x-request-id"]

    async def look() -> list[dict[str, Any]] | None:
        found = actions(stack, codec, lambda one: one["request_id"] == request_id)
        return found if len(found) >= count else None

    return list(await until(look, f"{count} records of {request_id}"))


async def test_a_refusal_says_who_was_refused_what(guarded: Api, stack: Stack, codec: Codec):
    """A viewer at an admin's route: 403, and a record with route, resource, role, user and key, the key not readable."""
    answer = await guarded.post("/api/users/bob/rebuild", {}, "ada-key")
    assert answer.status_code == 403
    (told,) = await of_request(stack, codec, answer, 1)
    assert {
        "action": "POST /api/users/{user}/rebuild",
        "outcome": "refused",
        "source": "api",
        "status": 403,
        "resource": "/api/users/bob/rebuild",
        "role": "viewer",
        "user_id": "ada",
        "address": "127.0.0.1",
        "count": 1,
    }.items() <= told.items()
    assert told["key_id"]
    assert "ada-key" not in json.dumps(told, default=str)


async def test_a_wrong_key_and_a_wrong_sign_in_are_recorded(guarded: Api, stack: Stack, codec: Codec):
    """401 of the API and of the dashboard's form; neither contains the key or the query."""
    tried = fresh("tried")
    asked = await guarded.get("/api/users/ada/feed", tried, params={"token": tried})
    async with guarded.client() as client:
        signed_in = await client.post("/login", data={"key": tried})
    assert (asked.status_code, signed_in.status_code) == (401, 401)
    (api_told,) = await of_request(stack, codec, asked, 1)
    (form_told,) = await of_request(stack, codec, signed_in, 1)
    assert (api_told["status"], api_told["role"], api_told["resource"]) == (401, None, "/api/users/ada/feed")
    assert (form_told["status"], form_told["resource"]) == (401, "/login")
    assert tried.encode() not in b"".join(one.value() for one in records(stack, ACTION_RECORDED, lambda _: True))


async def test_a_privileged_action_is_recorded_before_its_effect_and_after_it(
    guarded: Api, stack: Stack, codec: Codec, environment: dict[str, str]
):
    """An erasure: permitted stands in the log before the event that erases, done follows; `tail` shows both."""
    user = fresh("erased")
    async with guarded.client("root-key") as client:
        answer = await client.delete(f"/api/users/{user}/data")
    assert answer.status_code == 202, answer.text
    permitted, done = await of_request(stack, codec, answer, 2)
    assert (permitted["outcome"], done["outcome"], done["status"]) == ("permitted", "done", 202)
    assert permitted["role"] == "admin"
    (noted,) = [
        r for r in records(stack, ACTION_RECORDED, lambda _: True) if user.encode() in r.value() and _is(codec, r)
    ]
    (erasure,) = records(stack, "feeds.user-erased", lambda key: key == user)
    assert noted.timestamp()[1] <= erasure.timestamp()[1]
    shown = [one["value"] for one in tail(environment, ACTION_RECORDED, 50)]
    assert [one["outcome"] for one in shown if one["resource"] == f"/api/users/{user}/data"] == ["permitted", "done"]


def _is(codec: Codec, record: Any) -> bool:
    return bool(codec.decode(ACTION_RECORDED, record.value())["outcome"] == "permitted")


async def test_reading_and_what_everybody_may_do_is_not_recorded(guarded: Api, stack: Stack, codec: Codec):
    """No record of reads, an admin's included, nor of an editor's writes."""
    read = await guarded.get("/api/league/admin/stats", "root-key")
    written = await guarded.post("/api/users/ada/activity", {}, "pen-key")
    assert [("x-request-id" in one.headers, one.status_code < 400) for one in (read, written)] == [(False, True)] * 2


async def test_the_id_of_a_session_is_not_in_the_log(guarded: Api, stack: Stack, codec: Codec):
    """The path of a log-out holds the token; a record of it does not."""
    made = await guarded.post("/api/sessions", {"user_id": "ada"}, "root-key")
    session = made.json()["session_id"]
    async with guarded.client("wrong") as client:
        answer = await client.delete(f"/api/sessions/{session}")
    assert answer.status_code == 401
    (told,) = await of_request(stack, codec, answer, 1)
    assert told["resource"] == "/api/sessions/hws_…"
    assert session not in json.dumps(actions(stack, codec, lambda _: True), default=str)


async def test_a_flood_leaves_a_handful_of_records(own_settings: Any, stack: Stack, codec: Codec):
    """150 wrong keys of one address, most refused unread: twenty records a minute, and the others in one with their count."""
    before = len(actions(stack, codec, lambda _: True))
    with running_api(own_settings(HIGHWATER_API_KEYS=KEYS)) as running:
        async with running.client("wrong") as client:
            statuses = {(await client.get("/api/users/ada/feed")).status_code for _ in range(150)}
    assert statuses == {401, 429}
    told = actions(stack, codec, lambda _: True)[before:]
    assert sum(one["count"] for one in told) == 150
    assert len(told) <= 2 * (ADDRESS_MAX + 1)  # the minute may have ended meanwhile
    assert {(one["outcome"], one["address"]) for one in told} == {
        ("refused", "127.0.0.1"), ("suppressed", "127.0.0.1"),
    }  # fmt: skip


async def test_without_kafka_the_outbox_takes_the_record_and_without_both_nothing_is_done(
    guarded: Api, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
):
    """A privileged action whose record cannot be stored is a 503 and has no effect."""

    async def fail(*_: Any) -> None:
        raise UnavailableError("gone")

    async def waiting() -> bool:
        return len(await seeds.run("SELECT 1 FROM outbox WHERE topic = $1", ACTION_RECORDED)) == 2

    user = fresh("u")
    monkeypatch.setattr(guarded.app.state.services.publisher, "record", fail)
    async with guarded.client("root-key") as client:
        assert (await client.delete(f"/api/users/{user}/sessions")).status_code == 200
        await until(waiting, "permitted and done wait in the outbox")
        monkeypatch.setattr(api_services.outbox, "add", fail)
        assert (await client.delete(f"/api/users/{user}-b/sessions")).status_code == 503
    revoked = await seeds.run("SELECT user_id FROM session_revocations WHERE user_id LIKE $1", f"{user}%")
    assert [row["user_id"] for row in revoked] == [user]


def test_a_command_is_recorded_before_and_after_it(stack: Stack, codec: Codec, environment: dict[str, str]):
    """`highwater dlq park` leaves who ran it, with what, and that it failed: nothing is stopped there."""
    done = run(environment, "dlq", "park", "views", "jobs.view-recorded", "--partition", "0")
    assert done.returncode == 1
    told = actions(stack, codec, lambda one: one["resource"] == "views jobs.view-recorded/0")
    assert [(one["outcome"], one["source"], one["action"]) for one in told] == [
        ("permitted", "cli", "dlq park"),
        ("failed", "cli", "dlq park"),
    ]
    assert all("@" in one["by"] for one in told)

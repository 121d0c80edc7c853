"""Every operation of the API, by every kind of principal, on its own resources, on others', and on missing ones.

The expected status is computed here from each route's declaration by independent rules, written as sentences of
`docs/authorization.md`; nothing of `api/core/guard.py` is used.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from highwater.api.app import create_app
from highwater.api.core.access import Access, OwnedBy
from highwater.api.core.auth import ApiKey, Authenticator, Principal, Role, parse_api_keys
from highwater.api.core.authorization import PAGE, SOCKET, operations
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.memberships import foreign_standings, membership
from highwater.schemas.errors import UnavailableError
from highwater.streams.settings import Settings
from tests.integration.api_server import NOW, MovableClock, Seeds, wait_until
from tests.integration.chunks.making import store_ingest, store_namespace
from tests.integration.connecting import until
from tests.integration.core.asking import Answer, ask, connect
from tests.integration.jobs.watching import store_job
from tests.integration.queries.pipeline import store_run

# The owner of the named resource: A, B, or none.
PLACES = ("a", "b", "none")
USERS = {place: str(uuid.uuid4()) for place in PLACES}
ORGS = {"a": "acme", "b": "bolt", "none": "no-such-org"}
BLOBS = {place: digit * 64 for place, digit in zip(PLACES, "abc", strict=True)}
# An open namespace, a closed one, and an unknown one.
SPACES = {"a": "docs", "b": "closed", "none": "no-such-space"}
LIMITED = ApiKey(b"feeds-only", Principal(Role.ADMIN, key_id="limited", scopes=frozenset({"feeds"})))
# Fewer than there are connections to Redis (8): on a busy machine a request that waits for one may be refused with 503.
AT_ONCE = 6


class Who(NamedTuple):
    """A kind of principal. `token` None: it sends none; `role` None: it is anonymous."""

    name: str
    token: str | None
    role: Role | None
    user: str | None = None
    org: str | None = None
    is_session: bool = False
    scopes: frozenset[str] | None = None
    are_leagues_public: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether it is bound to a user or an organization; an admin reaches all."""
        return self.role is not Role.ADMIN and (self.user is not None or self.org is not None)


def _keys() -> Iterator[Who]:
    for role in Role:
        yield Who(f"{role.label}", role.label, role)
        yield Who(f"{role.label} of A", f"{role.label}-a", role, "a", "a")
        yield Who(f"{role.label} of B", f"{role.label}-b", role, "b", "b")
        yield Who(f"{role.label} of A's organization", f"{role.label}-org", role, None, "a")
        yield Who(f"{role.label} of A without organization", f"{role.label}-user", role, "a")


KEYS = tuple(_keys())
SESSIONS = (
    Who("session of A", "", Role.VIEWER, "a", "a", is_session=True),
    Who("editor's session of A", "", Role.EDITOR, "a", "a", is_session=True),
    Who("assistant's session of A", "", Role.ASSISTANT, "a", "a", is_session=True),
)
NOBODY = tuple(
    Who(f"{name}{more}", token, None, are_leagues_public=are_leagues_public)
    for name, token in (("wrong key", "wrong"), ("no key", None))
    for more, are_leagues_public in (("", False), (" where leagues are public", True))
)
OPEN = Who("open", None, Role.ADMIN)
OF_FEEDS = Who("key limited to feeds", "feeds-only", Role.ADMIN, scopes=frozenset({"feeds"}))


def _setting(who: Who) -> str:
    bound = f":{USERS[who.user] if who.user else ''}" if who.user or who.org else ""
    assert who.role is not None
    return f"{who.role.label}:{who.token}{bound}" + (f":{ORGS[who.org]}" if who.org else "")


# -- expected status --------------------------------------------------------------------------------------------------------

OF_USERS = {
    OwnedBy.USER,
    OwnedBy.SUBMISSION,
    OwnedBy.QUERY,
    OwnedBy.EVENT,
    OwnedBy.KEY,
    OwnedBy.JOB,
    OwnedBy.DECK,
    OwnedBy.RUN,
    OwnedBy.SESSION,
}
OF_ORGS = {OwnedBy.ORGANIZATION, OwnedBy.LISTED, OwnedBy.SUBMISSION, OwnedBy.JOB, OwnedBy.DECK, OwnedBy.BLOB}
SECRET = {OwnedBy.JOB, OwnedBy.DECK, OwnedBy.RUN, OwnedBy.BLOB, OwnedBy.INGEST, OwnedBy.SESSION}
LET_IN = "let in"


def expected(access: Access, who: Who, place: str) -> int | str:
    """Return 401, 403, 404, or that it is admitted."""
    if access.role is None:
        return LET_IN if access.token is None else 401
    if who.role is None:
        return LET_IN if access.may_be_public and who.are_leagues_public and who.token is None else 401
    return _of_known(access, who, who.role, place)


def _of_known(access: Access, who: Who, role: Role, place: str) -> int | str:
    """The same for a caller with a key or a session."""
    assert access.role is not None
    least = access.role if access.own is None or who.user is None else access.own
    is_out_of_scope = who.scopes is not None and access.scope is not None and access.scope not in who.scopes
    if is_out_of_scope or (access.keys_only and who.is_session):
        return 403
    if role is not access.also and role < least:
        return 403
    if role is access.also or access.owned_by in (OwnedBy.NOBODY, OwnedBy.FILTERED):
        return LET_IN
    if not who.is_bound:
        return 404 if place == "none" and access.owned_by in SECRET else LET_IN
    return _of_bound(access, who, role, place)


def _of_bound(access: Access, who: Who, role: Role, place: str) -> int | str:
    """The same for a bound caller, whose role may be sufficient."""
    others = 404 if access.owned_by in SECRET else 403
    if access.owned_by in (OwnedBy.NAMESPACE, OwnedBy.INGEST):
        return LET_IN if place == "a" else others
    if access.owned_by is OwnedBy.LISTED and who.user is not None:
        return LET_IN
    if access.owned_by is OwnedBy.BLOB and who.org is None:
        return 403  # it reads for no organization, for any blob
    is_own = access.owned_by in OF_USERS and who.user == place
    if access.owned_by is OwnedBy.QUERY:
        is_own = is_own and who.org is not None  # no other organization would pay
    is_of_org = access.owned_by in OF_ORGS and who.org == place
    if access.owned_by is OwnedBy.SUBMISSION:
        is_own, is_of_org = is_own and is_of_org, is_of_org and who.user is None
    if is_own or (is_of_org and role >= access.role):
        return LET_IN
    return 403 if is_of_org else others


# -- requests ---------------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Three applications over one database, two of which ask for keys, and one of these not for leagues; what there is in it."""

    guarded: Any
    open: Any
    public: Any
    named: dict[str, dict[str, str]]
    tokens: dict[str, str]

    async def session(self, who: Who) -> str:
        """A fresh session of a user."""
        assert who.role is not None
        assert who.user is not None
        return await self.session_of(who.user, who.role)

    async def session_of(self, place: str, role: Role = Role.VIEWER) -> str:
        """A fresh session of the user of a place."""
        body = {"user_id": USERS[place], "organization_id": ORGS[place], "role": role.label}
        answer = await ask(
            self.guarded,
            "POST",
            "/api/sessions",
            token="admin",
            body=json.dumps(body).encode(),
            kind="application/json",
        )
        assert answer.status == 201, answer
        return str(json.loads(answer.body)["session_id"])

    async def link_of(self, place: str) -> str:
        """A fresh public link of the deck of a place."""
        if place == "none":
            return str(uuid.uuid4())
        path = f"/api/presentations/{self.named[place]['presentation']}/links"
        answer = await ask(self.guarded, "POST", path, token="admin")
        assert answer.status == 201, answer
        return str(json.loads(answer.body)["link_id"])


class Request(NamedTuple):
    """An operation on something."""

    method: str
    path: str
    access: Access
    place: str


# The query and the body of an operation, which name the owner.
QUERIES: dict[str, Callable[[str], str]] = {
    "GET /api/predictions": lambda place: f"user={USERS[place]}",
    "GET /api/chunks/search": lambda place: f"ns={SPACES[place]}",
    "GET /api/chunks/lifecycle": lambda place: f"ns={SPACES[place]}",
    "PUT /api/blobs": lambda place: f"organization_id={ORGS[place]}",
    "WS /api/ws": lambda place: f"user_id={USERS[place]}",
}
_GOALS = {"home_goals": 1, "away_goals": 0}
BODIES: dict[str, Callable[[str], Any]] = {
    "POST /api/query": lambda place: {"user_id": USERS[place], "query": "why?"},
    "POST /api/query/{request_id}/restart": lambda _: {"stage": "analyzer"},
    "POST /api/chunks/ingest": lambda place: {"ns": SPACES[place], "slot": "s", "source_id": "x"},
    "PUT /api/users/{user}/subscriptions": lambda _: {"channels": []},
    "PUT /api/users/{user}/plan": lambda _: {"plan": "free"},
    "PUT /api/users/{user}/clusters/{cluster_id}/label": lambda _: {"label": "x"},
    "POST /api/users/{user}/clusters/{cluster_id}/merge": lambda _: {"cluster_ids": ["d"]},
    "POST /api/users/{user}/clusters/{cluster_id}/split": lambda _: {"parts": [{"insight_ids": ["i"]}]},
    "PUT /api/users/{user}/naming": lambda _: {"wish": "by product"},
    "PUT /api/users/{user}/role": lambda _: {"role": "admin"},
    "POST /api/matches/{match}/finalize": lambda _: _GOALS,
    "POST /api/matches/{match}/score": lambda _: _GOALS,
    "POST /api/matches/{match}/votes": lambda place: {"user_id": USERS[place], "choice": "home"},
    "POST /api/matches/{match}/comments": lambda place: {"user_id": USERS[place], "text": "hi"},
    "PUT /api/predictions/{match}": lambda place: {"user_id": USERS[place], **_GOALS},
    "POST /api/events/{topic}": lambda place: {"user_id": USERS[place], "ts": 1},
    "POST /api/sessions": lambda place: {"user_id": USERS[place]},
    "POST /api/jobs": lambda place: {
        "kind": "generation", "organization_id": ORGS[place], "user_id": USERS[place], "args": {},
    },
    "PUT /api/organizations/{org}/plan": lambda _: {"plan": "enterprise"},
    "PUT /api/prompts/{role}": lambda _: {"prompt_template": "x"},
    "POST /api/cache/invalidate": lambda _: {"keys": ["ads:all"]},
    "PUT /api/ads/{ad}": lambda _: {},
}  # fmt: skip
# Resources with these names belong to the same owner in every operation.
FIXED = {
    "season": "s",
    "match": "m",
    "club": "c",
    "ad": "x",
    "role": "Mentor",
    "topic": "feeds.user-active",
    "channel": "c",
    "group": "g",
    "curation_id": "x",
}
# The resource named in their body is checked before anything else in it.
NAMED_IN_BODY = {
    *(f"POST /api/matches/{{match}}/{name}" for name in ("votes", "comments")),
    *(
        "PUT /api/predictions/{match}",
        "POST /api/query",
        "POST /api/jobs",
        "POST /api/events/{topic}",
        "POST /api/sessions",
    ),
}
# Whose these are is known when they were read, after the position that a request names was waited for.
LOOKED_UP = SECRET | {OwnedBy.NAMESPACE, OwnedBy.SUBMISSION}
# They end sessions, which other requests are sent with: one after the other, each with a session of its own.
ENDING = ("DELETE /api/sessions/{session}", "DELETE /api/users/{user}/sessions", "PUT /api/users/{user}/role")


async def send(world: World, who: Who, request: Request) -> Answer:
    """Ask."""
    operation = f"{request.method} {request.path}"
    names = {**FIXED, **world.named[request.place]}
    token = world.tokens.get(who.name, who.token)
    if operation in ENDING:
        names["session"] = "hws_none" if request.place == "none" else await world.session_of(request.place)
        token = await world.session(who) if who.is_session else token
    path = request.path
    if "{link}" in path:
        names["link"] = await world.link_of(request.place)
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    query = QUERIES[operation](request.place) if operation in QUERIES else ""
    if operation.startswith("GET /api/blobs/{sha256}") and not who.is_bound:
        query = f"organization_id={ORGS[request.place]}"  # it belongs to none, so it says for which it reads
    application = world.public if who.are_leagues_public else world.open if who is OPEN else world.guarded
    if request.method == SOCKET:
        return await connect(application, path, query=query, token=token)
    body = json.dumps(BODIES[operation](request.place)).encode() if operation in BODIES else b""
    more = {}
    if request.access.owned_by not in LOOKED_UP and operation not in ENDING:
        # Authorization is decided before this is read: an admitted caller gets 400, and later steps cost the test nothing.
        more = {"x_min_position": "nonsense"}
        body = body if operation in NAMED_IN_BODY or not body else b"{"
    kind = "application/json" if body else ""
    return await ask(application, request.method, path, query=query, token=token, body=body, kind=kind, **more)


@pytest.fixture(scope="module")
async def world(own_settings: Callable[..., Settings], seeds: Seeds, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The applications, and something of A's and of B's of every kind."""
    plans = tmp_path_factory.mktemp("plans") / "plans.toml"
    names = ("free", "pro", "team", "enterprise")
    plans.write_text("\n".join(f"[plans.{name}]\nrequests_per_minute = 1000000" for name in names), encoding="utf-8")
    keys = ",".join(_setting(who) for who in KEYS)
    more = {"HIGHWATER_PLANS": plans, "HIGHWATER_LIVE_REQUESTS_MAX": 1_000_000}
    more["HIGHWATER_CALLER_REQUESTS_PER_MINUTE"] = 1_000_000
    async with AsyncExitStack() as running:
        applications = []
        for own in ({"HIGHWATER_API_KEYS": keys}, {}, {"HIGHWATER_API_KEYS": keys, "HIGHWATER_PUBLIC_LEAGUE": "on"}):
            settings = own_settings(**own, **more)
            application = create_app(settings, MovableClock())
            await running.enter_async_context(application.router.lifespan_context(application))
            applications.append(application)
        guarded, opened, public = applications
        for application in applications:
            await _until_ready(application)
        await until(lambda: _has_coordinator(own_settings()), "Kafka has a coordinator for the group that is named")
        services = guarded.state.services
        authenticator = Authenticator((*parse_api_keys(keys), LIMITED), services.authenticator._read_session)
        object.__setattr__(services, "authenticator", authenticator)
        made = World(guarded, opened, public, {place: await _made(seeds, place) for place in PLACES}, {})
        made.tokens = {who.name: await made.session(who) for who in SESSIONS}
        yield made


async def _until_ready(application: Any) -> None:
    await asyncio.to_thread(wait_until, lambda: not application.state.services.not_ready(), "the parts are there")


async def _has_coordinator(settings: Settings) -> bool:
    """A broker that was just made has none until its topic of offsets has leaders; the first question makes that topic."""
    group, client = FIXED["group"], settings.kafka_client()
    try:
        await foreign_standings(Admin(client), client, (await membership(Admin(client), group)).kafka_group)
    except UnavailableError:
        return False
    return True


async def _made(seeds: Seeds, place: str) -> dict[str, str]:
    """The named parts of paths of an owner's resources."""
    user, org = USERS[place], ORGS[place]
    ids = {name: str(uuid.uuid4()) for name in ("job_id", "presentation_id", "request_id", "ingest_id")}
    if place != "none":
        await store_job(seeds, job_id=ids["job_id"], user_id=user, organization_id=org)
        await seeds.run(
            "INSERT INTO presentations VALUES ($1, $2, $3, 'Why', '[]', 'jobs.generation-requested/0/3', $4)",
            ids["presentation_id"], org, user, NOW,
        )  # fmt: skip
        await store_run(seeds, user, id=ids["request_id"])
        await seeds.insert("blobs", sha256=BLOBS[place], size_bytes=0, created_at=NOW)
        await seeds.insert(
            "blob_owners", sha256=BLOBS[place], organization_id=org, media_type="text/plain", created_at=NOW
        )
        await store_namespace(seeds, SPACES[place])
        await store_ingest(seeds, ids["ingest_id"], "x", ns=SPACES[place])
    named = {"user": user, "org": org, "sha256": BLOBS[place], "key": f"feed:{user}", "cluster_id": "c", "insight": "i"}
    return {**ids, **named, "presentation": ids["presentation_id"]}


def _requests(world: World) -> list[Request]:
    """Every operation of the OpenAPI document and every socket, on each thing that it may name."""
    declared = {(one.method, one.path): one.access for one in operations(world.guarded.routes) if one.method != PAGE}
    paths = world.guarded.openapi()["paths"]
    wanted = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    wanted += [one for one in declared if one[0] == SOCKET]
    return [
        Request(*one, declared[one], place)
        for one in wanted
        for place in (PLACES if declared[one].owned_by is not OwnedBy.NOBODY else PLACES[:1])
    ]


@pytest.fixture(scope="module")
async def answers(world: World) -> dict[tuple[Who, Request], Answer]:
    """Everybody asks for everything."""
    room = asyncio.Semaphore(AT_ONCE)
    found: dict[tuple[Who, Request], Answer] = {}

    async def one(who: Who, request: Request) -> None:
        async with room:
            found[who, request] = await send(world, who, request)

    asked = [(who, one) for who in (*KEYS, *SESSIONS, *NOBODY, OPEN, OF_FEEDS) for one in _requests(world)]
    ending = [pair for pair in asked if f"{pair[1].method} {pair[1].path}" in ENDING]
    await asyncio.gather(*(one(*pair) for pair in asked if pair not in ending))
    for pair in ending:
        await one(*pair)
    return found


def _outcome(request: Request, answer: Answer) -> int | str:
    refusals = {401, 403, 404} if request.access.is_secret else {401, 403}
    return answer.status if answer.status in refusals else LET_IN


def test_everybody_reaches_what_the_declarations_say(answers: dict[tuple[Who, Request], Answer]) -> None:
    """Each operation, by each principal, on own, others' and unowned resources: admitted, 401, 403 or 404 as declared."""
    wrong = [
        f"{request.method} {request.path} of {request.place} by {who.name}: "
        f"{answer.status}, not {expected(request.access, who, request.place)}: {answer.body[:200]!r}"
        for (who, request), answer in answers.items()
        if _outcome(request, answer) != expected(request.access, who, request.place)
    ]
    assert wrong == []
    assert len(answers) > 2_000


def test_nobody_brings_the_api_down(answers: dict[tuple[Who, Request], Answer]) -> None:
    """No answer is a 5xx, and none is interrupted."""
    assert [
        (who.name, *request[:2], answer) for (who, request), answer in answers.items() if answer.status >= 500
    ] == []


def test_what_is_others_looks_like_what_does_not_exist(
    world: World, answers: dict[tuple[Who, Request], Answer]
) -> None:
    """A bound caller that owns neither gets the same status and the same text, for every operation."""
    compared = 0
    for (who, request), answer in answers.items():
        if request.place != "b" or not request.access.is_secret or not who.is_bound or "b" in (who.user, who.org):
            continue
        none = answers[who, request._replace(place="none")]
        said = [answer.body, none.body]
        for index, place in enumerate(("b", "none")):
            for value in world.named[place].values():
                said[index] = said[index].replace(value.encode(), b"?")
        assert (answer.status, said[0]) == (none.status, said[1]), (who.name, request[:2])
        compared += 1
    assert compared > 50


# -- what a body names besides its owner --------------------------------------------------------------------------------------


async def _job(world: World, who: str, kind: str, args: dict[str, Any], org: str = "a", user: str = "a") -> int:
    body = {"kind": kind, "organization_id": ORGS[org], "user_id": USERS[user], "args": args}
    event = {**body, "job_id": str(uuid.uuid4()), "args": json.dumps(args), "ts": 1}
    by_route, by_event = [
        (
            await ask(world.guarded, "POST", path, token=who, body=json.dumps(sent).encode(), kind="application/json")
        ).status
        for path, sent in (("/api/jobs", body), ("/api/events/jobs.job-submitted", event))
    ]
    assert by_route == by_event
    return by_route


async def test_what_a_job_names_is_its_submitters_too(world: World) -> None:
    """Decks and documents of another organization look like none, by its own route and through events alike."""
    deck = {place: {"presentation_id": world.named[place]["presentation_id"], "format": "pdf"} for place in PLACES}
    assert [await _job(world, "editor-a", "export", deck[place]) for place in PLACES] == [202, 404, 404]
    assert await _job(world, "editor-b", "export", deck["a"], "a", "b") == 403
    assert await _job(world, "editor-org", "export", deck["a"]) == 202
    assert await _job(world, "editor-user", "export", deck["a"]) == 403
    made = {place: {"query": "why?", "source_document_ids": [BLOBS[place]]} for place in PLACES}
    assert [await _job(world, "editor-a", "generation", made[place]) for place in PLACES] == [202, 404, 404]


async def _query(world: World, who: str, user: str = "a", **more: str) -> tuple[int, int]:
    body = {"user_id": USERS[user], "query": "why?", **more}
    event = {**body, "request_id": str(uuid.uuid4()), "ts": 1}
    answers = [
        await ask(world.guarded, "POST", path, token=who, body=json.dumps(sent).encode(), kind="application/json")
        for path, sent in (("/api/query", body), ("/api/events/queries.query-submitted", event))
    ]
    return answers[0].status, answers[1].status


async def test_what_is_paid_needs_an_editor_and_an_organization(world: World) -> None:
    """A job and a query, by their own routes and through events: a viewer's key or session is refused, and so is one without an
    organization.
    """
    deck = {"query": "why?"}
    for who in ("viewer", "viewer-a", "viewer-user", await world.session_of("a")):
        assert await _job(world, who, "generation", deck) == 403, who
        assert await _query(world, who) == (403, 403), who
    for who in ("editor-a", "admin-a", await world.session_of("a", Role.EDITOR)):
        assert await _job(world, who, "generation", deck) == 202, who
        assert await _query(world, who) == (202, 202), who
        assert await _query(world, who, organization_id=ORGS["a"]) == (202, 202), who
    assert await _query(world, "editor-a", organization_id=ORGS["b"]) == (403, 403)
    assert await _query(world, "editor-a", user="b") == (403, 403)
    assert await _query(world, "editor-user") == (403, 403)
    # An answer is made of what its user asked before: an organization's key reads none of that.
    assert await _query(world, "editor-org") == (403, 403)
    assert await _query(world, "editor") == (202, 202)  # the operator's own
    assert await _query(world, "editor", organization_id=ORGS["a"]) == (202, 202)


async def test_chunks_are_written_by_admins_alone(world: World) -> None:
    """An ingestion needs what `POST /api/chunks/ingest` needs, into an open namespace and a closed one."""
    for ns in SPACES.values():
        args = {"document_ids": [BLOBS["a"]], "ns": ns, "slot": "main"}
        assert [await _job(world, who, "ingestion", args) for who in ("editor-a", "editor", "admin")] == [403, 403, 202]


async def test_a_closed_namespace_is_not_listed(world: World) -> None:
    """The lifecycle of all namespaces names to a bound key the open ones alone."""
    listed = {}
    for token in ("viewer", "viewer-a", "viewer-org"):
        answer = await ask(world.guarded, "GET", "/api/chunks/lifecycle", token=token)
        listed[token] = {one["ns"] for one in json.loads(answer.body)["namespaces"]}
    assert listed == {"viewer": {"docs", "closed"}, "viewer-a": {"docs"}, "viewer-org": {"docs"}}


async def test_a_key_of_an_organization_gives_it_to_its_sessions(world: World) -> None:
    """A session made with a bound key is of the key's organization; another is refused, and so is any by a limited key."""

    async def post(token: str, **body: str) -> Answer:
        sent = json.dumps({"user_id": USERS["a"], **body}).encode()
        return await ask(world.guarded, "POST", "/api/sessions", token=token, body=sent, kind="application/json")

    assert json.loads((await post("viewer-a")).body)["organization_id"] == ORGS["a"]
    assert (await post("viewer-a", organization_id=ORGS["a"])).status == 201
    assert (await post("viewer-a", organization_id=ORGS["b"])).status == 403
    assert (await post("viewer-user", organization_id=ORGS["a"])).status == 403
    assert (await post("feeds-only")).status == 403

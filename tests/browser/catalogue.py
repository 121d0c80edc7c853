"""Every page that a browser can open, by the tables that serve it, each with addresses at which it shows something.

Invariant. A page without parameters is found by itself; one that names a thing is refused here until it has an example
(`_EXAMPLES`), so a new page is tested, weighed and photographed without anybody thinking of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx2

from highwater.api.core.problems import KINDS
from highwater.api.dashboard import mount
from highwater.api.dashboard.browsing import EXPORT_PATH
from highwater.api.dashboard.export import SQL_EXPORT_PATH
from highwater.api.readers.mount import PAGES as READERS_PAGES

TOPIC = "feeds.insight-ingested"
QUERY = "select channel_id, count(*) as insights from feeds.insight_ingested group by 1 order by 2 desc limit 20"
SECONDS_MAX = 120.0
# Addresses that lead elsewhere or answer with a file.
_NOT_PAGES = {mount.SIGN_IN_PATH, mount.CALLBACK_PATH, "/logout", mount.ICON_PATH, "/read/static/{file}"}
_NOT_PAGES |= {EXPORT_PATH, SQL_EXPORT_PATH}
# The texts of the API itself: its routes, its errors, and the page for a wrong address.
_PLAIN = ("/docs", "/problems", KINDS[0].type)
NOT_FOUND = "/no-such-page"


@dataclass(frozen=True)
class Things:
    """One resource of each kind that has a page."""

    user: str
    cluster: str
    channel: str
    insight: str
    season: str
    match: str
    query: str
    job: str
    deck: str
    shared: str  # the token of a public link of the deck


Example = Callable[[Things], tuple[str, ...]]


def _at(path: str, **parameters: str) -> str:
    return f"{path}?{urlencode(parameters)}"


def _in(name: str) -> str:
    return quote(name, safe="")


# By the path as it is declared: its addresses, the fullest last.
_EXAMPLES: Mapping[str, Example] = {
    "/browse": lambda _: ("/browse", _at("/browse", topic=TOPIC)),
    "/user": lambda of: ("/user", _at("/user", id=of.user)),
    "/insight": lambda of: (_at("/insight", channel=of.channel, id=of.insight),),
    "/league": lambda of: ("/league", _at("/league", key=f"league:table:{of.season}")),
    "/dead-letters": lambda _: (_at("/dead-letters", topic=TOPIC),),
    "/match": lambda of: ("/match", _at("/match", id=of.match)),
    "/sql": lambda _: ("/sql", _at("/sql", query=QUERY, run="1")),
    "/topics/{name}": lambda _: (f"/topics/{TOPIC}",),
    "/groups/{name}": lambda _: ("/groups/insights",),
    "/schemas/{name}": lambda _: (f"/schemas/{TOPIC}-value",),
    "/queries/{request_id}": lambda of: (f"/queries/{of.query}",),
    "/jobs/{job_id}": lambda of: (f"/jobs/{of.job}",),
    "/read/league/{season}": lambda of: (f"/read/league/{_in(of.season)}",),
    "/read/league/{season}/{tab}": lambda of: (f"/read/league/{_in(of.season)}/schedule",),
    "/read/matches/{match}": lambda of: (f"/read/matches/{_in(of.match)}",),
    "/read/feed": lambda of: ("/read/feed", _at("/read/feed", user=of.user)),
    "/read/feed/deck": lambda of: (
        _at("/read/feed/deck", user=of.user, digest="0"),
        _at("/read/feed/deck", user=of.user, cluster=of.cluster),
    ),
    "/read/questions/{question}": lambda of: (f"/read/questions/{of.query}",),
    "/read/jobs/{job}": lambda of: (f"/read/jobs/{of.job}",),
    "/read/decks/{deck}": lambda of: (f"/read/decks/{of.deck}",),
    "/read/shared/{token}": lambda of: (f"/read/shared/{of.shared}",),
}


def declared() -> list[str]:
    """The paths of all pages, as they are declared: the console's, the readers' and the plain ones."""
    readers = [one.path_format for one in READERS_PAGES if not one.is_form]
    return [path for path in (*mount.PAGES, *readers, *_PLAIN) if path not in _NOT_PAGES]


def addresses(of: Things) -> dict[str, tuple[str, ...]]:
    """The addresses of each page.

    Raises:
        AssertionError: a page names a thing, and no example says which.
    """
    found = {}
    for path in declared():
        example = _EXAMPLES.get(path)
        assert example is not None or "{" not in path, (
            f"{path} names a thing: add an address of it to {__name__}._EXAMPLES"
        )
        found[path] = example(of) if example is not None else (path,)
    return {**found, NOT_FOUND: (NOT_FOUND,)}


def is_of_console(path: str) -> bool:
    """Whether a page is one of the console, which a script fills over a socket; the others are whole as they come."""
    return path in mount.PAGES and path != "/login"


# -- the things of a running product -----------------------------------------------------------------------------------------


def made_in(http: httpx2.Client, user: str, season: str) -> Things:
    """The things of a product in which a user has clusters and a season is played; a query is asked and a deck is made."""
    clusters = _get(http, f"/api/users/{_in(user)}/clusters")["clusters"]
    insight = _get(http, f"/api/users/{_in(user)}/feed")["items"][0]["representative"]
    schedule = _get(http, f"/api/league/{_in(season)}/schedule")
    match = next(one["match_id"] for of_round in schedule["rounds"] for one in of_round["matches"])
    question = {"user_id": str(uuid.uuid4()), "query": "What changed in the schema registry?"}
    query = _post(http, "/api/query", question)["request_id"]
    deck = {"query": "Schema registry compatibility", "slides": 3}
    body = {"kind": "generation", "organization_id": f"team-{uuid.uuid4().hex[:4]}", "user_id": user, "args": deck}
    job = _post(http, "/api/jobs", body)["job_id"]
    _until(http, f"/api/query/{query}/status", lambda found: found["status"] == "completed")
    done = _until(http, f"/api/jobs/{job}", lambda found: found["status"] == "completed")
    presentation = done["result"]["presentation_id"]
    return Things(
        user=user,
        cluster=clusters[0]["cluster_id"],
        channel=insight["channel_id"],
        insight=insight["insight_id"],
        season=season,
        match=match,
        query=query,
        job=job,
        deck=presentation,
        shared=_post(http, f"/api/presentations/{presentation}/links", {})["token"],
    )


def _get(http: httpx2.Client, path: str) -> Any:
    answer = http.get(path, headers={"X-Max-Wait-Ms": "30000"})
    answer.raise_for_status()
    return answer.json()


def _post(http: httpx2.Client, path: str, body: Mapping[str, Any]) -> Any:
    answer = http.post(path, json=body)
    answer.raise_for_status()
    return answer.json()


def _until(http: httpx2.Client, path: str, is_done: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        answer = http.get(path)
        if answer.status_code == httpx2.codes.OK and is_done(answer.json()):
            return answer.json()
        time.sleep(0.1)  # the pause between two looks
    raise AssertionError(f"{path} is not done after {SECONDS_MAX:.0f} s")

"""The session of a client: requests to API processes that it draws, each recorded before it is sent and after its answer.

Invariant: a session sends one request at a time. It remembers the highest position of each partition that an answer gave it,
and may demand that a read contains them, from any API process.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx2
import orjson

from highwater.api.history_check.folds import highest
from highwater.api.history_check.history import Action, Completion, Recorder

REQUEST_SECONDS = 5.0
# A positioned read waits this long on the server before it answers 503; below the client's own limit.
MAX_WAIT_MS = 3_000
# After 429, if the answer does not say how long.
_RETRY_SECONDS = 1.0
# ETags that a session may name again; of more resources than that it has forgotten the oldest.
TAGS_KEPT = 500

# Topics whose positions a read of these accepts (contract): a position of another topic would be refused with 400.
_INSIGHTS = ("feeds.insight-ingested", "feeds.insight-retracted")
_SUBSCRIPTIONS = ("feeds.subscriptions-replaced", "feeds.user-erased")
FED_BY: Mapping[Action, Sequence[str]] = {
    Action.READ_INSIGHT: _INSIGHTS,
    Action.READ_CHANNEL: _INSIGHTS,
    Action.READ_SUBSCRIPTIONS: _SUBSCRIPTIONS,
    Action.READ_FEED: (*_INSIGHTS, *_SUBSCRIPTIONS),
    Action.READ_CLUSTERS: (*_INSIGHTS, *_SUBSCRIPTIONS),
    Action.READ_QUERIES: ("queries.query-submitted",),
    Action.READ_PAGE: ("league.match-scheduled", "league.match-finalized"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """The API processes, and how to reach them."""

    apis: Sequence[str]
    verify: ssl.SSLContext | bool
    api_key: str | None = None


class Draws:
    """Numbers that a seed determines, on any machine and any Python version."""

    def __init__(self, *seed: object) -> None:
        self._seed = "/".join(map(str, seed))
        self._count = 0

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1."""
        self._count += 1
        digest = hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % limit

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Return one of these."""
        return choices[self.below(len(choices))]


class Session:
    """One client."""

    def __init__(self, name: str, target: Target, recorder: Recorder, draws: Draws) -> None:
        self.name = name
        self.recorder = recorder
        self.draws = draws
        self._apis = target.apis
        headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
        self._http = httpx2.AsyncClient(
            timeout=REQUEST_SECONDS, headers=headers, verify=target.verify, trust_env=False, follow_redirects=False
        )
        self._positions: dict[tuple[str, int], int] = {}
        self._tags: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Do nothing: connections open with the first request."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._http.aclose()

    def learn(self, positions: Sequence[str]) -> None:
        """Remember positions that an answer or a broker gave."""
        for place, offset in highest(positions).items():
            self._positions[place] = max(offset, self._positions.get(place, -1))

    def known_positions(self, action: Action) -> tuple[str, ...]:
        """Return the positions that a read of this kind may name."""
        fed_by = FED_BY[action]
        return tuple(
            f"{topic}/{partition}/{offset}" for (topic, partition), offset in self._positions.items() if topic in fed_by
        )

    async def write(
        self,
        action: Action,
        resource: str,
        method: str,
        path: str,
        body: Any,
        *,
        value: str = "",
        key: str | None = None,
    ) -> Completion:
        """Send a write and record it."""
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": f'"{key}"'})
        return await self._request(
            action, resource, method, path, headers, content=None if body is None else orjson.dumps(body),
            recorded={"value": value, "idempotency_key": key},
        )  # fmt: skip

    async def read(
        self, action: Action, resource: str, path: str, *, is_positioned: bool = False, is_conditional: bool = False,
        is_final: bool = False, is_identity: bool = False,
    ) -> Completion:  # fmt: skip
        """Send a read and record it."""
        condition = self._tags.get(resource) if is_conditional else None
        positions = self.known_positions(action) if is_positioned else ()
        headers = {"Accept-Encoding": "identity"} if is_identity else {}
        if condition is not None:
            headers["If-None-Match"] = condition
        if positions:
            headers |= {"X-Min-Position": ",".join(positions), "X-Max-Wait-Ms": str(MAX_WAIT_MS)}
        recorded = {"condition": condition, "min_positions": positions, "is_final": is_final}
        return await self._request(action, resource, "GET", path, headers, content=None, recorded=recorded)

    async def _request(
        self, action: Action, resource: str, method: str, path: str, headers: Mapping[str, str], *, content: bytes | None,
        recorded: Mapping[str, Any],
    ) -> Completion:  # fmt: skip
        api = self.draws.one_of(self._apis)
        invocation = self.recorder.invoke(self.name, api, action, resource, **recorded)
        try:
            answer = await self._http.request(method, api + path, headers=dict(headers), content=content)
        except httpx2.HTTPError:
            return self.recorder.complete(invocation, None)
        completion = self.recorder.complete(invocation, answer.status_code, **members_of(action, answer))
        self.learn(completion.positions)
        if completion.status == 200 and completion.etag is not None:
            self._tags.pop(resource, None)
            self._tags[resource] = completion.etag
            if len(self._tags) > TAGS_KEPT:
                del self._tags[next(iter(self._tags))]
        if answer.status_code == 429:
            await asyncio.sleep(_retry_seconds(answer))
        return completion


def _retry_seconds(answer: httpx2.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else _RETRY_SECONDS


def members_of(action: Action, answer: httpx2.Response) -> dict[str, Any]:
    """Return what a history records of an answer."""
    headers = answer.headers
    version = headers.get("x-resource-version", "")
    found = {
        "etag": headers.get("etag"),
        "version": int(version) if version.isdecimal() else None,
        "caused_by": headers.get("x-caused-by"),
        "encoding": headers.get("content-encoding"),
        "is_stale": headers.get("x-stale") == "true",
    }
    if answer.status_code == 410 and "json" in headers.get("content-type", ""):
        return {**found, "problem": str(orjson.loads(answer.content).get("type", "")).rpartition("/")[2]}
    if not 200 <= answer.status_code < 300:
        return found
    document = orjson.loads(answer.content)
    content = _CONTENT[action](document) if action in _CONTENT else {}
    positions = tuple(document.get("positions", ())) if isinstance(document, dict) else ()
    body_hash = hashlib.sha256(answer.content).hexdigest()[:32]
    return {**found, "body_hash": body_hash, "positions": positions, "content": content}


def insight_resource(insight_id: str) -> str:
    """Return the resource of an insight; the ids of a run begin with the channel."""
    return f"insight:{insight_id.partition('--')[0]}/{insight_id}"


def insight_path(channel: str, insight_id: str) -> str:
    """Return the path of an insight."""
    return f"/api/insights/{quote(channel, safe='')}/{quote(insight_id, safe='')}"


def _feed_insights(document: dict[str, Any]) -> dict[str, Any]:
    shown = (one["insight_id"] for item in document["items"] for one in item["insights"])
    return {"insights": [insight_resource(one) for one in shown]}


def _cluster_insights(document: dict[str, Any]) -> dict[str, Any]:
    shown = (one for cluster in document["clusters"] for one in cluster["insight_ids"])
    return {"insights": [insight_resource(one) for one in shown]}


def _matches(document: dict[str, Any]) -> int:
    """Return how many matches a page of a season shows: its results, or its schedule by rounds."""
    return len(document.get("results", ())) + sum(len(one["matches"]) for one in document.get("rounds", ()))


# The members of a body that a check needs.
_CONTENT: Mapping[Action, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Action.WRITE_INSIGHT: lambda body: {name: body[name] for name in ("conflicts",) if name in body},
    Action.READ_INSIGHT: lambda body: {name: body[name] for name in ("seq", "text", "position")},
    Action.READ_CHANNEL: lambda body: {"current_seq": body["current_seq"]},
    Action.READ_SUBSCRIPTIONS: lambda body: {"channels": body["channels"]},
    Action.READ_FEED: _feed_insights,
    Action.READ_CLUSTERS: _cluster_insights,
    Action.READ_PAGE: lambda body: {"matches": _matches(body)},
    Action.SUBMIT_QUERY: lambda body: {"request_id": body["request_id"]},
    Action.READ_QUERIES: lambda body: {"request_ids": [one["request_id"] for one in body["queries"]]},
}


def is_ready(api: str, verify: ssl.SSLContext | bool) -> bool:
    """Return whether an API process is ready."""
    try:
        return httpx2.get(f"{api}/readyz", timeout=REQUEST_SECONDS, verify=verify, trust_env=False).is_success
    except httpx2.HTTPError:
        return False

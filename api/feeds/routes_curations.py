"""A reader's curations of clusters: names, merges, splits and a wish about names, each an event, active until undone.

A request is checked against the version that its reader sees. A curation of clusters that are gone when it is applied
has no effect, so nothing that was accepted fails later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.errors import ConflictError, NotFoundError, UnprocessableError
from highwater.api.core.freshness import FEEDS_TOPICS
from highwater.api.core.guard import GuardedRoute, User
from highwater.api.core.openapi import ID, problems
from highwater.api.core.publishing import Positions
from highwater.api.core.services import Services, Wired
from highwater.api.core.unstored import Naming
from highwater.api.feeds.answers import Curations
from highwater.connectors.feeds import read_model
from highwater.connectors.feeds.curations import held_curations, position_of
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.feeds import CLUSTERS_CURATED, ClusterPart, ClustersCurated
from highwater.streams.checks import check_id
from highwater.streams.feeds.curations import (
    CURATIONS_MAX,
    MERGED_MAX,
    NAMED_MAX,
    PARTS_MAX,
    Curation,
    CurationKind,
    check_curated,
    check_words,
    curation_json,
    curation_of,
)
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["feeds"], route_class=GuardedRoute)
ACCEPTED = HTTPStatus.ACCEPTED
ClusterId = Annotated[str, Path(description="id of a cluster in the current version")]


class Label(BaseModel):
    """The label of a cluster."""

    model_config = ConfigDict(extra="forbid", strict=True)
    label: Annotated[str, ID] = Field(description="1 to 240 bytes on one line")


class Wish(BaseModel):
    """How a language model should name clusters."""

    model_config = ConfigDict(extra="forbid", strict=True)
    wish: Annotated[str, ID] = Field(description="1 to 240 bytes on one line, e.g. 'group by product'")


class Merged(BaseModel):
    """Clusters to merge into another one."""

    model_config = ConfigDict(extra="forbid", strict=True)
    cluster_ids: list[Annotated[str, ID]] = Field(
        description="1 to 50 other clusters of the current version",
        json_schema_extra={"minItems": 1, "maxItems": MERGED_MAX, "uniqueItems": True},
    )


class Part(BaseModel):
    """A part of a cluster."""

    model_config = ConfigDict(extra="forbid", strict=True)
    insight_ids: list[Annotated[str, ID]] = Field(
        description="insights of the cluster; each may be in one part only",
        json_schema_extra={"minItems": 1, "maxItems": NAMED_MAX, "uniqueItems": True},
    )
    label: str | None = Field(default=None, description="label of the part; default: generated from its texts")


class Split(BaseModel):
    """The parts to split off as clusters of their own."""

    model_config = ConfigDict(extra="forbid", strict=True)
    parts: list[Part] = Field(
        description="1 to 10 parts with up to 1,000 insights in all; at least one insight must stay in the cluster",
        json_schema_extra={"minItems": 1, "maxItems": PARTS_MAX},
    )


@router.put(
    "/api/users/{user:id}/clusters/{cluster_id:id}/label",
    status_code=ACCEPTED,
    summary="Rename a cluster for its reader",
    responses=problems(ConflictError),
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.PLAN, cost=10)
async def put_label(
    request: Request, response: Response, user: User, cluster_id: ClusterId, body: Label, services: Wired
) -> Positions:
    """The cluster keeps the label in every later version as long as it exists; the last label counts.

    Delete the resource in `Location` to undo it.
    """
    event = _event(user, CurationKind.RENAME, cluster_id=cluster_id, label=body.label)
    await _seen(request, services, event)
    return await _say(response, services, event)


@router.post(
    "/api/users/{user:id}/clusters/{cluster_id:id}/merge",
    status_code=ACCEPTED,
    summary="Merge clusters into one",
    responses=problems(ConflictError),
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.PLAN, cost=10)
async def post_merge(
    request: Request, response: Response, user: User, cluster_id: ClusterId, body: Merged, services: Wired
) -> Positions:
    """Later insights of the merged clusters join this one. Delete the resource in `Location` to undo it."""
    event = _event(user, CurationKind.MERGE, cluster_id=cluster_id, cluster_ids=body.cluster_ids)
    known = await _seen(request, services, event)
    if missing := [one for one in body.cluster_ids if one not in known]:
        raise UnprocessableError(f"user {user!r} has no cluster {missing[0]!r}", field="cluster_ids", reason="unknown")
    return await _say(response, services, event)


@router.post(
    "/api/users/{user:id}/clusters/{cluster_id:id}/split",
    status_code=ACCEPTED,
    summary="Split a cluster",
    responses=problems(ConflictError),
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.PLAN, cost=10)
async def post_split(
    request: Request, response: Response, user: User, cluster_id: ClusterId, body: Split, services: Wired
) -> Positions:
    """Insights that no part names stay in the cluster. A later insight joins the nearest part, or the rest.

    Insights with the same vector stay together. Delete the resource in `Location` to undo it.
    """
    parts = [ClusterPart(insight_ids=part.insight_ids, label=part.label) for part in body.parts]
    event = _event(user, CurationKind.SPLIT, cluster_id=cluster_id, parts=parts)
    members = set((await _seen(request, services, event))[cluster_id]["insight_ids"])
    named = {insight_id for part in body.parts for insight_id in part.insight_ids}
    if missing := sorted(named - members):
        raise UnprocessableError(f"{missing[0]!r} is not in cluster {cluster_id!r}", field="parts", reason="unknown")
    if not members - named:
        raise UnprocessableError("the parts name the whole cluster; leave one out", field="parts", reason="whole")
    return await _say(response, services, event)


@router.put(
    "/api/users/{user:id}/naming",
    status_code=ACCEPTED,
    summary="Say how a language model should name a reader's clusters",
    responses=problems(ConflictError),
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.PLAN, cost=10)
async def put_naming(response: Response, user: User, body: Wish, services: Wired) -> Positions:
    """The next version has new titles and names of themes that follow the wish as far as the texts allow; the last wish counts.

    Delete the resource in `Location` to undo it. 409: no language model is configured (`LLM_BASE_URL`), so nothing follows it.
    """
    check_words("wish", body.wish)
    if services.settings.llm_url is None:
        raise ConflictError("no language model names clusters here; set LLM_BASE_URL")
    return await _say(response, services, _event(user, CurationKind.WISH, label=body.wish))


@router.get(
    "/api/users/{user:id}/curations",
    summary="List a reader's corrections of clusters",
    response_model=None,
    responses=answer(Curations),
)
@access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def get_curations(request: Request, user: User, services: Wired) -> Response:
    """In the order of the log, up to 100. `is_resting`: its clusters are not in the current version."""
    await services.fresh(request, FEEDS_TOPICS)
    pool = services.database.require()
    held = await held_curations(pool, user)
    shown = await _clusters(services, user) if held else {}
    document = {"user_id": user, "curations": [_shown(one, shown) for one in held]}
    return uncached(document)


@router.delete(
    "/api/users/{user:id}/curations/{curation_id:id}",
    status_code=ACCEPTED,
    summary="Undo a rename, merge, split or wish",
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.PLAN, cost=10)
async def delete_curation(
    request: Request,
    user: User,
    curation_id: Annotated[str, Path(description="id from `Location` or `GET …/curations`")],
    services: Wired,
) -> Positions:
    """The next version is built without this correction. Corrections of the clusters that it created have no effect."""
    check_id("curation_id", curation_id)
    await services.fresh(request, FEEDS_TOPICS)
    if not await _holds(services, user, curation_id):
        raise NotFoundError(f"user {user!r} holds no curation {curation_id!r}")
    return await _publish(services, _event(user, CurationKind.UNDO, curation_id=curation_id))


async def _holds(services: Services, user: str, curation_id: str) -> bool:
    """Return whether a user holds a curation, also one that was accepted and is not stored yet.

    Raises:
        NotYetError: the rest of the log could not be read in time.
    """
    for _ in range(2):  # it may be stored between the two
        if curation_id in {one.curation_id for one in await held_curations(services.database.require(), user)}:
            return True
        if await services.unstored.event(_CURATED, f"{user}/{curation_id}") is not None:
            return True
    return False


def _name_of(event: ClustersCurated) -> str | None:
    """Return the user and the id of the curation that an event makes; None if it makes none."""
    if event["kind"] not in set(CurationKind) - {CurationKind.UNDO}:
        return None
    return f"{event['user_id']}/{curation_of(event, (0, 0, 0)).curation_id}"


def _check(_topic: str, event: ClustersCurated) -> None:
    check_curated(event)


_CURATED = Naming(CLUSTERS_CURATED, _name_of, _check)


def _event(user: str, kind: CurationKind, **said: Any) -> ClustersCurated:
    """Return the event, without its time."""
    nothing: dict[str, Any] = {"cluster_id": "", "label": None, "cluster_ids": [], "parts": [], "curation_id": None}
    return ClustersCurated(user_id=user, ts=0, kind=kind.value, **{**nothing, **said})  # type: ignore[typeddict-item]


async def _seen(request: Request, services: Services, event: ClustersCurated) -> Mapping[str, Mapping[str, Any]]:
    """Return the clusters that the reader sees, by id, after checking the event and its cluster."""
    check_curated(event)
    await services.fresh(request, FEEDS_TOPICS)
    known = await _clusters(services, event["user_id"])
    if event["cluster_id"] not in known:
        raise NotFoundError(f"user {event['user_id']!r} has no cluster {event['cluster_id']!r}")
    return known


async def _clusters(services: Services, user: str) -> dict[str, dict[str, Any]]:
    found = await read_model.clusters(services.database.require(), user, None, services.clock())
    return {one["cluster_id"]: one for one in found.clusters or ()}


async def _say(response: Response, services: Services, event: ClustersCurated) -> Positions:
    """Publish a curation if the limit allows it, and return where it can be undone."""
    user, curation_id = event["user_id"], curation_of(event, (0, 0, 0)).curation_id
    held = {one.curation_id for one in await held_curations(services.database.require(), user)}
    if curation_id not in held and len(held) >= CURATIONS_MAX:
        raise ConflictError(
            f"user {user!r} holds {CURATIONS_MAX} curations, which is as many as there may be; undo one"
        )
    response.headers["Location"] = f"/api/users/{quote(user, safe='')}/curations/{curation_id}"
    return await _publish(services, event)


async def _publish(services: Services, event: ClustersCurated) -> Positions:
    return Positions(positions=await services.publisher.one(CLUSTERS_CURATED, {**event, "ts": services.clock()}))


def _shown(one: Curation, cluster_ids: Iterable[str]) -> dict[str, Any]:
    return {
        "curation_id": one.curation_id,
        **curation_json(one),
        "part_ids": one.part_ids,
        "is_resting": one.is_resting(cluster_ids),
        "position": position_of(one),
        "said_at": iso_from_ms(one.order[0]),
    }

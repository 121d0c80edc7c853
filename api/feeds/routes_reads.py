"""Reads of feeds: pending, clusters, feed, channels, insights, and changes.

Invariant: the 304 of /feed and /clusters reads no payload; from Redis it is one round trip. The ETag of a reader's
`since` consists of the version's ETag and the number, so its 304 costs as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Path, Query, Request, Response

from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import CACHE_NEVER, CACHE_PUBLIC, condition, is_match, not_modified, uncached
from highwater.api.core.errors import BadRequestError, GoneError, NotFoundError
from highwater.api.core.freshness import FEEDS_TOPICS, INSIGHT_TOPICS, SUBSCRIPTION_TOPICS
from highwater.api.core.guard import Called, User
from highwater.api.core.openapi import NOT_MODIFIED, problems, stream
from highwater.api.core.paging import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Cursor,
    Limit,
    decode_cursor,
    encode_cursor,
    foreign_cursor,
    page_of,
    text_after,
)
from highwater.api.core.resources import may_read_key
from highwater.api.core.services import Services, Wired
from highwater.api.core.streamed import StreamedAnswer
from highwater.api.feeds import answers
from highwater.api.feeds.answers import Channels, ClusterHistory, Feed, Insight, Pending, SubscribedChannels
from highwater.api.feeds.quick import ACCESS as QUICK_ACCESS
from highwater.api.feeds.quick import QuickRoute
from highwater.api.feeds.services import FeedServices, WiredFeeds
from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.feeds.documents import FeedDocument, FeedNews, feed_news
from highwater.connectors.feeds.read_model import (
    LIFE_START,
    Channel,
    ClusterLife,
    Clusters,
    ClustersSince,
    DeadCluster,
)
from highwater.connectors.redis.resource_cache import Head
from highwater.schemas.envelope import iso_from_ms, iso_from_ms_or_none
from highwater.schemas.errors import UnavailableError
from highwater.streams.checks import check_id
from highwater.streams.feeds.rules import Decision, Idle, IdleReason, Rebuild, Wait, should_rebuild
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import CONDITIONAL_GETS, PENDING_CLAMPED, get_log

_log = get_log("api")
router = APIRouter(tags=["feeds"], route_class=QuickRoute)

STALE = {"X-Stale": "true", "Warning": '110 - "Response is Stale"', "Cache-Control": CACHE_NEVER}
# The ranges of PostgreSQL's bigint and int.
VERSION_MAX, PLACES_MAX = 2**62, 2**31
Version = Annotated[int | None, Query(ge=1, le=VERSION_MAX, description="an earlier cluster version, while it is kept")]
Since = Annotated[int | None, Query(ge=0, le=VERSION_MAX, description="only what changed after this cluster version")]


async def _pending_header(services: Services, user: str) -> dict[str, str]:
    return {"X-Pending": str(await feeds_reads.pending_sum(services.database.require(), user))}


def _since_head(head: Head, since: int | None) -> Head:
    """Return the head for `since`: a separate document with an ETag of its own."""
    return head if since is None else replace(head, etag=f"{head.etag}-since-{since}")


def _is_known(request: Request, head: Head, *, is_checked: bool) -> bool:
    """Return whether the client has this version; `*` matches any, so a request that may still be refused waits for its check."""
    wanted = condition(request)
    return is_match(wanted, head.etag) and (is_checked or (wanted or "").strip() != "*")


def check_since(since: int, version: int) -> None:
    """Refuse the number of a version that does not exist yet.

    Raises:
        BadRequestError: it is above the current version.
    """
    if since > version:
        raise BadRequestError(f"since={since} is above the version {version}", field="since")


@router.get(
    "/api/users/{user:id}/feed",
    summary="Get a user's feed; supports ETags",
    response_model=None,
    responses=answer(Feed, names=("X-Pending", "X-Stale")) | NOT_MODIFIED,
)
@declared(QUICK_ACCESS)
async def get_feed(request: Request, user: User, services: Wired, feeds: WiredFeeds, since: Since = None) -> Response:
    """The feed is built on the first read of a version; later reads get the stored feed, or 304."""
    is_positioned = await services.fresh(request, FEEDS_TOPICS)
    head = None if is_positioned else await feeds.builder.cached_head(user)
    if head is None:
        # A read with a position must start after the wait, so it does not share another read.
        read_head = feeds.builder.stored_head if is_positioned else feeds.builder.shared_head
        stored = await read_head(user)
        head = stored.head if stored.is_good else None
    extra = await _pending_header(services, user) if is_positioned else {}
    if head is not None and _is_known(request, _since_head(head, since), is_checked=since is None):
        return not_modified("feed", _since_head(head, since), extra=extra)
    document = await feeds.builder.read(user, head)
    if since is not None:
        document = await _feed_since(feeds, user, document, since)
    return _feed_response(request, document, extra or await _pending_header(services, user))


async def _feed_since(feeds: FeedServices, user: str, document: FeedDocument, since: int) -> FeedDocument:
    """Return what changed in a feed after a version."""
    news = feed_news(document.payload, since)
    if news is None or news.cluster_version < since:
        # Another form, or older than what the reader knows from elsewhere: PostgreSQL has the current one.
        stored = await feeds.builder.stored_head(user)
        check_since(since, stored.cluster_version_now)
        document = await feeds.builder.read(user, stored.head if stored.is_good else None)
        news = feed_news(document.payload, since)
    if news is None:
        raise UnavailableError(
            "the last feed is stored in an older format without changes, and no new one could be built"
        )
    return _news_document(document, news, since)


def _news_document(document: FeedDocument, news: FeedNews, since: int) -> FeedDocument:
    return replace(document, head=_since_head(document.head, since), payload=orjson.dumps(news.document))


def _feed_response(request: Request, document: FeedDocument, extra: dict[str, str]) -> Response:
    headers = {**extra, **STALE} if document.is_stale else extra
    return conditional.answer(request, "feed", document.head, document.payload, extra=headers)


@router.get(
    "/api/users/{user:id}/clusters",
    summary="Get a user's clusters; supports ETags",
    response_model=None,
    responses=answer(answers.Clusters, names=("X-Pending", "X-Stale")) | NOT_MODIFIED,
)
@declared(QUICK_ACCESS)
async def get_clusters(
    request: Request,
    user: User,
    services: Wired,
    feeds: WiredFeeds,
    version: Version = None,
    since: Since = None,
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
    cursor: Cursor = None,
) -> Response:
    """The current version or an earlier one; all clusters or only those that changed. Paged if `limit` is given."""
    is_positioned = await services.fresh(request, FEEDS_TOPICS)
    extra = await _pending_header(services, user) if is_positioned else {}
    start = 0
    if cursor is not None:
        # A page belongs to the version of the first one, so that no cluster appears twice or is missing.
        version, start = _version_place(cursor)
        limit = limit or LIMIT_DEFAULT
    if version is None:
        head = _since_head(await _clusters_head(services, feeds, user, from_database=is_positioned), since)
        if _is_known(request, head, is_checked=since is None):
            return not_modified("clusters", head, extra=extra)
    pool, now_ms = services.database.require(), services.clock()
    if since is None:
        found = await feeds_reads.clusters(pool, user, version, now_ms)
        head, document = found.head, _clusters_document(user, found)
    else:
        changes = await feeds_reads.clusters_since(pool, user, version, since, now_ms)
        found = changes.found
        check_since(since, found.cluster_version)
        head = _since_head(found.head, since)
        document = _changes_document(user, changes, since)
    if version is None:
        await feeds.cache.put(f"clusters:{user}", found.head)
    else:
        head = _version_head(found, version, since)
    if limit is not None:
        document = _page(document, found.cluster_version, start, limit)
    extra = extra or await _pending_header(services, user)
    if found.is_lost:
        extra = {**extra, **STALE}
    return conditional.answer(request, "clusters", head, orjson.dumps(document), extra=extra)


def _version_place(cursor: str) -> tuple[int, int]:
    """Return the version and the place in it that a cursor names."""
    version, place = (int(part) for part in decode_cursor(cursor, int, int))
    if not (0 <= version <= VERSION_MAX and 0 <= place < PLACES_MAX):
        raise foreign_cursor()
    return version, place


async def _clusters_head(services: Services, feeds: FeedServices, user: str, *, from_database: bool) -> Head:
    async def read() -> Head:
        head = await feeds_reads.clusters_head(services.database.require(), user, services.clock())
        await feeds.cache.put(f"clusters:{user}", head)
        return head

    if from_database:
        return await read()
    cached = (await feeds.cache.heads([f"clusters:{user}"]))[0]
    if cached is not None and cached.is_trusted(services.clock()):
        return cached
    return await feeds.clusters_heads.read(user, read)


def _version_head(found: Clusters, version: int, since: int | None) -> Head:
    """Return the head of one kept version: only retractions change it, and an erased user gets other times for the same
    number.

    Its recorded past does change, as it is forgotten with newer versions; so its ETag includes them.
    """
    if found.clusters is None:
        raise NotFoundError(f"cluster version {version} is not kept")
    if since is not None:
        return _since_head(replace(found.head, etag=f"{found.head.etag}-at-{version}-r{found.redactions}"), since)
    redacted = f"-r{found.redactions}" if found.redactions else ""
    etag = f"clusters-at-{version}-{found.updated_at_ms}{redacted}"
    return Head(version, etag, found.caused_by, found.head.checked_ms)


def _clusters_document(user: str, found: Clusters) -> dict[str, Any]:
    """Return a version as it is served; one from before clusters had an identity has fewer members."""
    document = {
        "user_id": user,
        "cluster_version": found.cluster_version,
        "updated_at": iso_from_ms_or_none(found.updated_at_ms),
        "clusters": found.clusters or [],
        "noise": found.noise,
    }
    if found.outside is not None:
        document |= {
            "basis_id": found.basis_id,
            "left_out": found.left_out,
            "preliminary": found.is_preliminary,
            "regrouped": found.is_regrouped,
            "outside": orjson.Fragment(found.outside),
        }
    return document


def _changes_document(user: str, changes: ClustersSince, since: int) -> dict[str, Any]:
    """Return the same with the clusters that changed after version `since`, and those that ended since."""
    return {
        **_clusters_document(user, changes.found),
        "clusters": feeds_reads.unread_clusters(changes.found, since),
        "since": since,
        "died": [_dead_cluster(one) for one in changes.died],
        "complete": feeds_reads.has_all_changes(changes, since),
    }


def _dead_cluster(one: DeadCluster) -> dict[str, Any]:
    return {
        "cluster_id": one.cluster_id,
        "label": one.label,
        "version": one.cluster_version,
        "related": one.related,
    }


def _page(document: Mapping[str, Any], version: int, start: int, limit: int) -> dict[str, Any]:
    """Return a page of the clusters; everything else comes with the first page only."""
    clusters, end = document["clusters"], start + limit
    page = {name: value for name, value in document.items() if start == 0 or name not in ("outside", "died")}
    next_cursor = encode_cursor(version, end) if end < len(clusters) else None
    return {**page, "clusters": clusters[start:end], "next_cursor": next_cursor}


@router.get(
    "/api/users/{user:id}/clusters/{cluster_id:id}/history",
    summary="Get the history of a cluster; supports ETags",
    response_model=None,
    responses=answer(ClusterHistory) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def get_cluster_history(
    request: Request,
    user: User,
    cluster_id: Annotated[str, Path()],
    services: Wired,
    feeds: WiredFeeds,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """The changes of a cluster from version to version, oldest first. `/clusters` gives its id."""
    check_id("cluster_id", cluster_id)
    is_positioned = await services.fresh(request, FEEDS_TOPICS)
    after = LIFE_START
    if cursor is not None:
        after = _version_place(cursor)

    def own(head: Head) -> Head:
        place = f"{after[0]}.{after[1]}+{limit}"
        return replace(head, etag=f"{head.etag}-life-{quote(cluster_id, safe='')}-{place}")

    head = own(await _clusters_head(services, feeds, user, from_database=is_positioned))
    if _is_known(request, head, is_checked=False):
        return not_modified("cluster_history", head)
    found = await feeds_reads.read_cluster_history(
        services.database.require(), user, cluster_id, after, limit + 1, services.clock()
    )
    if found is None:
        raise NotFoundError(f"user {user!r} has had no cluster {cluster_id!r}")
    await feeds.cache.put(f"clusters:{user}", found.head)
    document = _life_document(user, cluster_id, found, limit)
    return conditional.answer(request, "cluster_history", own(found.head), orjson.dumps(document))


def _life_document(user: str, cluster_id: str, life: ClusterLife, limit: int) -> dict[str, Any]:
    page, next_cursor = page_of(life.events, limit, lambda event: event.place)
    # Of a cluster older than the versions whose changes are kept, only its birth is remembered from before them.
    forgotten = life.told_since or 0
    return {
        "user_id": user,
        "cluster_id": cluster_id,
        "label": life.label,
        "is_alive": life.is_alive,
        "born_version": life.born_version,
        "size": life.size,
        "complete": life.born_version is not None and life.born_version >= forgotten,
        "events": [{**event.numbers, "evolved_at": iso_from_ms_or_none(event.evolved_at_ms)} for event in page],
        "next_cursor": next_cursor,
    }


@router.get(
    "/api/users/{user:id}/pending",
    summary="Get what is pending for a user",
    response_model=None,
    responses=answer(Pending, names=("X-Pending",)),
)
@access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def get_pending(request: Request, user: User, services: Wired, feeds: WiredFeeds) -> Response:
    """Per current subscription, the channel head minus the high-water mark; and whether a rebuild is due."""
    await services.fresh(request, FEEDS_TOPICS)
    row, stored = await feeds_reads.pending_by_channel(services.database.require(), user)
    by_channel = {channel: max(0, pending) for channel, pending in stored.items()}
    clamped = sum(1 for pending in stored.values() if pending < 0)
    if clamped:
        PENDING_CLAMPED.inc(clamped)
        _log.warning("negative pending taken as 0", user_id=user, channels=clamped)
    now_ms = services.clock()
    pending = sum(by_channel.values())
    is_in_flight = row.in_flight_until is not None and now_ms < row.in_flight_until
    decision = should_rebuild(row.facts(by_channel), feeds.policy, now_ms)
    document = {
        "user_id": user,
        "pending": pending,
        "by_channel": by_channel,
        "cluster_version": row.cluster_version,
        "last_clustered_at": iso_from_ms_or_none(row.last_clustered_at),
        "due": isinstance(decision, Rebuild),
        "trigger": decision.trigger.value if isinstance(decision, Rebuild) else None,
        **_what_it_waits_for(decision, is_in_flight=is_in_flight, lacks_vectors=row.vectors_awaited_since is not None),
        "changed": row.is_changed,
        "in_flight": is_in_flight,
        "plan": row.plan,
        "last_active_at": iso_from_ms_or_none(row.last_active_at),
        "delayed": _delay_document(row.delay),
    }
    return uncached(document, {"X-Pending": str(pending)})


def _delay_document(delay: feeds_reads.Delay | None) -> answers.RebuildDelay | None:
    if delay is None:
        return None
    return {"reason": delay.reason, "times": delay.times, "at": iso_from_ms(delay.at_ms)}


_EVENT_OF_IDLE: Mapping[IdleReason, str] = {
    IdleReason.NOTHING_SUBSCRIBED: "subscription",
    IdleReason.INACTIVE: "activity",
}


def _what_it_waits_for(decision: Decision, *, is_in_flight: bool, lacks_vectors: bool) -> dict[str, Any]:
    """Return what must come before a rebuild is due, and when it is due without another event of the user."""
    match decision:
        case Idle(reason):
            return {"waits_for": _EVENT_OF_IDLE[reason], "due_at": None}
        case Wait(until_ms):
            return {"waits_for": "answer" if is_in_flight else "time", "due_at": iso_from_ms_or_none(until_ms)}
        case _:
            return {"waits_for": "vectors" if lacks_vectors else None, "due_at": None}


@router.get(
    "/api/users/{user:id}/subscriptions",
    summary="List a user's subscriptions",
    response_model=None,
    responses=answer(SubscribedChannels),
)
@access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def get_subscriptions(
    request: Request, user: User, services: Wired, limit: Limit = LIMIT_MAX, cursor: Cursor = None
) -> Response:
    """The channels that the user is currently subscribed to, ordered by id."""
    await services.fresh(request, SUBSCRIPTION_TOPICS)
    found = await feeds_reads.subscriptions(services.database.require(), user, text_after(cursor), limit + 1)
    page, next_cursor = page_of(found, limit, lambda channel: (channel,))
    return uncached({"user_id": user, "channels": page, "next_cursor": next_cursor})


def _channel_document(channel: Channel) -> dict[str, Any]:
    return {
        "channel_id": channel.channel_id,
        "current_seq": channel.current_seq,
        "last_insight_ts": iso_from_ms_or_none(channel.last_insight_at_ms),
    }


@router.get(
    "/api/channels/{channel:id}",
    summary="Get a channel; supports ETags",
    response_model=None,
    responses=answer(answers.Channel) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.FEEDS, limit=RateLimit.CALLER, cost=1)
async def get_channel(request: Request, channel: str, services: Wired) -> Response:
    """The channel's version is the number of its insights."""
    await services.fresh(request, INSIGHT_TOPICS)
    found = await feeds_reads.channel(services.database.require(), channel)
    if found is None:
        raise NotFoundError(f"channel {channel!r} has no insights")
    version = conditional.Version("channel", found.current_seq, found.caused_by)
    return conditional.answer_version(
        request, "channel", _channel_document(found), version, services.clock(), cache_control=CACHE_PUBLIC
    )


@router.get("/api/channels", summary="The channels", response_model=None, responses=answer(Channels))
@access(Role.VIEWER, Scope.FEEDS, limit=RateLimit.CALLER, cost=1)
async def get_channels(
    request: Request, services: Wired, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Response:
    """Every channel that has had an insight, ordered by id."""
    await services.fresh(request, INSIGHT_TOPICS)
    found = await feeds_reads.channels(services.database.require(), text_after(cursor), limit + 1)
    page, next_cursor = page_of(found, limit, lambda channel: (channel.channel_id,))
    return uncached({"channels": [_channel_document(channel) for channel in page], "next_cursor": next_cursor})


@router.get(
    "/api/insights/{channel:id}/{insight:id}",
    summary="Get an insight; supports ETags",
    response_model=None,
    responses=answer(Insight) | problems(GoneError) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.FEEDS, limit=RateLimit.CALLER, cost=1)
async def get_insight(request: Request, channel: str, insight: str, services: Wired) -> Response:
    """The insight as it was published; 410 after its retraction."""
    await services.fresh(request, INSIGHT_TOPICS)
    found = await feeds_reads.insight(services.database.require(), channel, insight)
    if found is None:
        raise NotFoundError(f"there is no insight {insight!r} in channel {channel!r}")
    if found.is_retracted:
        raise GoneError(f"insight {insight!r} was retracted")
    document = {
        "insight_id": found.insight_id,
        "channel_id": found.channel_id,
        "seq": found.seq,
        "ts": iso_from_ms(found.ts_ms),
        "arrived_at": iso_from_ms(found.arrived_at_ms),
        "text": found.text,
        "url": found.url,
        "position": found.caused_by,
    }
    payload = orjson.dumps(document)
    # An insight does not change until it is deleted.
    head = Head(1, conditional.tag_of("insight", payload), found.caused_by, services.clock())
    return conditional.answer(request, "insight", head, payload, cache_control=CACHE_PUBLIC)


@router.get(
    "/api/changes",
    summary="Stream changes as server-sent events",
    response_class=Response,
    responses=stream("An event for each version bump, with its position as the id."),
)
# Any scope: each key is checked separately.
@access(Role.VIEWER, owned_by=OwnedBy.FILTERED, limit=RateLimit.CALLER, cost=1)
async def get_changes(request: Request, called: Called, services: Wired) -> Response:
    """New versions of the resources that the caller may read, from now or from `Last-Event-ID`."""
    await services.fresh(request, frozenset())
    services.kafka.require()
    places, has_gap = await services.changes.start_places(request.headers.get("last-event-id"), called.principal)
    called.note_checked()
    principal, passports = called.principal, services.passports

    def is_visible(resource: str) -> bool:
        return may_read_key(principal, resource, passports)

    async def is_still_allowed() -> bool:
        return await services.authenticator.is_still_valid(request.headers.get("authorization"))

    CONDITIONAL_GETS.labels("changes", "sent").inc()
    chunks = services.changes.stream(
        places, has_gap, services.registry.require(), principal, is_visible, is_still_allowed
    )
    headers = {"Cache-Control": CACHE_NEVER, "X-Accel-Buffering": "no"}
    return StreamedAnswer(chunks, media_type="text/event-stream", headers=headers)

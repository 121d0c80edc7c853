"""Declares the access to searches over HTTP, and their limits; routes and the dashboard begin searches here.

Invariant: topics hold the events of all users, so only operators search them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from highwater.api.core.access import Access, OwnedBy, Scope
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import NotFoundError, TooManyRequestsError, UnprocessableError
from highwater.api.core.services import Services
from highwater.connectors.replay.cursors import InvalidCursorError, Search, parse_places
from highwater.connectors.replay.search_task import SearchTask
from highwater.connectors.replay.searches import (
    RunningSearch,
    Searches,
    SearchRefusedError,
    TooManySearchesError,
    TopicMissingError,
)
from highwater.connectors.replay.selection import InvalidSelectionError
from highwater.schemas.topics import Topic, all_topics, foreign_topic, is_topic_name
from highwater.streams.identity.rate_limits import RateLimit

# A page of a search and a download, over HTTP and on the dashboard. Each may read for a minute and more.
SEARCH = Access(Role.VIEWER, Scope.SYSTEM, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=5)
# As many as a person reads before the next page; a page of records of a megabyte each is still sent.
PAGE_RECORDS_DEFAULT, PAGE_RECORDS_MAX = 50, 500
# A page of recent records takes about a second; a search of everything up to a minute.
RETRY_AFTER_SECONDS = 5

_searches = Searches()


def topic_named(name: str) -> Topic:
    """Return a topic of the catalogue, dead letters included, or one of another application, which may not exist on the
    broker.

    Raises:
        NotFoundError: the name is invalid.
    """
    found = next((topic for topic in all_topics() if topic.name == name), None)
    if found is None and not is_topic_name(name):
        raise NotFoundError(f"there is no topic {name[:250]!r}")
    return found or foreign_topic(name)


@asynccontextmanager
async def begun(
    services: Services,
    principal: Principal,
    search: Search,
    *,
    cursor: str | None = None,
    limit: int = PAGE_RECORDS_DEFAULT,
    kind: str | None = None,
) -> AsyncIterator[RunningSearch]:
    """Yield a running search; `kind` None: a page of at most `limit` records, else all of them in that format.

    Raises:
        NotFoundError: the broker has no such topic.
        UnprocessableError: the search is invalid.
        TooManyRequestsError: too many run.
        UnavailableError: Kafka or the registry does not answer.
    """
    now_ms = services.clock()
    try:
        parse_places(search, cursor, now_ms)  # to refuse an invalid one a process would take a third of a second
    except (InvalidSelectionError, InvalidCursorError) as error:
        raise UnprocessableError(str(error)) from error
    settings = services.settings
    task = SearchTask(settings.kafka_client(), settings.registry_access(), search, cursor, now_ms, limit, kind)
    caller = (principal.key_id, principal.session_id, principal.user_id, principal.organization_id)
    try:
        async with _searches.open(task, caller) as running:
            yield running
    except TopicMissingError as error:
        raise NotFoundError(str(error)) from error
    except SearchRefusedError as error:
        raise UnprocessableError(str(error)) from error
    except TooManySearchesError as error:
        raise TooManyRequestsError(str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)}) from error

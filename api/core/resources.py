"""The owner of a resource by its kind: jobs, decks, queries, sessions, ingests, namespaces, and keys of versioned
resources.

Invariants. Each kind is looked up in one way, whether its id is in a path, a body, an event or a stream. Bound callers
cannot read keys of an unknown kind. Missing resources and those of others get the same text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import asyncpg

from highwater.api.core.access import OwnedBy, Owner, Relation, Scope, in_scope, may_read_namespace, relation
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError, NotFoundError
from highwater.api.core.unstored import Creation
from highwater.connectors.chunks import read_model as chunk_reads
from highwater.connectors.chunks.read_model import Ingest
from highwater.connectors.identity.sessions import Session
from highwater.connectors.jobs import blobs, views
from highwater.connectors.jobs import read_model as job_reads
from highwater.connectors.jobs.blobs import Blob
from highwater.connectors.jobs.read_model import JobRead, Presentation
from highwater.connectors.jobs.views import DeckOwner
from highwater.connectors.queries import read_model as query_reads
from highwater.connectors.queries.read_model import Run, RunHistory
from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_DECIDED, INGEST_FINISHED
from highwater.schemas.feeds import INSIGHT_RETRACTED, USER_ERASED
from highwater.schemas.jobs import (
    CONTROL,
    EXPORT_REQUESTED,
    GENERATION_REQUESTED,
    INGESTION_REQUESTED,
    JOB_SUBMITTED,
)
from highwater.schemas.queries import PIPELINE_STAGE, QUERY_SUBMITTED, RUN_ARCHIVED, RUN_CONTROLLED, STAGE_REQUESTED
from highwater.streams.checks import check_id
from highwater.streams.chunks.passports import Given, Passports
from highwater.streams.chunks.validation import check_ingest
from highwater.streams.jobs.args import Args, IngestionArgs
from highwater.streams.jobs.validation import check_jobs_event
from highwater.streams.league.resources import resource_of
from highwater.streams.queries.validation import check_queries_event

if TYPE_CHECKING:
    from highwater.api.core.services import Services

T = TypeVar("T")
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

_OF_USERS = ("feed", "clusters")
_NAMESPACE = "ns"


@dataclass(frozen=True)
class Resource(Generic[T]):
    """A kind of resources with ids: how one is read, its owner, the topics whose events change it, and the events that
    create it.
    """

    owned_by: OwnedBy
    read: Callable[[Pool, str], Awaitable[T | None]] | None
    owner: Callable[[T], Owner]
    fed_by: frozenset[str] = frozenset()
    created_by: tuple[Creation[T], ...] = ()

    def missing(self, identifier: str) -> NotFoundError:
        """Return the error for one that does not exist, or that belongs to others."""
        if self.owned_by is OwnedBy.SESSION:  # its id is a secret and is not repeated
            return NotFoundError("there is no such session")
        return NotFoundError(f"there is no {self.owned_by} {identifier}")


async def _job(pool: Pool, job_id: str) -> JobRead | None:
    return (await job_reads.jobs(pool, [job_id])).get(job_id)


class OwnedBlob(NamedTuple):
    """A blob of an organization; None: as an admin reads it, regardless of the owner."""

    blob: Blob
    organization_id: str | None


def _of_both(value: JobRead | Presentation | DeckOwner) -> Owner:
    return Owner(value.user_id, value.organization_id)


def _of_user(value: Run | RunHistory) -> Owner:
    return Owner(value.user_id)


# A user's jobs end with the user; a deck also loses its quotes of deleted chunks, when their ingest is decided. The commands
# are what a job's own `X-Caused-By` names.
_JOB_TOPICS: frozenset[str] = frozenset(
    {JOB_SUBMITTED, CONTROL, USER_ERASED, GENERATION_REQUESTED, INGESTION_REQUESTED, EXPORT_REQUESTED}
)
# A retraction withdraws the answers made from the insight, as the end of an ingest does for deleted chunks; an erased user's
# answers are erased with the user. The command is what an answer's own `X-Caused-By` names.
_RUN_TOPICS: frozenset[str] = frozenset(
    {QUERY_SUBMITTED, RUN_CONTROLLED, STAGE_REQUESTED, INSIGHT_RETRACTED, INGEST_DECIDED, USER_ERASED}
)
_SUBMITTED_JOB = Creation(JOB_SUBMITTED, itemgetter("job_id"), check_jobs_event, job_reads.accepted)
JOB: Resource[JobRead] = Resource(OwnedBy.JOB, _job, _of_both, _JOB_TOPICS, (_SUBMITTED_JOB,))
DECK: Resource[Presentation] = Resource(OwnedBy.DECK, job_reads.presentation, _of_both, _JOB_TOPICS | {INGEST_DECIDED})
# The same decks, read without their slides.
DECK_OWNER: Resource[DeckOwner] = Resource(OwnedBy.DECK, views.owner_of, _of_both)
# A run is created by a query, or by the restart of another run.
RUN: Resource[Run] = Resource(
    OwnedBy.RUN,
    query_reads.run,
    _of_user,
    _RUN_TOPICS,
    (
        Creation(QUERY_SUBMITTED, itemgetter("request_id"), check_queries_event, query_reads.accepted),
        Creation(RUN_CONTROLLED, itemgetter("new_request_id"), check_queries_event, query_reads.restarted),
    ),
)
RUN_HISTORY: Resource[RunHistory] = Resource(
    OwnedBy.RUN,
    query_reads.run_history,
    _of_user,
    _RUN_TOPICS | {PIPELINE_STAGE, RUN_ARCHIVED},
    (
        Creation(QUERY_SUBMITTED, itemgetter("request_id"), check_queries_event, query_reads.accepted_history),
        Creation(RUN_CONTROLLED, itemgetter("new_request_id"), check_queries_event, query_reads.restarted_history),
    ),
)


# The first event of an ingest, a chunk or its end; its route reads a stored one by pages.
INGEST_CREATED_BY: tuple[Creation[Ingest], ...] = (
    Creation(CHUNK_SUBMITTED, itemgetter("ingest_id"), check_ingest, chunk_reads.accepted),
    Creation(INGEST_FINISHED, itemgetter("ingest_id"), check_ingest, chunk_reads.accepted),
)
# Read by its route: it belongs to each organization that has uploaded it.
BLOB: Resource[OwnedBlob] = Resource(OwnedBy.BLOB, None, lambda found: Owner(None, found.organization_id))
# A session belongs to its user only, since it acts for that user. Its route reads it from Redis.
SESSION: Resource[Session] = Resource(OwnedBy.SESSION, None, lambda session: Owner(session.user_id))


async def known(services: Services, resource: Resource[T], identifier: str) -> T | None:
    """Return the resource with this id as it is stored, or as its event creates it while its sink is behind.

    Raises:
        NotYetError: the rest of the log could not be read in time, so whether it exists is unknown.
        UnavailableError: PostgreSQL or Kafka is unavailable.
    """
    assert resource.read is not None
    pool = services.database.require()
    value = await resource.read(pool, identifier)
    if value is not None or not resource.created_by:
        return value
    for creation in resource.created_by:
        event = await services.unstored.event(creation, identifier)
        if event is not None:
            return await creation.value(pool, event)
    return await resource.read(pool, identifier)  # it may have been stored since the first read


# -- what a job names -------------------------------------------------------------------------------------------------------


async def require_job_args(services: Services, principal: Principal, organization_id: str, args: Args) -> None:
    """Refuse a job that names resources its submitter may not read, or writes where it may not.

    For an operator's key the worker checks it, since the worker reads only decks and documents of the job's
    organization.

    Raises:
        ForbiddenError: an ingestion without the role admin: it writes chunks as `POST /api/chunks/ingest` does.
        NotFoundError: the deck or a document does not exist for the caller.
        UnavailableError: PostgreSQL is unavailable.
    """
    if isinstance(args, IngestionArgs) and principal.role is not Role.ADMIN:
        raise ForbiddenError("an ingestion writes chunks: this needs the role admin")
    if relation(principal, Owner()) is Relation.ANY:
        return
    pool = services.database.require()
    if not isinstance(args, IngestionArgs) and args.presentation_id is not None:
        deck = await views.owner_of(pool, args.presentation_id)
        is_readable = deck is not None and relation(principal, _of_both(deck)) is not Relation.NONE
        if deck is None or not is_readable or deck.organization_id != organization_id:
            raise DECK_OWNER.missing(args.presentation_id)
    known = await blobs.known(pool, args.documents, organization_id) if args.documents else {}
    missing = next((one for one in args.documents if one not in known), None)
    if missing is not None:
        raise NotFoundError(f"there is no {OwnedBy.BLOB} {missing}")


# -- namespaces -------------------------------------------------------------------------------------------------------------


def is_open(passports: Passports, ns: str, row: Any) -> bool:
    """Return whether users may read a namespace: its passport allows it, and so does its row if it has one."""
    if row is None:
        return passports.of(ns).is_open
    return passports.of(ns, Given.of_row(row)).is_open and bool(row["is_open"])


async def namespace_is_open(services: Services, ns: str) -> bool:
    """Read the row of a namespace and return whether users may read it."""
    found = await chunk_reads.namespace(services.database.require(), ns)
    return is_open(services.passports, ns, found.row)


async def ingest_namespaces(services: Services, ingest_id: str) -> Sequence[str]:
    """The namespaces that an ingest wrote to."""
    return await chunk_reads.ingest_namespaces(services.database.require(), ingest_id)


def no_ingest(ingest_id: str) -> NotFoundError:
    """Return the error for an ingest that is unknown, or that wrote to a namespace that the caller may not read."""
    return NotFoundError(f"there is no {OwnedBy.INGEST} {ingest_id!r}")


# -- keys of versioned resources --------------------------------------------------------------------------------------------


def namespace_of(key: str) -> str | None:
    """Return the namespace of a key; None if it belongs to something else."""
    kind, _, ns = key.partition(":")
    return ns if kind == _NAMESPACE else None


def _owner_of_key(key: str) -> Owner | None:
    """Return the owner of a key's resource; None: it is public."""
    kind, _, rest = key.partition(":")
    if kind in _OF_USERS:
        return Owner(rest)
    found = resource_of(key)
    if found is None:
        return Owner()  # nobody owns an unknown kind
    return Owner(found.id) if found.kind.is_private else None


def may_read_key(principal: Principal, key: str, passports: Passports | None = None) -> bool:
    """Return whether a principal may read the resource of a key; `passports` decide on namespaces, which are closed
    without one.
    """
    if not in_scope(_scope_of_key(key), principal):
        return False
    ns = namespace_of(key)
    if ns is not None:
        opened = passports is not None and passports.of(ns).is_open
        return may_read_namespace(principal, is_open=opened)
    found = resource_of(key)
    if found is not None and found.kind.is_private and not found.kind.has_id:
        return principal.role is Role.ADMIN
    owner = _owner_of_key(key)
    return owner is None or relation(principal, owner) is not Relation.NONE


def require_key(principal: Principal, key: str) -> None:
    """Refuse a principal that may not read the resource of a key; the key is not of a namespace.

    Raises:
        ForbiddenError: it belongs to others, or is for administrators.
        InvalidEventError: it names a user by an invalid id.
    """
    kind, _, rest = key.partition(":")
    if kind in _OF_USERS:
        check_id("user", rest)
    if may_read_key(principal, key):
        return
    owner = _owner_of_key(key)
    if owner is not None and owner.user_id and relation(principal, owner) is Relation.NONE:
        raise ForbiddenError("this key or session is bound to another user")
    raise ForbiddenError(f"this key or session may not read {key!r}: it needs the role admin")


def _scope_of_key(key: str) -> Scope | None:
    kind = key.partition(":")[0]
    if kind in _OF_USERS:
        return Scope.FEEDS
    if kind == _NAMESPACE:
        return Scope.CHUNKS
    return None if resource_of(key) is None else Scope.LEAGUE

"""Documents and files, stored and read by the SHA-256 of their bytes: a job names them by it, they are never part of an
event.

Invariants. A body is streamed: one that is too large is refused before the rest of it is read, and an interrupted one
leaves nothing. A success response means that the bytes are stored, and that the announced digests were right. A blob is
readable by the organizations that have stored it, and by admins; for all others it does not exist. A browser never
shows a stored file as one of our pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import (
    BadRequestError,
    ForbiddenError,
    PaymentRequiredError,
    TooLargeError,
    UnprocessableError,
)
from highwater.api.core.guard import Called, Caller, GuardedRoute
from highwater.api.core.openapi import NOT_MODIFIED, fields, problems
from highwater.api.core.resources import BLOB, OwnedBlob
from highwater.api.core.services import Services, Wired
from highwater.api.core.streamed import StreamedAnswer
from highwater.api.jobs.answers import PartsLeftOut
from highwater.api.jobs.services import WiredJobs
from highwater.api.jobs.uploads import Uploads
from highwater.connectors.identity.organizations import Organization
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.blobs import Blob, BlobTooLargeError, Spooled, StorageFullError
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.identity.plans import Limit, Usage, refusal, refusal_text
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.jobs.file_names import check_file_name, content_disposition, name_of_digest
from highwater.streams.letters import cut_to

# Requests whose bodies have a limit of their own, and are not counted in the common one.
OWN_BOUND = frozenset({("PUT", "/api/blobs")})
MEDIA_TYPE_DEFAULT = "application/octet-stream"
# Parts of a document that an answer lists, and letters of each: as much as somebody reads to judge what was left out.
LEFT_OUT_MAX, LEFT_OUT_CHARACTERS_MAX = 1_000, 1_000
# Contents under a digest never change, so a permitted reader may cache them for a year.
CACHE_CONTROL = "private, max-age=31536000, immutable"
# A document is offered as a file; browsers do not run it or guess its type under the API's own address.
_AS_A_FILE = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE = re.compile(r"[\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+(?:\s*;[\x20-\x7e]*)?", re.ASCII)
_MEDIA_TYPE_CHARACTERS_MAX = 255
# A member of a dictionary of RFC 8941 whose value is a byte sequence; others are ignored, as in RFC 9530.
_DIGEST = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):\s*")

# Bytes of any kind; generated clients use the first.
_ANY_BYTES: dict[str, Any] = {
    kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("application/octet-stream", "*/*")
}

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)

Named = Annotated[str | None, Query(description="the organization; a session may omit it")]


class Stored(BaseModel):
    """A stored document."""

    sha256: str
    size: int


@router.put(
    "/api/blobs",
    summary="Upload a document",
    response_model=Stored,
    responses={
        201: {"model": Stored, "description": "The document is new to the organization."},
        **problems(PaymentRequiredError),
    },
    openapi_extra={"requestBody": {"required": True, "content": _ANY_BYTES}},
)
@access(Role.EDITOR, Scope.JOBS, OwnedBy.ORGANIZATION, limit=RateLimit.PLAN, cost=1)
async def put_blob(
    request: Request,
    response: Response,
    called: Called,
    services: Wired,
    jobs: WiredJobs,
    organization_id: Named = None,
    sha256: Annotated[str | None, Query(description="expected SHA-256 of the content, in hexadecimal")] = None,
    filename: Annotated[str | None, Query(description="file name for downloads")] = None,
) -> Stored:
    """Any bytes, with their `Content-Type`. 200 without a change if the organization already has the document."""
    organization = called.organization(organization_id)
    if filename is not None:
        check_file_name("filename", filename)
    media_type, expected = _media_type(request), _expected(request, sha256)
    limits = await services.organizations.read_limits(organization)
    _check_may_put(limits, request)
    found = await _taken(request, services, jobs.uploads, called.principal, limits, media_type, expected, filename)
    response.status_code = HTTPStatus.CREATED if found.is_new else HTTPStatus.OK
    response.headers["Location"] = f"/api/blobs/{found.sha256}"
    return Stored(sha256=found.sha256, size=found.size_bytes)


@router.get(
    "/api/blobs/{sha256}",
    summary="Download a document; supports ETags",
    response_class=Response,
    responses={
        200: {
            "content": _ANY_BYTES,
            **fields("ETag", "Cache-Control", "Content-Digest")[200],
        },
        **NOT_MODIFIED,
    },
)
@access(Role.VIEWER, Scope.JOBS, OwnedBy.BLOB, limit=RateLimit.PLAN, cost=1)
async def get_blob(
    request: Request,
    sha256: Annotated[str, Path(description="SHA-256 returned by PUT /api/blobs")],
    called: Called,
    services: Wired,
    organization_id: Named = None,
) -> Response:
    """The content, for organizations that uploaded it and for admins."""
    blob = await _readable(services, called, _hexadecimal("sha256", sha256), organization_id)
    headers = {"ETag": f'"{blob.sha256}"', "Cache-Control": CACHE_CONTROL}
    if conditional.is_match(conditional.condition(request), blob.sha256):
        return Response(status_code=int(HTTPStatus.NOT_MODIFIED), headers=headers)
    digest = base64.b64encode(bytes.fromhex(blob.sha256)).decode()
    headers |= {"Content-Length": str(blob.size_bytes), "Content-Digest": f"sha-256=:{digest}:", **_AS_A_FILE}
    name = blob.file_name or name_of_digest(blob.sha256, blob.media_type)
    headers["Content-Disposition"] = content_disposition(name)
    parts = blobs.read(services.database.require(), blob)
    # The first part before the status: an unavailable PostgreSQL is a 503 and not an interrupted response.
    first = await anext(parts, b"")
    return StreamedAnswer(_all_parts(first, parts), headers=headers, media_type=blob.media_type)


@router.get(
    "/api/blobs/{sha256}/left-out",
    summary="List the parts of a document that ingestion leaves out",
    response_model=None,
    responses=answer(PartsLeftOut) | problems(UnprocessableError),
)
@access(Role.VIEWER, Scope.JOBS, OwnedBy.BLOB, limit=RateLimit.PLAN, cost=1)
async def get_left_out(
    sha256: Annotated[str, Path(description="SHA-256 returned by PUT /api/blobs")],
    called: Called,
    services: Wired,
    jobs: WiredJobs,
    organization_id: Named = None,
    limit: Annotated[int, Query(ge=1, le=LEFT_OUT_MAX, description="Parts of the answer.")] = LEFT_OUT_MAX,
) -> Response:
    """Reads the document again: running heads, page numbers, contents and menus are in no chunk unless the job's args have
    `keep_all`. 422 if the document cannot be read.
    """
    blob = await _readable(services, called, _hexadecimal("sha256", sha256), organization_id)
    try:
        chunked = await jobs.reader.read(blobs.read(services.database.require(), blob), blob.media_type)
    except UnreadableDocumentError as error:
        raise UnprocessableError(f"the document cannot be read: {error}", field="sha256") from error
    with closing(chunked):
        parts = await asyncio.to_thread(chunked.parts_left_out, limit)
    told = [{"reason": reason, "text": cut_to(text, LEFT_OUT_CHARACTERS_MAX)} for reason, text in parts]
    return conditional.uncached({"sha256": blob.sha256, "left_out": chunked.left_out, "parts": told})


async def _all_parts(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(parts) as rest:  # type: ignore[type-var]  # it is a generator
        yield first
        async for part in rest:
            yield part


async def _readable(services: Services, called: Caller, sha256: str, named: str | None) -> Blob:
    """Return the blob if the caller may read it.

    Raises:
        NotFoundError: it does not exist for the caller.
    """
    pool = services.database.require()
    if called.principal.role is Role.ADMIN and named is None:
        organization_id, found = None, await blobs.find(pool, sha256)
    else:
        organization_id = called.organization(named)
        found = (await blobs.known(pool, [sha256], organization_id)).get(sha256)
    owned = None if found is None else OwnedBlob(found, organization_id)
    return called.shown(BLOB, owned, sha256).blob


async def _taken(
    request: Request,
    services: Services,
    uploads: Uploads,
    principal: Principal,
    limits: Organization,
    media_type: str,
    expected: dict[str, tuple[str, str]],
    file_name: str | None,
) -> blobs.Put:
    """Read, check and store the body.

    Raises:
        TooLargeError: it is above the plan's size.
        UnprocessableError: it differs from the announcement.
        PaymentRequiredError: there is no space for it.
        BadRequestError: it was interrupted.
        TooManyRequestsError: the caller or its organization sends its share already.
        UnavailableError: too many are read at once, or PostgreSQL is unavailable.
    """
    pool = services.database.require()
    try:
        async with uploads.spooled(request, principal, limits.plan.file_bytes_max) as found:
            _check_digests(found, expected)
            return await blobs.store(
                pool,
                found,
                media_type=media_type,
                organization_id=limits.organization_id,
                now_ms=services.clock(),
                storage_bytes_max=limits.plan.storage_bytes_max,
                file_name=file_name,
            )
    except BlobTooLargeError as error:
        raise _too_large(limits) from error
    except StorageFullError as error:
        told = refusal_text(Limit.STORAGE, limits.organization_id, limits.plan)
        raise PaymentRequiredError(told, limit=Limit.STORAGE.value) from error


def _check_may_put(limits: Organization, request: Request) -> None:
    """Refuse requests that can be refused without the body.

    Raises:
        ForbiddenError: the organization is suspended.
        TooLargeError: the announced length is above the plan's size.
    """
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isascii() and length.isdigit() else 0
    limit = refusal(limits.plan, limits.status, Usage(file_bytes=announced), is_upload=True)
    if limit is Limit.FILE_SIZE:
        raise _too_large(limits)
    if limit is not None:
        raise ForbiddenError(refusal_text(limit, limits.organization_id, limits.plan), limit=limit.value)


def _too_large(limits: Organization) -> TooLargeError:
    told = refusal_text(Limit.FILE_SIZE, limits.organization_id, limits.plan)
    return TooLargeError(told, limit=Limit.FILE_SIZE.value)


def _media_type(request: Request) -> str:
    """Return the announced media type of the bytes.

    Raises:
        UnprocessableError: it is not a media type, or the bytes are encoded or partial.
    """
    headers = request.headers
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnprocessableError(
            "a document is stored exactly as sent; send it without Content-Encoding", field="Content-Encoding"
        )
    if "content-range" in headers:  # RFC 9110, section 14.5
        raise BadRequestError("a document is uploaded as a whole; Content-Range is not supported")
    media_type = headers.get("content-type", MEDIA_TYPE_DEFAULT).strip()
    if len(media_type) > _MEDIA_TYPE_CHARACTERS_MAX or _MEDIA_TYPE.fullmatch(media_type) is None:
        raise UnprocessableError("Content-Type is not a media type", field="Content-Type")
    return media_type


def _expected(request: Request, sha256: str | None) -> dict[str, tuple[str, str]]:
    """Return the expected digests, by the field that names them: the algorithm and the hexadecimal digits.

    Raises:
        UnprocessableError: one is malformed.
    """
    found = {} if sha256 is None else {"sha256": ("sha256", _hexadecimal("sha256", sha256))}
    text = ", ".join(request.headers.getlist("content-digest"))
    for member in text.split(",") if text.strip() else ():
        told = _DIGEST.fullmatch(member)
        if told is None:
            raise UnprocessableError("Content-Digest does not conform to RFC 9530", field="Content-Digest")
        if told[1] in _ALGORITHMS:
            algorithm = _ALGORITHMS[told[1]]
            found[f"Content-Digest {told[1]}"] = (algorithm, _decoded(told[2]))
    return found


# Those that RFC 9530 recommends; others are insecure and are ignored.
_ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512"}


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).hex()
    except binascii.Error as error:
        raise UnprocessableError(f"Content-Digest is not base64: {error}", field="Content-Digest") from error


def _hexadecimal(name: str, text: str) -> str:
    lower = text.lower()
    if _SHA256.fullmatch(lower) is None:
        raise UnprocessableError(f"{name} is not 64 hexadecimal digits", field=name)
    return lower


def _check_digests(found: Spooled, expected: dict[str, tuple[str, str]]) -> None:
    """Refuse bytes that differ from the announced ones.

    Raises:
        UnprocessableError: they differ; gives the actual digest.
    """
    for where, (algorithm, digest) in expected.items():
        if getattr(found, algorithm) != digest:
            told: dict[str, Any] = {"field": where.split(" ", 1)[0], "sha256": found.sha256, "size": found.size_bytes}
            raise UnprocessableError(f"{where} does not match the received bytes", **told)

"""The types of problems (RFC 9457): each has a name, a status and a page at `/problems/{name}` that says what to do.

Invariant: every `type` that the API sends is in `KINDS`, and so has a page. A type is a path, relative to the API that sent it
(RFC 9457, section 3.1.1), so it is the same in every installation.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

PROBLEM_TYPE = "application/problem+json"
PREFIX = "/problems/"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One type of problem: what it means and what the client can do."""

    name: str
    status: HTTPStatus
    meaning: str
    remedy: str

    @property
    def type(self) -> str:
        """The value of the member `type`."""
        return PREFIX + self.name


_RETRY = "Wait as many seconds as `Retry-After` says, then send the same request again."
INVALID_EVENT = ProblemKind(
    "invalid-event",
    HTTPStatus.UNPROCESSABLE_ENTITY,
    "The event breaks a rule of its topic.",
    "`field` names the field and `reason` the rule; correct the event. Nothing was published.",
)
POSITION_LOST = ProblemKind(
    "position-lost",
    HTTPStatus.GONE,
    "Kafka has lost the record of a position that the request names.",
    "Read without the position; keep your copy. `detail` names the position.",
)
# The first kind of a status is the general one.
KINDS: tuple[ProblemKind, ...] = (
    ProblemKind("bad-request", HTTPStatus.BAD_REQUEST, "The request is malformed.", "Read `detail` and correct it."),
    ProblemKind(
        "unauthorized",
        HTTPStatus.UNAUTHORIZED,
        "The API needs a key or a session, and the request has no valid one.",
        "Send it as `Authorization: Bearer`.",
    ),
    ProblemKind(
        "plan-limit",
        HTTPStatus.PAYMENT_REQUIRED,
        "The organization has reached a limit of its plan.",
        "`limit` names the limit; wait for the next period or change the plan.",
    ),
    ProblemKind(
        "forbidden",
        HTTPStatus.FORBIDDEN,
        "The role, scope or user of the key does not allow this.",
        "Use another key, or ask for the role that `detail` names.",
    ),
    ProblemKind(
        "not-found",
        HTTPStatus.NOT_FOUND,
        "There is no such resource, or it belongs to another user or organization.",
        "Check the ids.",
    ),
    ProblemKind(
        "method-not-allowed",
        HTTPStatus.METHOD_NOT_ALLOWED,
        "The resource does not support this method.",
        "`Allow` names the supported methods.",
    ),
    ProblemKind(
        "not-acceptable",
        HTTPStatus.NOT_ACCEPTABLE,
        "The response is not available in any content coding that the request accepts.",
        "Allow `identity`, `gzip` or `br` in `Accept-Encoding`.",
    ),
    ProblemKind(
        "request-timeout",
        HTTPStatus.REQUEST_TIMEOUT,
        "The request did not arrive in time.",
        "Send it again, and faster.",
    ),
    ProblemKind(
        "conflict",
        HTTPStatus.CONFLICT,
        "The request conflicts with the state of the resource.",
        "Read `detail` and the resource, then decide again.",
    ),
    ProblemKind(
        "gone", HTTPStatus.GONE, "The resource was retracted or erased.", "It cannot be restored; delete your copy."
    ),
    POSITION_LOST,
    ProblemKind(
        "too-large",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "The body of the request is larger than the API accepts.",
        "Send it in parts.",
    ),
    ProblemKind(
        "unsupported-media-type",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "The route does not accept this media type, or the body is compressed.",
        "`/docs` names the media types of each route; send the body without `Content-Encoding`.",
    ),
    ProblemKind(
        "misdirected-request",
        HTTPStatus.MISDIRECTED_REQUEST,
        "An API without keys answers only to names of this machine, and `Host` has another name.",
        "Use `localhost`, or set up keys (`highwater keys`).",
    ),
    ProblemKind(
        "unprocessable",
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "The content breaks a rule.",
        "`field` names the first field that does, `errors` all of them; correct them.",
    ),
    INVALID_EVENT,
    ProblemKind(
        "too-many-requests",
        HTTPStatus.TOO_MANY_REQUESTS,
        "A limit of requests, connections or wrong keys is reached.",
        f"`violated-policies` names the limit. {_RETRY}",
    ),
    ProblemKind(
        "header-fields-too-large",
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "The header fields of the request are larger than 64 KiB.",
        "Send fewer or shorter ones.",
    ),
    ProblemKind(
        "internal-error",
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The API failed unexpectedly.",
        "Its log holds the error and the request; report both.",
    ),
    ProblemKind(
        "unavailable", HTTPStatus.SERVICE_UNAVAILABLE, "A service that the answer needs is unavailable.", _RETRY
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
_BY_STATUS = {kind.status: kind for kind in reversed(KINDS)}


def kind_of(status: HTTPStatus | int) -> ProblemKind:
    """Return the kind for a status; for a status without one, the general kind of its class."""
    try:
        return _BY_STATUS[HTTPStatus(status)]
    except KeyError:
        return BY_NAME["bad-request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal-error"]


def document_of(kind: ProblemKind, status: HTTPStatus | int, detail: str) -> dict[str, Any]:
    """Return the members that every problem has."""
    return {"type": kind.type, "title": HTTPStatus(status).phrase, "status": int(status), "detail": detail}

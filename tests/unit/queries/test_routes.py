"""Submitting without a broker: ids, idempotency keys, and the timeline as a function of the stored state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request

from highwater.api.app import create_app  # the routes know their converters once the application was put together
from highwater.api.core.access import access_of
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import BadRequestError, ForbiddenError, UnprocessableError
from highwater.api.core.guard import Caller
from highwater.api.core.idempotency import idempotency_key
from highwater.api.core.uuids import canonical_uuid
from highwater.api.queries.routes import named_user, post_query, request_id_of
from highwater.api.queries.timeline import timeline_document
from highwater.connectors.queries.read_model import RunHistory, served_archive_status
from highwater.schemas.errors import InvalidEventError

ADA, BOB = "11111111-1111-4111-8111-11111111111a", "22222222-2222-4222-8222-22222222222b"
assert create_app


def _request(*keys: str) -> Request:
    return Request({"type": "http", "headers": [(b"idempotency-key", key.encode("latin-1")) for key in keys]})


def test_an_idempotency_key_is_one_printable_text():
    """With or without the quotes of the draft; anything else is refused."""
    assert idempotency_key(_request()) is None
    assert idempotency_key(_request("k")) == idempotency_key(_request(' "k" ')) == "k"
    assert idempotency_key(_request(r'"a\"b\\c"')) == 'a"b\\c'
    assert idempotency_key(_request("x" * 255)) == "x" * 255
    for keys in (("",), (" ",), ('""',), ("x" * 256,), ("\xe9",), ("a\x7f",), ("a", "b")):
        with pytest.raises(BadRequestError):
            idempotency_key(_request(*keys))


def test_a_request_is_named_by_its_user_and_key():
    """Always the same of both, another of any other, and a fresh one without a key."""
    assert request_id_of(ADA, "k") == request_id_of(ADA, "k") == "f19a1cd0-ce8d-5d21-b9e6-c590eb92bf2b"
    assert len({request_id_of(user, key) for user in (ADA, BOB) for key in ("k", "l", None, None)}) == 8


@pytest.mark.parametrize(
    "text", ["", "x", ADA[:-1], ADA + "1", f"{{{ADA}}}", f"urn:uuid:{ADA}", ADA.replace("-", ""), ADA + "\n"]
)
def test_what_is_no_uuid(text: str):
    """Only the one form with hyphens, in either case."""
    assert canonical_uuid("user_id", ADA.upper()) == ADA
    with pytest.raises(UnprocessableError):
        canonical_uuid("user_id", text)


def _user(principal: Principal, named: str | None) -> str:
    services: Any = None
    return named_user(Caller(services, access_of(post_query), principal), named)  # type: ignore[arg-type]


def test_who_asks():
    """By default an editor's own user, in any case; another one only with an editor's key without a user or an admin's key."""
    assert _user(Principal(Role.EDITOR, ADA.upper()), None) == ADA
    assert _user(Principal(Role.EDITOR, ADA.upper()), ADA) == ADA
    assert _user(Principal(Role.EDITOR), BOB) == _user(Principal(Role.ADMIN, ADA), BOB) == BOB
    for refused in (
        Principal(Role.EDITOR, ADA),
        Principal(Role.VIEWER),
        Principal(Role.EDITOR, organization_id="acme"),
        Principal(Role.VIEWER, BOB),  # paid work needs an editor
    ):
        with pytest.raises(ForbiddenError):
            _user(refused, BOB)
    assert _user(Principal(Role.ADMIN), "Tom") == "Tom"
    for named in (None, "to\nm"):
        with pytest.raises((UnprocessableError, InvalidEventError)):
            _user(Principal(Role.ADMIN), named)


def _event(status: str, at_ms: int, **fields: Any) -> dict[str, Any]:
    named = {
        "status": status,
        "archive_status": None,
        "operation": "UPDATE",
        "attempt": 0,
        "revision": 1,
        "error": None,
    }
    return {**named, "at_ms": at_ms, "position": f"queries.pipeline-stage/0/{at_ms}", **fields}


RUN = RunHistory(
    request_id=ADA, user_id=BOB, query="q", status="NEW", archive_status=None, error=None, sources=None,
    position="queries.query-submitted/0/1", caused_by="queries.query-submitted/0/1", restarted_from=None, created_ms=1_000,
    ended_ms=None, version=2, events=(), calls=(),
)  # fmt: skip


def _stages(*events: dict[str, Any]) -> list[tuple[str, int | None]]:
    document = timeline_document(replace(RUN, events=events))
    return [(stage["stage"], stage["duration_ms"]) for stage in document["stages"]]


def test_a_stage_lasts_from_its_first_capture_to_its_end():
    """This holds also if a worker ended and another took over; a stage that has not begun is absent, a running one is open."""
    lost = (_event("NEW", 1), _event("ANALYZING", 2), _event("NEW", 5), _event("ANALYZING", 6))
    assert _stages() == _stages(_event("NEW", 1)) == []
    assert _stages(*lost) == [("analyzer", None)]
    ended = (*lost, _event("ANALYZED", 9), _event("ASSEMBLING", 9))
    assert _stages(*ended) == [("analyzer", 7), ("assembler", None)]
    assert _stages(*ended, _event("FAILED", 12)) == [("analyzer", 7), ("assembler", 3)]
    # The product's clock was set back.
    assert _stages(_event("ANALYZING", 5), _event("ANALYZED", 2)) == [("analyzer", 0)]


def test_a_run_that_took_over_has_no_stages_before_its_own():
    """A restart from the responder begins there."""
    events = (
        _event("READY", 1),
        _event("RESPONDING", 2),
        _event("COMPLETED", 4),
        _event("COMPLETED", 9, archive_status="FAILED"),
    )
    assert _stages(*events) == [("responder", 2), ("archivist", 5)]


def test_a_memory_that_is_worked_on_waits():
    """This is the published status, so that it never goes back."""
    told = [served_archive_status(status) for status in (None, "WAITING", "ARCHIVING", "STORED", "FAILED")]
    assert told == [None, "WAITING", "WAITING", "STORED", "FAILED"]

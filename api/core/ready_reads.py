"""What every short way to an answer (`ready.py`) asks of a read first: what it is, and who sends it.

Invariant: in doubt a read is left to the usual way, which refuses it or knows which of two fields counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope

from highwater.api.core.auth import Authenticator, Principal
from highwater.api.core.freshness import POSITIONED
from highwater.api.core.proxies import address_of

METHODS = ("GET", "HEAD")
# What a read waits for is not known here.
_ASIDE = frozenset({POSITIONED, b"x-max-wait-ms"})


def plain_fields(scope: Scope) -> Mapping[bytes, bytes] | None:
    """The fields of a read that names nothing but a path; None where it is another request, or in doubt."""
    if scope["query_string"] or scope["method"] not in METHODS:
        return None
    headers = dict(scope["headers"])
    # A field that came twice is left to who knows which of the two counts.
    if len(headers) != len(scope["headers"]) or not _ASIDE.isdisjoint(headers):
        return None
    return headers


def principal_of(authenticator: Authenticator, scope: Scope, headers: Mapping[bytes, bytes]) -> Principal | None:
    """Who asks, where that takes no asking."""
    sent = headers.get(b"authorization")
    if sent is None:
        return authenticator.quick(None)
    authorization = sent.decode("latin-1")
    # A key that this address has not used before goes the usual way, where wrong ones are counted.
    if not authenticator.attempts.is_proven(address_of(scope), authorization):
        return None
    return authenticator.quick(authorization)

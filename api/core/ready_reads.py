"""What every shortcut to an answer (`ready.py`) checks first: the kind of read and the caller.

Invariant: in doubt a read takes the normal route, which refuses it or resolves duplicate fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope

from highwater.api.core.auth import Authenticator, Principal
from highwater.api.core.freshness import POSITIONED
from highwater.api.core.proxies import address_of

METHODS = ("GET", "HEAD")
# Positions that a read waits for are not checked here.
_ASIDE = frozenset({POSITIONED, b"x-max-wait-ms"})


def plain_fields(scope: Scope) -> Mapping[bytes, bytes] | None:
    """Return the fields of a read that names only a path; None for another request, or in doubt."""
    if scope["query_string"] or scope["method"] not in METHODS:
        return None
    headers = dict(scope["headers"])
    # A repeated field is left to the code that knows which of them counts.
    if len(headers) != len(scope["headers"]) or not _ASIDE.isdisjoint(headers):
        return None
    return headers


def principal_of(
    authenticator: Authenticator, scope: Scope, headers: Mapping[bytes, bytes], *, may_be_public: bool = False
) -> Principal | None:
    """Return the principal if this needs no I/O; `may_be_public` as of `Authenticator.principal`."""
    sent = headers.get(b"authorization")
    if sent is None:
        return authenticator.quick(None, may_be_public=may_be_public)
    authorization = sent.decode("latin-1")
    # A key that this address has not used before takes the normal route, where wrong keys are counted.
    if not authenticator.attempts.is_proven(address_of(scope), authorization):
        return None
    return authenticator.quick(authorization)

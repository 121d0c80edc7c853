"""A client of the schema registry's HTTP interface with Python's standard library.

confluent-kafka's client brings an OAuth library, cryptography and a second HTTP library: 20 MB and a fifth of a role's
start-up processor time, in every process, for a handful of plain requests.
"""

from __future__ import annotations

import base64
import json
import time
from http.client import HTTPException, RemoteDisconnected
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from highwater.schemas.errors import AccessRefusedError, UnavailableError
from highwater.streams.access import (
    REGISTRY_CREDENTIALS,
    REGISTRY_REFUSED,
    RegistryAccess,
    registry_untrusted,
    tls_refusal,
)
from highwater.streams.retry import RetryPolicy

NOT_FOUND, CONFLICT = 404, 409
# The registry answers in milliseconds; a caller waits this long for one that hangs.
REQUEST_SECONDS = 5
# A registry that starts or ends may close an accepted connection. All our requests may be repeated.
_HANGS_UP = RetryPolicy(first_ms=250, most_ms=250, attempts_max=4)
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryRefusedError(UnavailableError):
    """The schema registry refuses a request. `status` is HTTP's; the registry's own log has more."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(f"the schema registry refuses: {told}")
        self.status = status
        self.told = told


def ask(access: RegistryAccess, method: str, path: str, body: object = None) -> Any:
    """Return the registry's JSON answer. Blocks.

    Raises:
        AccessRefusedError: one side does not trust the other.
        RegistryRefusedError: it answers with an error status.
        UnavailableError: it does not answer.
    """
    headers = {"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE}
    if access.credentials is not None:
        secret = ":".join(access.credentials).encode()
        headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
    data = None if body is None else json.dumps(body).encode()
    url = f"{access.url.rstrip('/')}/{path}"
    request = Request(url, data=data, headers=headers, method=method)  # noqa: S310 - the setting's address
    try:
        return _answered(request, access)
    except HTTPError as error:
        with error:  # it holds the connection
            raise _refusal(error) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        refusal = tls_refusal(reason) if isinstance(reason, BaseException) else None
        if refusal is not None:
            raise AccessRefusedError(registry_untrusted(refusal)) from error
        told = str(reason) or type(error).__name__
        raise UnavailableError(f"the schema registry does not answer: {told}") from error


def _answered(request: Request, access: RegistryAccess) -> Any:
    attempt = 0
    while True:
        attempt += 1
        try:
            with urlopen(request, timeout=REQUEST_SECONDS, context=access.context()) as answer:  # noqa: S310 - as above
                return json.load(answer)
        except RemoteDisconnected:
            wait_ms = _HANGS_UP.wait_ms(attempt)
            if wait_ms is None:
                raise
            time.sleep(wait_ms / 1000)


def _refusal(error: HTTPError) -> UnavailableError:
    if error.code in REGISTRY_REFUSED:  # without a message of the registry's own
        return AccessRefusedError(f"the schema registry refuses: {error.code} {error.reason}; {REGISTRY_CREDENTIALS}")
    try:
        told = str(json.load(error)["message"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        told = f"{error.code} {error.reason}"
    return RegistryRefusedError(error.code, told)

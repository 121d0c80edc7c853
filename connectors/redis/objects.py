"""Payloads that are too large for a small Redis: in an object storage, with a pointer in Redis (R4.35).

Invariants. Only payloads without user data are stored there, so that an erasure has nothing to delete. One object per
resource, overwritten with each version; it contains its version, and a reader accepts only the one that the pointer
names. If the storage fails, PostgreSQL is read: the storage saves memory of Redis, and nothing depends on it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# Longer than a few hundred KiB take anywhere; PostgreSQL serves a reader that does not get them.
REQUEST_SECONDS, CONNECT_SECONDS = 2, 1
# The prefix of a pointer in Redis: neither JSON nor one of our brotli streams begins with it.
POINTER = b"\x00object\n"

_log = get_log("objects")
# What the client raises if a storage does not answer or refuses; a missing bucket or object is a `FileNotFoundError`.
_FAILURES = (BaseError, OSError)


class ObjectStore:
    """A folder of a bucket, by the S3 API. `bytes_max`: longer payloads are stored there."""

    def __init__(self, store: Any, bytes_max: int) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._refusal = ""  # the last one logged

    async def shorten(self, resource: str, version: int, payload: bytes) -> bytes:
        """Return what Redis should hold for a payload: itself if it is short; else a pointer, once the storage has it.

        b"" if the storage refuses it: then only PostgreSQL holds it.
        """
        if len(payload) <= self._bytes_max:
            return payload
        name = name_of(resource)
        try:
            await obstore.put_async(self._store, name, b"%d\n%b" % (version, payload))
        except _FAILURES as error:
            self._note(error)
            return b""
        return POINTER + name.encode()

    async def restore(self, version: int, payload: bytes) -> bytes | None:
        """Return the payload of exactly this version from what Redis holds; None if the storage does not return it."""
        if not payload.startswith(POINTER):
            return payload
        try:
            found = await obstore.get_async(self._store, payload.removeprefix(POINTER).decode())
            body = bytes(await found.bytes_async())
        except _FAILURES as error:
            self._note(error)
            return None
        prefix = b"%d\n" % version
        return body[len(prefix) :] if body.startswith(prefix) else None

    def _note(self, error: Exception) -> None:
        """Log a failure once, until a different one comes."""
        if type(error).__name__ != self._refusal:
            self._refusal = type(error).__name__
            _log.warning("the object storage does not answer; payloads are read from PostgreSQL", reason=_line(error))


def name_of(resource: str) -> str:
    """Return the object name of a resource: a hash, since a key contains arbitrary ids."""
    return sha256(resource.encode()).hexdigest()


def open_objects(settings: Settings) -> ObjectStore | None:
    """Return the object storage of the settings; None if none is set. No connection is opened yet.

    Raises:
        ConfigurationError: its address cannot be used.
    """
    if settings.object_store is None:
        return None
    endpoint = settings.object_store_endpoint
    options: dict[str, Any] = {
        "endpoint": endpoint,
        "region": settings.object_store_region,
        "access_key_id": settings.object_store_key,
        "secret_access_key": settings.object_store_secret,
    }
    try:
        store = S3Store.from_url(
            settings.object_store,
            client_options={
                "timeout": f"{REQUEST_SECONDS}s",
                "connect_timeout": f"{CONNECT_SECONDS}s",
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
            },
            retry_config={"max_retries": 0},  # PostgreSQL is read instead
            **{name: value for name, value in options.items() if value is not None},
        )
    except (BaseError, ValueError) as error:
        raise ConfigurationError(f"HIGHWATER_OBJECT_STORE={settings.object_store}: {_line(error)}") from error
    return ObjectStore(store, settings.redis_payload_bytes_max)


def _line(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__

"""API keys in a file, HIGHWATER_API_KEYS_FILE: each with role, owner, scopes and expiry, changed without a restart.

Invariants. The file holds hashes, so reading it reveals no key; it is refused while anybody but its owner may open it.
A key is looked up by its SHA-256: the time of a lookup depends on the hash, which does not reveal the key. A slow hash,
as passwords need, would add nothing, since a key is 256 random bits, and would cost every request. If the file cannot
be trusted or read, all its keys are refused until it is corrected: no revocation is lost by a mistake. A change takes
effect within `CHECK_SECONDS`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from highwater.api.core.access import Scope
from highwater.api.core.auth import ROLES, Principal, key_id_of_hash
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.schemas.errors import ConfigurationError, InvalidEventError
from highwater.streams.checks import check_id
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.telemetry import get_log

KEY_PREFIX = "hwk_"  # so that a leaked key is recognized in a log or a repository
KEY_BYTES = 32  # 256 random bits
# How old the read of the file may be: one `stat` a second, and a revoked key is refused a second later.
CHECK_SECONDS = 1.0
FILE_BYTES_MAX = 4 * 1024 * 1024  # read on the event loop: ten thousand keys take about 30 ms
FORMAT_VERSION = 1
_FILE_MODE, _OTHERS = 0o600, 0o077
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_TIMES = ("created", "expires", "revoked")
_FIELDS = frozenset({"name", "sha256", "role", "user", "organization", "scopes", *_TIMES})

_log = get_log("api")


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key of the file, its times in milliseconds; `scopes` None: everything that its role may do."""

    name: str
    sha256: str
    role: str
    created: int
    user: str | None = None
    organization: str | None = None
    scopes: tuple[str, ...] | None = None
    expires: int | None = None
    revoked: int | None = None

    @property
    def key_id(self) -> str:
        """Return the id of the key in counters, lists and records of actions."""
        return key_id_of_hash(self.sha256)

    def state(self, now_ms: int) -> str:
        """Return whether it is `valid`, `expired` or `revoked`; at the moment of its revocation or expiry it is no
        longer valid.
        """
        if self.revoked is not None and self.revoked <= now_ms:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now_ms else "valid"

    def principal(self) -> Principal:
        """Return the principal of the key."""
        return Principal(
            ROLES[self.role],
            self.user,
            organization_id=self.organization,
            key_id=self.key_id,
            scopes=None if self.scopes is None else frozenset(self.scopes),
        )

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the file."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "role": self.role,
            "user": self.user,
            "organization": self.organization,
            "scopes": None if self.scopes is None else list(self.scopes),
            **{name: None if (ms := getattr(self, name)) is None else iso_from_ms(ms) for name in _TIMES},
        }


def hash_of(token: str) -> str:
    """Return the hash of a key, as the file holds it."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def checked_key(key: StoredKey) -> StoredKey:
    """Return the key if all its values have the right form.

    Raises:
        ConfigurationError: a value has not; the message names it.
    """
    if not _NAME.fullmatch(key.name):
        raise ConfigurationError("the name is not 1 to 64 letters, digits, dots, underscores, hyphens or @")
    if key.role not in ROLES:
        raise ConfigurationError(f"the role is not one of {', '.join(ROLES)}")
    if not _HASH.fullmatch(key.sha256):
        raise ConfigurationError("sha256 is not 64 hexadecimal digits")
    for scope in key.scopes or ():
        if scope not in set(Scope):
            raise ConfigurationError(f"a scope is not one of {', '.join(Scope)}")
    try:
        for name, value in (("user", key.user), ("organization", key.organization)):
            if value is not None:
                check_id(name, value)
    except InvalidEventError as error:
        raise ConfigurationError(str(error)) from error
    return key


def parse_key_file(text: str) -> tuple[StoredKey, ...]:
    """Parse the keys of a file's text.

    Raises:
        ConfigurationError: it has another form; the message gives the entry's index, never its content.
    """
    try:
        document = json.loads(text)
        version, entries = document["version"], document["keys"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            'it is not {"version": 1, "keys": […]}, as `highwater keys add NAME --role ROLE` writes it'
        ) from error
    if version != FORMAT_VERSION or not isinstance(entries, list):
        raise ConfigurationError(f"its version is not {FORMAT_VERSION}")
    keys: list[StoredKey] = []
    for number, entry in enumerate(entries, start=1):
        try:
            keys.append(checked_key(_parse_entry(entry)))
        except ConfigurationError as error:
            raise ConfigurationError(f"key {number}: {error}") from error
    if len({key.sha256 for key in keys}) != len(keys):
        raise ConfigurationError("it contains a key twice")
    return tuple(keys)


def _parse_entry(entry: Any) -> StoredKey:
    if not isinstance(entry, dict) or not entry.keys() <= _FIELDS:
        raise ConfigurationError(f"it is not an object of {', '.join(sorted(_FIELDS))}")
    scopes = entry.get("scopes")
    if scopes is not None and not (isinstance(scopes, list) and all(isinstance(one, str) for one in scopes)):
        raise ConfigurationError("scopes is not a list of strings")
    texts: dict[str, str | None] = {name: entry.get(name) for name in _FIELDS - {"scopes"}}
    if not all(value is None or isinstance(value, str) for value in texts.values()):
        raise ConfigurationError("a field is not a string")
    try:
        created, expires, revoked_at = (None if (at := texts[name]) is None else ms_from_iso(at) for name in _TIMES)
    except ValueError as error:
        raise ConfigurationError("a time is not ISO 8601") from error
    if created is None:
        raise ConfigurationError("created is missing")
    return StoredKey(
        name=texts["name"] or "",
        sha256=texts["sha256"] or "",
        role=texts["role"] or "",
        created=created,
        user=texts["user"],
        organization=texts["organization"],
        scopes=None if scopes is None else tuple(scopes),
        expires=expires,
        revoked=revoked_at,
    )


def read_key_file(path: Path) -> tuple[StoredKey, ...]:
    """Read the keys of a file that only its owner may open.

    Raises:
        ConfigurationError: it is missing, readable by others, owned by another user, malformed or too large.
    """
    try:
        with path.open("rb") as stream:
            _check_owner(os.fstat(stream.fileno()))
            content = stream.read(FILE_BYTES_MAX)  # a truncated file is not JSON and is refused
        return parse_key_file(content.decode())
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"HIGHWATER_API_KEYS_FILE={path} is missing; `highwater keys add NAME --role ROLE` creates it"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"HIGHWATER_API_KEYS_FILE={path} cannot be read: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"HIGHWATER_API_KEYS_FILE={path} is refused: {error}") from error


def _check_owner(status: os.stat_result) -> None:
    if stat.S_IMODE(status.st_mode) & _OTHERS:
        raise ConfigurationError("users other than its owner may open it; run chmod 600")
    # Root may be given files of any user, as in a container; other users must not accept a stranger's file.
    if os.geteuid() not in {0, status.st_uid} and status.st_uid != 0:
        raise ConfigurationError("it belongs to another user")


class KeyFile:
    """The keys of the file, read again after a change; `find` costs a lookup, and a `stat` once a second.

    For an unknown key the file is checked at once: a client that uses a new key would otherwise count as guessing.
    """

    def __init__(self, path: Path, clock: Clock, seconds: Callable[[], float] = monotonic_seconds) -> None:
        """Read the file.

        Raises:
            ConfigurationError: the file cannot be used.
        """
        self._path = path
        self._clock = clock
        self._seconds = seconds
        self._checked_at = seconds()
        self._seen = self._signature()
        self._keys = {key.sha256: key for key in read_key_file(path)}

    def find(self, sha256: str) -> Principal | None:
        """Return the principal of the key with this hash; None if no such key is valid now."""
        if sha256 not in self._keys or self._seconds() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._seconds()
            self._read_if_changed()
        key = self._keys.get(sha256)
        return key.principal() if key is not None and key.state(self._clock()) == "valid" else None

    def _read_if_changed(self) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        # Noted before the file is read: a change during the read is then detected by the next check.
        self._seen = signature
        try:
            self._keys = {key.sha256: key for key in read_key_file(self._path)}
            _log.info("API keys were read again", keys=len(self._keys))
        except ConfigurationError as error:
            self._keys = {}
            _log.error("no API key of the file is accepted until it is corrected", reason=str(error))

    def _signature(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:  # the reader reports it
            return None
        # ctime too: it changes when only permissions change.
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


@contextmanager
def changing(path: Path) -> Iterator[list[StoredKey]]:
    """Yield the keys of a file to be changed in place; the file is replaced when the block succeeds. Changes are
    serialized by a lock.

    Raises:
        ConfigurationError: the existing file cannot be used.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A separate lock file, since the other one is replaced.
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = list(read_key_file(path)) if path.exists() else []
        yield keys
        _replace(path, keys)
    finally:
        os.close(lock)  # ends the lock


def _replace(path: Path, keys: Sequence[StoredKey]) -> None:
    text = json.dumps({"version": FORMAT_VERSION, "keys": [key.to_json() for key in keys]}, indent=1)
    target = path.resolve()  # a link remains a link
    scratch = target.with_name(f".{target.name}.new")
    scratch.unlink(missing_ok=True)  # left by a killed writer; O_EXCL follows no link that another user created
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(descriptor)
    scratch.replace(target)


def revoked(keys: list[StoredKey], named: str, now_ms: int) -> StoredKey | None:
    """Revoke the valid key with this name or id in the list; return None if there is none."""
    for place, key in enumerate(keys):
        if named in (key.name, key.key_id) and key.state(now_ms) == "valid":
            keys[place] = replace(key, revoked=now_ms)
            return keys[place]
    return None

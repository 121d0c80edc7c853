"""The passwords of a local stack, <data_dir>/secrets: created once for each data folder, readable only by its owner.

Invariants: the first service that needs a password creates it, and it stays the same as long as the file exists; it
reaches a server or client through a file or the environment, never on a command line, which every user of the machine
can read. To replace the passwords, stop the stack and remove the file: the next start creates new ones.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.private import FILE_MODE, is_open_to_others, make_folder, replace_file

FILE_NAME = "secrets"
_REMEDY = (
    "restore it from a backup; without the file the next start makes new passwords, and a Kafka that has run with --secure"
    " runs without it only"
)
PASSWORD_BYTES = 32  # 256 random bits: cannot be guessed, however fast an attacker hashes
# Required by RFC 7677, and the minimum that Java's clients accept; a client spends a few milliseconds on it.
SCRAM_ITERATIONS = 4_096
SCRAM_SALT_BYTES = 16


class StackSecrets:
    """The passwords of one data folder by name; several objects, also of several processes, see the same ones."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._known: dict[str, str] = {}

    def get(self, name: str) -> str:
        """Return the password with that name, created now if there is none.

        Raises:
            LocalStackError: The file is damaged.
        """
        if name not in self._known:
            make_folder(self._path.parent)
            # A separate lock file, since the other one is replaced; services start concurrently.
            lock = os.open(self._path.with_name(f"{FILE_NAME}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._known = self._read()
                if name not in self._known:
                    self._known[name] = secrets.token_urlsafe(PASSWORD_BYTES)
                    replace_file(self._path, json.dumps(self._known, indent=1))
            finally:
                os.close(lock)  # releases the lock
        return self._known[name]

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise LocalStackError(f"{self._path} is not readable: {error}; {_REMEDY}") from error
        if not isinstance(found, dict) or not all(isinstance(value, str) and value for value in found.values()):
            raise LocalStackError(f"{self._path} does not hold passwords by name; {_REMEDY}")
        if is_open_to_others(self._path):
            self._path.chmod(FILE_MODE)
        return found


def fingerprint(password: str) -> str:
    """Return what identifies a password where it must not appear: SHA-256 in hex, enough for 256 random bits."""
    return hashlib.sha256(password.encode()).hexdigest()


def scram_verifier(password: str, salt: bytes) -> str:
    """Return what PostgreSQL and Kafka store instead of a password (RFC 5803), in PostgreSQL's notation.

    Computed here, so that the password itself is never in a statement, which a server may log.
    """
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, SCRAM_ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    shown = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${SCRAM_ITERATIONS}:{shown[0]}${shown[1]}:{shown[2]}"


def hidden_password(url: str) -> str:
    """Return a URL with its password, if it has one, replaced by asterisks."""
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    if not (separator and at and colon):
        return url
    return f"{scheme}://{user}:***@{host}"

"""The access of another user of the machine to a running product: no file, no password, no token."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.product import Product

# Files that the test itself put into the data folder before `up`.
OWN_FILES = {"policy.toml", "namespaces.toml", "clock"}


def open_to_others(folder: Path) -> dict[str, str]:
    """Files of a folder that group or others may access, with their mode."""
    found = {}
    for root, _, names in os.walk(folder):
        for path in (Path(root), *(Path(root, name) for name in names if name not in OWN_FILES)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a file that a service has removed meanwhile
                continue
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found[str(path.relative_to(folder))] = oct(mode & 0o7777)
    return found


def test_nothing_of_a_running_product_is_open_to_others(product: Product) -> None:
    """Folders are 0700 and files 0600, of the parts and of the roles; the folder was 0755 when `up` began."""
    assert any((product.data_dir / "faust").rglob("*"))
    assert {name: open_to_others(name) for name in (product.parts.data_dir, product.data_dir)} == {
        product.parts.data_dir: {},
        product.data_dir: {},
    }


def test_passwords_are_for_programs_only(product: Product) -> None:
    """`status --json` has addresses that clients can use; `status`, logs and the arguments of processes have no password."""
    shown = product.status()
    addresses = product.parts.addresses
    assert (shown["database"], shown["redis"]) == (addresses.database, addresses.redis)
    passwords = {str(urlsplit(shown[name]).password) for name in ("database", "redis")}
    assert min(len(password) for password in passwords) >= 43
    told = {"status": product.cli("status").stdout}
    told |= {str(p.pid): " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])}
    for folder in (product.parts.data_dir, product.data_dir):
        told |= {str(path): path.read_text(errors="replace") for path in (folder / "logs").iterdir()}
    assert ":***@" in told["status"]
    assert [name for name, text in told.items() if any(password in text for password in passwords)] == []


def test_a_sessions_token_is_not_in_redis_file(product: Product) -> None:
    """The append-only file has the hash of the token and not the token, so that a copy of the file opens nothing."""
    answer = product.http.post("/api/sessions", json={"user_id": "neighbour"})
    token = answer.json()["session_id"].encode()
    hashed = hashlib.sha256(token).hexdigest().encode()
    folder = product.parts.data_dir / "redis"

    def stored() -> bytes:
        return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())

    product.until(lambda: hashed in stored(), "Redis has not written the session")
    assert token not in stored()
    assert json.dumps(product.status()).count(token.decode()) == 0

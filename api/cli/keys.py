"""`highwater keys`: the API keys in HIGHWATER_API_KEYS_FILE. A running API follows within two seconds, without a
restart.

Invariant: a key is printed once, when it is created, and stored nowhere; the file holds its hash.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import Command, CommandFailedError, Group, json_option
from highwater.api.command.connection import own_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.schemas.errors import ConfigurationError
from highwater.streams.printable import printable

if TYPE_CHECKING:
    from highwater.api.core.keys import StoredKey

_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE = re.compile(r"(\d{1,6})([mhd])")

file_option = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Key file instead of HIGHWATER_API_KEYS_FILE.",
)


@click.group(cls=Group)
def keys() -> None:
    """Add, list and revoke API keys in a file of hashes."""


@keys.command(cls=Command)
@click.argument("name")
@click.option(
    "--role", type=click.Choice(["viewer", "assistant", "editor", "admin"]), required=True, help="Role of the key."
)
@click.option("--user", help="Bind it to this user.")
@click.option("--organization", help="Bind it to this organization.")
@click.option("--scope", "scopes", multiple=True, help="Allow only this scope (feeds, jobs, …; may be repeated).")
@click.option("--expires", help="Expiry: 90d, 12h, 30m from now, or an ISO 8601 time [default: never].")
@file_option
@json_option
def add(
    name: str,
    role: str,
    user: str | None,
    organization: str | None,
    scopes: tuple[str, ...],
    expires: str | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Create a key called NAME and print it once."""
    from highwater.api.core import keys as stored

    now_ms = _now_ms()
    token = stored.KEY_PREFIX + secrets.token_urlsafe(stored.KEY_BYTES)
    key = stored.StoredKey(
        name=name,
        sha256=stored.hash_of(token),
        role=role,
        created=now_ms,
        user=user,
        organization=organization,
        scopes=tuple(dict.fromkeys(scopes)) or None,
        expires=None if expires is None else _end_ms(expires, now_ms),
    )
    try:
        stored.checked_key(key)
    except ConfigurationError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    with stored.changing(_file(path)) as held:
        if any(one.name == name and one.state(now_ms) == "valid" for one in held):
            raise CommandFailedError(f"there is a valid key called {name}; revoke it, or choose another name")
        held.append(key)
    if as_json:
        print_json({"key": token, **_shown(key, now_ms)})
        return
    say("This is the only time that the key is shown:", err=True)
    say(token)


@keys.command("list", cls=Command)
@file_option
@json_option
def list_(path: Path | None, as_json: bool) -> None:
    """List the keys without their secrets."""
    from highwater.api.core import keys as stored

    now_ms = _now_ms()
    found = [_shown(key, now_ms) for key in stored.read_key_file(_file(path))]
    if as_json:
        print_json({"keys": found})
        return
    columns = ["name", "id", "role", "user", "organization", "scopes", "created", "expires", "state"]
    rows = [[" ".join(one[c] or ()) if c == "scopes" else one[c] for c in columns] for one in found]
    print_table(columns, rows)


@keys.command(cls=Command)
@click.argument("name")
@file_option
@json_option
def revoke(name: str, path: Path | None, as_json: bool) -> None:
    """Revoke the key with this NAME or id; a running API rejects it within two seconds."""
    from highwater.api.core import keys as stored

    now_ms = _now_ms()
    with stored.changing(_file(path)) as held:
        key = stored.revoked(held, name, now_ms)
        if key is None:
            raise CommandFailedError(f"there is no valid key called {name}; `highwater keys list` shows all")
    if as_json:
        print_json(_shown(key, now_ms))
    else:
        say(f"revoked {printable(key.name)} ({key.key_id})")


def _file(path: Path | None) -> Path:
    found = path or own_settings().api_keys_file
    if found is None:
        raise click.UsageError(
            "HIGHWATER_API_KEYS_FILE is not set; name the file with --file", click.get_current_context()
        )
    return found


def _now_ms() -> int:
    from highwater.streams.clock import ProductClock

    return ProductClock(own_settings().clock_file)()


def _end_ms(text: str, now_ms: int) -> int:
    age = _AGE.fullmatch(text)
    try:
        end_ms = now_ms + int(age[1]) * _UNIT_MS[age[2]] if age else ms_from_iso(text)
    except ValueError as error:
        raise click.BadParameter("neither 90d, 12h, 30m nor an ISO 8601 time", param_hint="--expires") from error
    if end_ms <= now_ms:
        raise click.BadParameter("the time is not in the future", param_hint="--expires")
    return end_ms


def _shown(key: StoredKey, now_ms: int) -> dict[str, Any]:
    return {
        "name": key.name,
        "id": key.key_id,
        "role": key.role,
        "user": key.user,
        "organization": key.organization,
        "scopes": None if key.scopes is None else list(key.scopes),
        "created": iso_from_ms(key.created),
        "expires": None if key.expires is None else iso_from_ms(key.expires),
        "revoked": None if key.revoked is None else iso_from_ms(key.revoked),
        "state": key.state(now_ms),
    }

"""API keys in a file: who may read it, which files are refused, how a change reaches a running API, and the command that
changes it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from highwater.api.cli.main import highwater
from highwater.api.command.client import any_key, key_for
from highwater.api.command.command import run_command
from highwater.api.core.auth import Authenticator, Principal, Role, key_id_of
from highwater.api.core.errors import UnauthorizedError
from highwater.api.core.keys import CHECK_SECONDS, KeyFile, StoredKey, changing, hash_of, read_key_file
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import read_settings

NOW_MS = 1_790_000_000_000
ENTRY = {"name": "a", "sha256": hash_of("hwk_a"), "role": "viewer", "created": "2026-09-21T14:13:20Z"}


class Moment:
    """A monotonic time and a time of day that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ms = NOW_MS


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings say that the keys are."""
    found = tmp_path / "keys" / "api-keys.json"
    monkeypatch.setenv("HIGHWATER_API_KEYS_FILE", str(found))
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def moment() -> Moment:
    """Now."""
    return Moment()


def write(path: Path, *entries: Any, mode: int = 0o600) -> None:
    """A key file with these entries."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, "keys": entries}), encoding="utf-8")
    path.chmod(mode)


def opened(path: Path, moment: Moment) -> KeyFile:
    """The file as a running API holds it."""
    return KeyFile(path, lambda: moment.ms, lambda: moment.seconds)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit status and the JSON of a command, its error instead where it failed."""
    capsys.readouterr()  # the earlier log lines of the API
    status = run_command(highwater, ["keys", *arguments, "--json"])
    told = capsys.readouterr()
    return status, json.loads(told.out) if status == 0 else told.err


def test_a_key_is_shown_once_and_stored_as_its_hash(path: Path, moment: Moment, capsys) -> None:
    """`keys add` prints the key, `keys list` and the file do not contain it, and it has the properties given at its creation."""
    status, made = run(
        capsys, "add", "ci", "--role", "editor", "--user", "ada", "--organization", "acme",
        "--scope", "events", "--scope", "feeds", "--expires", "2026-12-31T00:00:00Z",
    )  # fmt: skip
    assert status == 0
    assert made["key"].startswith("hwk_")
    assert made["key"] not in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    found = opened(path, moment).find(hash_of(made["key"]))
    scopes = frozenset({"events", "feeds"})
    assert found == Principal(Role.EDITOR, "ada", organization_id="acme", scopes=scopes)
    assert found is not None
    assert found.key_id == made["id"] == key_id_of(made["key"].encode())
    _, listed = run(capsys, "list")
    assert listed == {"keys": [{name: value for name, value in made.items() if name != "key"}]}


def test_people_get_the_key_alone_on_standard_output(path: Path, capsys) -> None:
    """So that it can be put into a variable or a file; the list is a table without it."""
    assert run_command(highwater, ["keys", "add", "desk", "--role", "viewer"]) == 0
    key = capsys.readouterr().out.strip()
    assert hash_of(key) == read_key_file(path)[0].sha256
    assert run_command(highwater, ["keys", "list"]) == 0
    shown = capsys.readouterr().out
    assert "desk" in shown
    assert "valid" in shown
    assert key not in shown
    assert hash_of(key) not in shown


def test_a_rotation_needs_no_restart(path: Path, moment: Moment, capsys) -> None:
    """Two keys are good at the same time; one added is good at once, one revoked no more within `CHECK_SECONDS`, at most two."""
    assert CHECK_SECONDS <= 2
    old = run(capsys, "add", "old", "--role", "admin")[1]["key"]
    keys = opened(path, moment)
    new = run(capsys, "add", "new", "--role", "admin")[1]["key"]
    assert [keys.find(hash_of(key)) is not None for key in (old, new)] == [True, True]
    assert run(capsys, "revoke", "old")[0] == 0
    assert keys.find(hash_of(old)) is not None, "the file is not looked at on every request"
    moment.seconds += CHECK_SECONDS
    moment.ms = 2**42
    assert [keys.find(hash_of(key)) is not None for key in (old, new)] == [False, True]
    assert [key.state(2**42) for key in read_key_file(path)] == ["revoked", "valid"]


def test_a_key_ends_at_its_time(path: Path, moment: Moment) -> None:
    """It is valid until the millisecond before; the file is not read for that."""
    write(path, {**ENTRY, "expires": "2026-09-21T14:13:21Z"})
    keys = opened(path, moment)
    assert keys.find(ENTRY["sha256"]) == Principal(Role.VIEWER)
    moment.ms = NOW_MS + 999
    assert keys.find(ENTRY["sha256"]) is not None
    moment.ms = NOW_MS + 1000
    assert keys.find(ENTRY["sha256"]) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o644])
def test_a_file_that_others_may_open_is_refused(mode: int, path: Path, moment: Moment, capsys) -> None:
    """By the API and by the command alike, in one line that says what to do."""
    write(path, ENTRY, mode=mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        opened(path, moment)
    status, said = run(capsys, "list")
    assert (status, "chmod 600" in said, said.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not"),
        ("[]", "it is not"),
        ('{"version": 2, "keys": []}', "version is not 1"),
        ('{"version": 1, "keys": {}}', "version is not 1"),
        *(
            (json.dumps({"version": 1, "keys": [ENTRY, {**ENTRY, "sha256": hash_of("b"), **wrong}]}), f"key 2: {said}")
            for wrong, said in (
                ({"role": "king"}, "the role"),
                ({"sha256": "secret"}, "sha256"),
                ({"sha256": hash_of("b").upper()}, "sha256"),
                ({"name": ""}, "the name"),
                ({"name": None}, "the name"),
                ({"user": ""}, "user is empty"),
                ({"user": 5}, "a field is not a string"),
                ({"organization": "a\nb"}, "organization holds"),
                ({"scopes": "all"}, "scopes is not"),
                ({"scopes": ["a b"]}, "a scope is not"),
                ({"created": None}, "created is missing"),
                ({"expires": "soon"}, "a time is not"),
                ({"secret": "secret"}, "it is not an object of"),
            )
        ),
        (json.dumps({"version": 1, "keys": [ENTRY, {**ENTRY, "name": "b"}]}), "twice"),
        ('{"version": 1, "keys": [5]}', "key 1: it is not an object"),
    ],
)
def test_a_malformed_file_is_named_by_its_place(text: str, said: str, path: Path) -> None:
    """The error names file, entry and field in one line, never what stands there."""
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        read_key_file(path)
    told = str(caught.value)
    assert told.startswith(f"HIGHWATER_API_KEYS_FILE={path} is refused: ")
    assert said in told
    assert "\n" not in told
    assert "king" not in told


@pytest.mark.parametrize("harm", ["opened", "torn", "removed"])
def test_a_file_that_goes_bad_opens_nothing_until_it_is_mended(harm: str, path: Path, moment: Moment) -> None:
    """Under a running API: no key of it is accepted, since a revocation might be lost; corrected, it is read again."""
    write(path, ENTRY)
    keys = opened(path, moment)
    assert keys.find(ENTRY["sha256"]) is not None
    if harm == "opened":
        path.chmod(0o644)
    elif harm == "torn":
        path.write_text('{"version": 1, "ke', encoding="utf-8")
    else:
        path.unlink()
    moment.seconds += CHECK_SECONDS
    assert keys.find(ENTRY["sha256"]) is None
    write(path, ENTRY)
    moment.seconds += CHECK_SECONDS
    assert keys.find(ENTRY["sha256"]) is not None


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not root accepts no keys from another user's file."""
    write(path, ENTRY)
    os.chown(path, os.getuid() or 1, -1)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        read_key_file(path)


def test_no_key_is_lost_when_many_are_added_at_once(path: Path) -> None:
    """Sixteen writers, one after the other under the lock; no reader ever finds half a file."""
    write(path)

    def add(number: int) -> int:
        with changing(path) as held:
            held.append(StoredKey(f"k{number}", hash_of(str(number)), "viewer", NOW_MS))
        return len(read_key_file(path))

    with ThreadPoolExecutor(16) as pool:
        counts = list(pool.map(add, range(16)))
    assert sorted(key.name for key in read_key_file(path)) == sorted(f"k{number}" for number in range(16))
    assert max(counts) == 16


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["add", "a", "--role", "viewer"], 1, "there is a valid key called a"),
        (["add", "b", "--role", "king"], 2, "king"),
        (["add", "b c", "--role", "viewer"], 2, "the name"),
        (["add", "b", "--role", "viewer", "--expires", "90"], 2, "--expires"),
        (["add", "b", "--role", "viewer", "--expires", "2020-01-01T00:00:00Z"], 2, "not in the future"),
        (["add", "b", "--role", "viewer", "--user", ""], 2, "user is empty"),
        (["add", "b", "--role", "viewer", "--scope", "A B"], 2, "scope"),
        (["revoke", "b"], 1, "no valid key called b"),
    ],
)
def test_the_command_refuses_what_cannot_be(arguments: list[str], status: int, said: str, path: Path, capsys) -> None:
    """In one line, and the file stays as it was."""
    write(path, ENTRY)
    before = path.read_bytes()
    found, told = run(capsys, *arguments)
    assert (found, said in told, path.read_bytes()) == (status, True, before)


def test_without_a_file_the_command_says_which_setting_names_it(path: Path, monkeypatch, capsys) -> None:
    """A missing setting gives one line. If it names a missing file, `list` says which command creates it."""
    status, said = run(capsys, "list")
    assert (status, "`highwater keys add NAME --role ROLE`" in said) == (2, True)
    monkeypatch.delenv("HIGHWATER_API_KEYS_FILE")
    status, said = run(capsys, "list")
    assert (status, "HIGHWATER_API_KEYS_FILE is not set" in said) == (2, True)


async def test_a_file_closes_the_api_even_while_it_is_empty(path: Path, moment: Moment) -> None:
    """With a key file no caller without a key is admitted; a wrong key and a session's prefix are refused, a right one is
    accepted.
    """
    write(path)

    async def no_session(_token: str) -> Principal | None:
        return None

    guarded = Authenticator((), no_session, opened(path, moment))
    assert not guarded.is_open
    for field in (None, "Bearer hwk_a", "Bearer hws_a"):
        with pytest.raises(UnauthorizedError):
            await guarded.principal(field)
        assert guarded.quick(field) is None
    write(path, ENTRY)
    moment.seconds += CHECK_SECONDS
    assert (await guarded.principal("Bearer hwk_a")).role is Role.VIEWER


def test_a_client_sends_its_own_key() -> None:
    """HIGHWATER_API_KEY goes before the API's own keys, which a client need not know."""
    settings = read_settings({"HIGHWATER_API_KEY": "mine", "HIGHWATER_API_KEYS": "admin:root"})
    assert (any_key(settings), key_for(settings, "ada")) == ("mine", "mine")
    assert "mine" not in repr(settings)
    assert "root" not in repr(settings)

"""The passwords of a local stack, what servers store of them, and the folder that holds them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from highwater.deploy.local.datadir import secure
from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.part import as_principal
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.private import open_file, replace_file, write_file
from highwater.deploy.local.stack_secrets import StackSecrets, hidden_password, scram_verifier


def mode(path: Path) -> int:
    """The permission bits."""
    return path.stat().st_mode & 0o7777


def test_a_password_is_made_once_whoever_asks_first(tmp_path: Path) -> None:
    """Eight concurrent callers and a later one get the same passwords; only the owner may read them."""
    data_dir = tmp_path / "data"
    names = ["database", "redis"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        got = list(pool.map(lambda name: StackSecrets(data_dir).get(name), names))
    later = StackSecrets(data_dir)
    assert got == [later.get(name) for name in names]
    assert len(set(got)) == 2
    assert min(len(password) for password in got) >= 43  # 256 bits in base64
    assert (mode(data_dir), mode(data_dir / "secrets")) == (0o700, 0o600)


def test_a_secrets_file_that_was_opened_is_closed_again(tmp_path: Path) -> None:
    """A file that others could read is tightened when it is read; one that holds something else is named."""
    path = tmp_path / "secrets"
    path.write_text(json.dumps({"redis": "kept"}), encoding="utf-8")
    path.chmod(0o644)
    assert StackSecrets(tmp_path).get("redis") == "kept"
    assert mode(path) == 0o600
    for text in ("{", "[]", '{"redis": 5}', '{"redis": ""}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(LocalStackError, match="secrets"):
            StackSecrets(tmp_path).get("redis")


def test_the_verifier_is_that_of_rfc_7677() -> None:
    """With the RFC's password and salt it admits the RFC's client proof and gives the RFC's server signature."""
    salt = "W22ZaJ0SNY7soEsUEjb6gQ=="
    auth = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,"
        b"i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    head, keys = scram_verifier("pencil", base64.b64decode(salt)).rsplit("$", 1)
    stored_key, server_key = (base64.b64decode(part) for part in keys.split(":"))
    signature = hmac.digest(stored_key, auth, "sha256")
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    assert head == f"SCRAM-SHA-256$4096:{salt}"
    assert hashlib.sha256(client_key).digest() == stored_key
    expected = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert hmac.digest(server_key, auth, "sha256") == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://highwater:s-_3@127.0.0.1:6379/0", "redis://highwater:***@127.0.0.1:6379/0"),
        ("redis://:s3@h/0", "redis://:***@h/0"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("127.0.0.1:9092", "127.0.0.1:9092"),
    ],
)
def test_a_password_is_hidden_in_an_address(url: str, shown: str) -> None:
    """The printed text has asterisks for the password and is otherwise the address."""
    assert hidden_password(url) == shown


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_private_file_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    """New, replaced and appended files are 0600, also over one that was open."""
    old = tmp_path / "old"
    old.touch(mode=0o666)
    before = os.umask(umask)
    try:
        write_file(tmp_path / "new", "x")
        replace_file(tmp_path / "replaced", "x")
        with open_file(old, os.O_APPEND) as stream:
            stream.write(b"more")
    finally:
        os.umask(before)
    assert {path.name: mode(path) for path in tmp_path.iterdir()} == dict.fromkeys(("new", "replaced", "old"), 0o600)


def test_an_open_data_folder_is_closed_with_all_in_it(tmp_path: Path) -> None:
    """A folder of 0755 becomes 0700, its files 0600; what a link points to and PostgreSQL's own folder are left alone."""
    data_dir, outside = tmp_path / "data", tmp_path / "outside"
    outside.write_text("x", encoding="utf-8")
    outside.chmod(0o644)
    for folder in ("logs", "kafka/data/t-0", "postgres/cluster"):
        (data_dir / folder).mkdir(parents=True)
    log, config, program = data_dir / "logs" / "a.log", data_dir / "mine.toml", data_dir / "kafka" / "run"
    for path in (log, config, program):
        path.touch()
        path.chmod(0o755 if path is program else 0o644)
    (data_dir / "logs" / "link").symlink_to(outside)
    for folder in (data_dir, data_dir / "postgres", data_dir / "kafka" / "data" / "t-0"):
        folder.chmod(0o755)
    secure(data_dir)
    secure(data_dir)
    assert mode(data_dir) == mode(data_dir / "kafka" / "data" / "t-0") == mode(program) == 0o700
    assert mode(log) == 0o600
    assert (mode(config), mode(outside), mode(data_dir / "postgres")) == (0o644, 0o644, 0o755)


def test_a_folder_that_is_not_only_ours_is_not_closed(tmp_path: Path) -> None:
    """A home or /tmp named by mistake stays as it is, with one line that says what to do; closed by its owner it is used."""
    (tmp_path / "photos").mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(LocalStackError, match=r"'photos'.*chmod 700"):
        secure(tmp_path)
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    secure(tmp_path)


def test_ports_are_not_reserved_in_a_folder_that_somebody_else_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of reservations has a name that every user can guess; one that is a link or another user's is refused."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"highwater-ports-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(LocalStackError, match="created by another user"):
        PortBook(tmp_path / "data").take("redis", 16_379)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could read and replace the files there, with any mode."""
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(LocalStackError, match="belongs to another user"):
        secure(tmp_path)


def test_a_process_gets_the_password_of_its_own_user_of_kafka() -> None:
    """The operator keeps everything; a process loses the others' passwords; without users nothing changes."""
    operator = {
        "KAFKA_SASL_USERNAME": "highwater",
        "KAFKA_SASL_PASSWORD": "o",
        "HIGHWATER_KAFKA_PRINCIPALS": "worker:w, api:a:b",
    }
    assert as_principal(operator, None) == operator
    assert as_principal(operator, "api") == {"KAFKA_SASL_USERNAME": "highwater-api", "KAFKA_SASL_PASSWORD": "a:b"}
    from_file = {**operator, "KAFKA_SASL_PASSWORD_FILE": "/run/operator"}
    assert as_principal(from_file, "worker") == {"KAFKA_SASL_USERNAME": "highwater-worker", "KAFKA_SASL_PASSWORD": "w"}
    assert as_principal({"KAFKA_SASL_PASSWORD": "o"}, "worker") == {"KAFKA_SASL_PASSWORD": "o"}

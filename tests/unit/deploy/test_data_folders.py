"""Data folders with unusual paths, copied ones, and ones of which a part is gone: what a stack writes, accepts and refuses."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest

from highwater.deploy.local.contents import check_contents, contents_refusal, record_contents
from highwater.deploy.local.datadir import checked
from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.kafka import Kafka
from highwater.deploy.local.open_files import OPEN_FILES_MIN, OPEN_FILES_WANTED, limit_for
from highwater.deploy.local.part import property_value, server_environment
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.postgres import Postgres
from highwater.deploy.local.state import copy_refusal, folder_identity, is_copied

PATH = "/tmp/ü ö'\"Ж🌊%#=:$!"
WHOLE = {"kafka": "h1", "postgres": "01", "registry": "there"}


def read_by_java(text: str) -> str:
    """A value of a properties file, as `java.util.Properties` reads it."""
    text.encode("ascii")
    units = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("value", [PATH, " begins with a space", "a\\b", "plain"])
def test_a_properties_file_has_any_path(value: str):
    """Java reads such a file as ISO-8859-1: the value is ASCII, and becomes the path again."""
    assert read_by_java(property_value(value)) == value
    assert not property_value(value).startswith(" ")


def test_servers_get_a_locale_that_exists(monkeypatch: pytest.MonkeyPatch):
    """Java finds no file with an umlaut under a locale that the machine lacks, so that of the shell is not passed on."""
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    monkeypatch.setenv("LANG", "xx_XX.UTF-8")
    found = server_environment()
    assert (found["LC_ALL"], "LANG" in found) == ("C.UTF-8", False)


@pytest.mark.parametrize("name", [b"\xff", b"a,b", b"a;b", b"a\\b"])
def test_a_path_that_a_service_would_misread_is_refused(name: bytes, tmp_path: Path):
    """One sentence names the path."""
    with pytest.raises(LocalStackError, match="the data folder's path"):
        checked(tmp_path / os.fsdecode(name))


@pytest.mark.parametrize(
    ("found", "is_restoring", "said"),
    [
        (WHOLE, False, None),
        ({}, False, "kafka, postgres, registry are missing"),
        (WHOLE | {"postgres": "02"}, False, "postgres came from another installation"),
        (WHOLE | {"kafka": "h2"}, True, "kafka came from another installation"),
        (WHOLE | {"kafka_2": "h2"}, False, "the brokers came from another installation"),
        ({"kafka": "h1", "registry": "there"}, False, "restore --from-log"),
        ({"kafka": "h1"}, False, "restore DIR"),
        ({"kafka": "h1"}, True, None),
        ({"postgres": "01", "registry": "there"}, True, "the whole data folder from a copy"),
    ],
)
def test_services_start_only_with_the_data_of_all(found: dict[str, str], is_restoring: bool, said: str | None):
    """A missing or foreign folder is refused; PostgreSQL and the registry may be empty in order to be restored."""
    refusal = contents_refusal(WHOLE, found, is_restoring=is_restoring)
    assert refusal is None if said is None else said in (refusal or "")


def test_the_contents_are_those_of_the_last_complete_start(tmp_path: Path):
    """A new folder is accepted, and one without the broker's identity no more once it was recorded."""
    folders = ("kafka", "postgres")
    check_contents(tmp_path, folders, is_restoring=False)
    meta = tmp_path / "kafka" / "data" / "meta.properties"
    meta.parent.mkdir(parents=True)
    meta.write_text("version=1\ncluster.id=h1\n")
    record_contents(tmp_path, folders)
    check_contents(tmp_path, folders, is_restoring=False)
    meta.unlink()
    with pytest.raises(LocalStackError, match="the data of kafka are missing"):
        check_contents(tmp_path, folders, is_restoring=False)
    check_contents(tmp_path, ("postgres",), is_restoring=False)  # an external Kafka is not this folder's


def test_data_without_its_mark_are_kept(tmp_path: Path):
    """Neither a cluster with a database is removed nor a log folder with partitions formatted again."""
    ports = PortBook(tmp_path)
    database = tmp_path / "postgres" / "cluster" / "base" / "12345"
    partition = tmp_path / "kafka" / "data" / "feeds.insight-ingested-0"
    for folder in (database, partition):
        folder.mkdir(parents=True)
    with pytest.raises(LocalStackError, match=r"highwater\.ready"):
        Postgres(tmp_path, ports).prepare()
    kafka = Kafka(tmp_path, ports)
    kafka.take_ports()
    try:
        with pytest.raises(LocalStackError, match=r"meta\.properties"):
            kafka.prepare()
    finally:
        ports.release()
    assert (database.is_dir(), partition.is_dir()) == (True, True)


def test_a_copy_of_a_running_stack_is_refused_and_harms_no_process(tmp_path: Path):
    """A copy has another path and another lock file; a moved folder keeps its file, and a restored one its path."""
    state = {"phase": "running", "folder": folder_identity(tmp_path / "a", 1)}
    assert is_copied(state, folder_identity(tmp_path / "b", 2))
    assert not is_copied(state, folder_identity(tmp_path / "b", 1))
    assert not is_copied(state, folder_identity(tmp_path / "a", 2))
    assert not is_copied({"phase": "running"}, folder_identity(tmp_path / "a", 2))
    assert "copied while its stack ran" in (copy_refusal(state, tmp_path) or "")
    assert copy_refusal({**state, "phase": "stopped"}, tmp_path) is None


def test_the_limit_on_open_files_is_raised_or_refused():
    """The soft limit becomes the hard one, up to a number; a hard one below the needed number is named with that number."""
    assert limit_for(256, OPEN_FILES_MIN) == OPEN_FILES_MIN
    assert limit_for(1_024, resource.RLIM_INFINITY) == OPEN_FILES_WANTED
    assert limit_for(100_000, 200_000) == 100_000
    with pytest.raises(LocalStackError, match=r"may open 256 files and the stack needs 4,096"):
        limit_for(256, 256)

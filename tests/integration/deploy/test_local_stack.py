"""The embedded stack with its real parts: it starts, keeps its data, restarts, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
import httpx2
import psutil
import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from redis.backoff import NoBackoff
from redis.retry import Retry

from highwater.deploy.local.control import await_ready, start_detached, status, stop
from highwater.deploy.local.errors import (
    AlreadyRunningError,
    LocalStackError,
    MisconfiguredError,
    NotReadyYetError,
    PartFailedError,
    PortTakenError,
)
from highwater.deploy.local.part import Addresses
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.redis import chosen_server
from highwater.deploy.local.stack import LocalStack
from highwater.deploy.local.state import read_state
from highwater.deploy.local.supervisor import Plan, Role
from highwater.deploy.local.watched import restart_pause_seconds

pytestmark = pytest.mark.long

SCHEMA = '{"type": "record", "name": "Kept", "fields": [{"name": "id", "type": "string"}]}'
SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")

T = TypeVar("T")


def until(what: Callable[[], T], seconds: float = 30.0) -> T:
    """Return the first true answer, looking again until the deadline."""
    deadline = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.05)
    return answer


def query(url: str, sql: str) -> Any:
    """Return the first column of the first row."""

    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that only waits to be reaped has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def password_of(address: str) -> str:
    """Return the password in a URL."""
    return str(urlsplit(address).password)


def open_to_others(folder: Path) -> dict[str, str]:
    """Files of a folder that group or others may access, with their mode."""
    found = {}
    for root, _, names in os.walk(folder):
        for path in (Path(root), *(Path(root, name) for name in names)):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found[str(path.relative_to(folder))] = oct(mode & 0o7777)
    return found


def part(state: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one part of a status."""
    return next(part for part in state["parts"] if part["name"] == name)


@pytest.fixture(scope="module")
def private_dir() -> Iterator[Path]:
    """A folder that only its owner may enter, as mkdtemp makes it."""
    path = Path(tempfile.mkdtemp(prefix="highwater-stack-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def stack(private_dir: Path) -> Iterator[LocalStack]:
    """One stack for the module, in a folder of unusual letters under a missing locale; a test that ends a part restarts it."""
    begun = time.monotonic()
    folder = private_dir / "ü ö'\"Ж%#=:$one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "xx_XX.UTF-8")
        with LocalStack(folder) as running:
            assert time.monotonic() - begun < 120
            assert (folder / "kafka" / "data" / "meta.properties").is_file(), "the log is in the folder"
            yield running


@pytest.fixture
def plan(stack: LocalStack, private_dir: Path) -> Iterator[Plan]:
    """A plan that borrows the slow services of the shared stack and runs a Redis and a role of its own."""
    known = stack.addresses
    given = Addresses(known.kafka, known.schema_registry, known.database)
    data_dir = private_dir / "two"
    yield Plan(data_dir, given, (Role("ready", ("true",), oneshot=True), Role("sleeper", SLEEPER)))
    stop(data_dir)
    shutil.rmtree(data_dir, ignore_errors=True)


def test_all_services_answer_their_clients(stack: LocalStack):
    """Kafka, the registry, PostgreSQL with pgvector and both Redis answer real clients at the addresses returned."""
    addresses = stack.addresses
    assert len(AdminClient({"bootstrap.servers": addresses.kafka}).list_topics(timeout=10).brokers) == 1
    assert httpx2.get(f"{addresses.schema_registry}/subjects").json() == []
    assert query(addresses.database, "SELECT '[3,4]'::vector <-> '[0,0]'::vector") == 5.0
    with redis.Redis.from_url(addresses.redis) as kept, redis.Redis.from_url(addresses.redis_cache) as cache:
        assert kept.ping()
        assert cache.ping()


@pytest.mark.requirement("R2.2", "R2.3")
def test_what_must_not_go_and_what_may_have_a_redis_each(stack: LocalStack):
    """R2.2, R2.3: one keeps all, in a log and a snapshot every 15 minutes; the other writes nothing and evicts keys."""
    with (
        redis.Redis.from_url(stack.addresses.redis) as kept,
        redis.Redis.from_url(stack.addresses.redis_cache) as cache,
    ):
        names = ("maxmemory-policy", "appendonly", "appendfsync", "save")
        asked = [tuple(client.config_get(name)[name] for name in names) for client in (kept, cache)]
        assert asked == [("noeviction", "yes", "everysec", "900 1"), ("allkeys-lru", "no", "everysec", "")]
        assert int(cache.config_get("maxmemory")["maxmemory"]) == 256 * 1024**2
        kept.set("snapshot", 1)
        kept.bgsave()
        until((stack.data_dir / "redis" / "dump.rdb").exists)
        assert not list((stack.data_dir / "redis_cache").glob("*.rdb"))
    environment = stack.addresses.environment()
    assert environment["REDIS_CACHE_URL"] == stack.addresses.redis_cache != environment["REDIS_URL"]


def test_one_redis_of_somebody_elses_holds_everything(stack: LocalStack, private_dir: Path):
    """Where REDIS_URL alone is set no second one is started beside it."""
    alone = LocalStack(private_dir / "given", Addresses(redis=stack.addresses.redis))
    assert "redis" not in alone.names
    assert "redis_cache" not in alone.names
    assert "REDIS_CACHE_URL" not in alone.addresses.environment()


def test_topics_are_never_made_by_accident(stack: LocalStack):
    """Reading an undeclared topic does not create it."""
    admin = AdminClient({"bootstrap.servers": stack.addresses.kafka})
    admin.list_topics("never-declared", timeout=10)
    assert "never-declared" not in admin.list_topics(timeout=10).topics


def test_postgresql_gives_nobody_the_machine(stack: LocalStack, private_dir: Path):
    """It does not run as root, its superuser cannot log in, and no folder was opened for it."""
    pid = stack.process("database").pid
    assert pid is not None
    assert psutil.Process(pid).uids().real != 0
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        query(stack.addresses.database.replace("//highwater:", "//postgres:"), "SELECT 1")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        query(stack.addresses.database, "SELECT pg_read_file('/etc/passwd')")
    assert private_dir.stat().st_mode & 0o777 == 0o700


def test_postgresql_asks_for_the_password(stack: LocalStack):
    """Without it, with a wrong one and as another role the login fails; only a SCRAM verifier of it is stored."""
    address = stack.addresses.database
    password = password_of(address)
    for wrong in (f"highwater:{password}x@", "highwater:highwater@", "highwater@"):
        with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InterfaceError), match="password"):
            query(address.replace(f"highwater:{password}@", wrong), "SELECT 1")
    assert query(stack.addresses.database, "SHOW password_encryption") == "scram-sha-256"
    assert query(stack.addresses.database, "SHOW unix_socket_directories") == ""


def test_redis_asks_for_the_password(stack: LocalStack):
    """Without it every command is refused; with it none that would write elsewhere, load code or follow another server."""
    address = stack.addresses.redis
    for wrong in ("", "highwater:x@", "default:x@", ":x@"):
        url = address.replace(f"highwater:{password_of(address)}@", wrong)
        with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    with redis.Redis.from_url(stack.addresses.redis) as client:
        for words in (("CONFIG", "SET", "dir", "/tmp"), ("MODULE", "LIST"), ("REPLICAOF", "h", "1"), ("ACL", "LIST")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_a_cluster_that_trusted_everybody_asks_for_the_password_from_the_next_start_on(stack: LocalStack):
    """A data folder of before there were passwords: it keeps its data, takes the folder's password, and refuses all others."""
    address = stack.addresses.database
    query(address, "CREATE TABLE before_passwords AS SELECT 9 AS n")
    cluster = stack.data_dir / "postgres" / "cluster"
    stack.stop_part("database")
    access = cluster / "pg_hba.conf"
    access.write_text(access.read_text(encoding="utf-8").replace("scram-sha-256", "trust"), encoding="utf-8")
    (cluster / "highwater.ready").write_text("", encoding="utf-8")
    cluster.parent.chmod(0o755)
    stack.start_part("database")
    assert query(address, "SELECT n FROM before_passwords") == 9
    with pytest.raises(asyncpg.InvalidPasswordError):
        query(address.replace(password_of(address), "any"), "SELECT 1")
    assert open_to_others(cluster.parent) == {}


def test_only_its_owner_may_open_anything_in_the_data_folder(stack: LocalStack):
    """In the whole tree, with all services running: folders are 0700, files 0600."""
    assert open_to_others(stack.data_dir) == {}


def test_no_password_is_in_a_command_line_or_a_log(stack: LocalStack):
    """Arguments of processes, which every user of the machine may read, and logs, which are copied into tickets, contain none."""
    passwords = {password_of(address) for address in (stack.addresses.database, stack.addresses.redis)}
    assert min(len(password) for password in passwords) >= 43
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in (stack.data_dir / "logs").iterdir()]
    assert any(str(chosen_server().program) in line for line in lines)
    assert any(logs)
    assert [text for text in (*lines, *logs) if any(password in text for password in passwords)] == []


def test_data_and_addresses_survive_a_crash_of_every_part(stack: LocalStack):
    """After every part was killed and started again each has its data, at the address it had."""
    before = stack.addresses
    admin = AdminClient({"bootstrap.servers": before.kafka})
    admin.create_topics([NewTopic("kept", num_partitions=3)])["kept"].result(timeout=10)
    subject = f"{before.schema_registry}/subjects/kept-value/versions"
    schema_id = httpx2.post(subject, json={"schema": SCHEMA}).raise_for_status().json()["id"]
    query(before.database, "CREATE TABLE kept AS SELECT 7 AS n")
    with redis.Redis.from_url(before.redis) as client:
        client.set("kept", "7")
        until(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0)
    for name in stack.names:
        stack.kill_part(name)
    for name in stack.names:
        stack.start_part(name)
    assert stack.addresses == before
    again = AdminClient({"bootstrap.servers": before.kafka})
    assert len(again.list_topics(timeout=10).topics["kept"].partitions) == 3
    assert httpx2.get(f"{subject}/latest").json()["id"] == schema_id
    assert query(before.database, "SELECT n FROM kept") == 7
    with redis.Redis.from_url(before.redis) as client:
        assert client.get("kept") == b"7"


def test_a_given_address_is_used_and_a_taken_port_avoided(stack: LocalStack, private_dir: Path):
    """A second stack starts only the missing services, beside the first; its recreated folder is empty."""
    known = stack.addresses
    given = Addresses(known.kafka, known.schema_registry, known.database)
    for _ in range(2):
        with LocalStack(private_dir / "beside", given) as second:
            assert second.names == ("redis", "redis_cache")
            assert second.addresses.kafka == known.kafka
            assert second.addresses.redis != known.redis
            with redis.Redis.from_url(second.addresses.redis) as client:
                assert client.incr("starts") == 1
        shutil.rmtree(private_dir / "beside")


def test_a_given_address_that_does_not_answer_is_named(
    stack: LocalStack, private_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    """The error names the service, and the started ones are stopped again."""
    monkeypatch.setattr("highwater.deploy.local.stack.GIVEN_SECONDS_MAX", 0.0)
    known = stack.addresses
    given = Addresses(known.kafka, known.schema_registry, "postgresql://nobody@127.0.0.1:1/nothing")
    second = LocalStack(private_dir / "refused", given)
    with pytest.raises(PartFailedError, match=r"^database: .*does not answer"):
        second.start()
    assert not second.process("redis").is_alive()


def test_an_asked_for_port_that_is_taken_is_an_error(tmp_path: Path):
    """A used default port is replaced; a requested one is refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        ports = PortBook(tmp_path)
        assert ports.take("api", taken) > taken
        with pytest.raises(PortTakenError, match=str(taken)):
            ports.take("api", 8080, explicit=taken)
        with pytest.raises(LocalStackError, match=r"203\.0\.113\.7 is not an address of this machine"):
            ports.take("api", 8080, host="203.0.113.7")
        ports.release()
    assert PortBook(tmp_path).take("api", taken) > taken, "the port of the last start is kept"


def test_a_chosen_port_is_nobody_elses_before_its_listener_is_there(tmp_path: Path):
    """Stacks of two folders that start at the same moment choose different ports; given back, a port is free again."""
    books = [PortBook(tmp_path / name) for name in ("one", "two")]
    chosen = [book.take("kafka", 19_092) for book in books]
    assert len(set(chosen)) == len(books)
    with pytest.raises(PortTakenError, match=str(chosen[0])):
        books[1].take("api", 8080, explicit=chosen[0])
    books[0].release()
    assert books[1].take("api", 8080, explicit=chosen[0]) == chosen[0]
    books[1].release()


def test_a_second_supervisor_is_refused_and_a_killed_role_comes_back(plan: Plan):
    """One supervisor a folder; it starts a killed role and a killed part again; `stop` leaves nothing running."""
    started = start_detached(plan)
    assert started["ready"]
    said = (plan.data_dir / "logs" / "supervisor.log").read_text(encoding="utf-8")
    assert started["redis"].replace(password_of(started["redis"]), "***") in said
    assert password_of(started["redis"]) not in said
    assert open_to_others(plan.data_dir) == {}
    with pytest.raises(AlreadyRunningError):
        start_detached(plan)
    for name in ("sleeper", "redis"):
        os.kill(part(started, name)["pid"], signal.SIGKILL)

    def is_back() -> bool:
        now = status(plan.data_dir)
        return now["ready"] and all(part(now, name)["restarts"] == 1 for name in ("sleeper", "redis"))

    until(is_back)
    pids = [entry["pid"] for entry in status(plan.data_dir)["parts"] if entry["pid"]]
    assert stop(plan.data_dir)
    assert all(is_gone(pid) for pid in pids)
    assert not status(plan.data_dir)["ready"]
    assert not stop(plan.data_dir), "nothing was left to stop"


def test_nothing_outlives_a_killed_supervisor(plan: Plan):
    """When the supervisor is killed everything it ran dies, and the next start works."""
    started = start_detached(plan)
    pids = [entry["pid"] for entry in started["parts"] if entry["pid"]]
    os.kill(started["supervisor_pid"], signal.SIGKILL)
    until(lambda: all(is_gone(pid) for pid in pids), seconds=10)
    assert start_detached(plan)["ready"]


def test_a_removed_data_folder_ends_its_supervisor(plan: Plan):
    """A stack whose folder was deleted has nothing to serve: it stops rather than run on unseen."""
    started = start_detached(plan)
    pids = [started["supervisor_pid"], *(entry["pid"] for entry in started["parts"] if entry["pid"])]
    shutil.rmtree(plan.data_dir)
    until(lambda: all(is_gone(pid) for pid in pids))


def test_a_oneshot_that_fails_stops_the_start(plan: Plan):
    """The roles after a one-shot start only if it ended well; the error has its last line."""
    roles = (Role("migrate", ("sh", "-c", "echo no such column; exit 3"), oneshot=True), *plan.roles[1:])
    with pytest.raises(Exception, match=r"(?s)migrate: ended with status 3.*no such column"):
        start_detached(Plan(plan.data_dir, plan.given, roles))
    assert not status(plan.data_dir)["running"]


@pytest.mark.parametrize("is_oneshot", [True, False])
def test_a_role_that_refuses_a_setting_ends_the_start(plan: Plan, is_oneshot: bool):
    """The start does not wait for its time limit; the error is the role's one line, and nothing is left running."""
    broken = Role("broken", ("sh", "-c", "echo highwater: X is wrong >&2; exit 2"), oneshot=is_oneshot)
    with pytest.raises(MisconfiguredError, match=r"^broken cannot start: X is wrong$"):
        start_detached(replace(plan, roles=(*plan.roles, broken)))
    found = read_state(plan.data_dir)
    assert found is not None
    assert found["phase"] == "failed"
    assert all(one["pid"] is None or is_gone(one["pid"]) for one in found["parts"])
    assert not status(plan.data_dir)["running"]


def test_a_part_that_is_late_is_waited_for_and_the_rest_stays(plan: Plan, private_dir: Path, monkeypatch):
    """The start names the late service and leaves everything running; a second one continues to wait, until all is ready."""
    slow = private_dir / "bin" / "redis-server"
    slow.parent.mkdir()
    # Taken before the installed one, as a server of the system is; it is there after three seconds.
    slow.write_text(f'#!/bin/sh\n[ "$1" = --version ] || sleep 3\nexec {chosen_server().program} "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    told: list[str] = []
    with pytest.raises(
        NotReadyYetError, match=r"redis \(starting\).*left running: kafka.*highwater up --detach` waits on"
    ):
        start_detached(replace(plan, late_seconds=1.0), told.append)
    early = status(plan.data_dir)
    assert (early["running"], early["ready"], part(early, "kafka")["ready"]) == (True, False, True)
    ready = await_ready(plan, told.append)
    assert (ready["ready"], ready["supervisor_pid"]) == (True, early["supervisor_pid"])
    assert [part(ready, name)["restarts"] for name in ("redis", "sleeper")] == [0, 0]
    assert "redis is late: not ready after 1 s" in (plan.data_dir / "logs" / "supervisor.log").read_text()
    for name in ("redis is ready after ", "ready is done after ", "sleeper is ready after "):
        assert sum(line.startswith(name) for line in told) == 1, told


@pytest.mark.parametrize(
    ("deaths", "pause"), [(1, 1.0), (2, 2.0), (4, 8.0), (5, 16.0), (6, 30.0), (10, 30.0), (100_000, 30.0)]
)
def test_the_pause_doubles_to_a_limit_and_then_the_part_is_given_up(deaths: int, pause: float | None):
    """A restart waits 1 s, then twice as long each time up to 30 s, without end."""
    assert restart_pause_seconds(deaths) == pause

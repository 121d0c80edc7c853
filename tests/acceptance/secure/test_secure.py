"""`highwater up --secure`: the tour over TLS, which access needs credentials, and the errors for wrong ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx2
import pytest
import redis
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from highwater.connectors.kafka.refusal import refusal_of
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import open_connection
from highwater.connectors.principals import passwords_of
from highwater.connectors.redis.client import ask_once
from highwater.connectors.replay.subject import Subject
from highwater.deploy.site import kafka_access
from highwater.schemas.errors import AccessRefusedError
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.processes import PRINCIPALS, PROCESSES
from highwater.streams.settings import Settings, read_settings
from tests.integration.connecting import until

pytestmark = pytest.mark.long

TOPIC = "feeds.insight-ingested"
ADDRESSES = {
    "kafka": "KAFKA_BOOTSTRAP_SERVERS",
    "schema_registry": "SCHEMA_REGISTRY_URL",
    "database": "DATABASE_URL",
    "redis": "REDIS_URL",
}
WORDS = ("planner", "broker", "offset", "snapshot", "window")


@dataclass(frozen=True)
class Secured:
    """A stack that was started with --secure and no address set."""

    data_dir: Path
    environment: Mapping[str, str]
    status: Mapping[str, Any]

    def cli(self, *arguments: str, stdin: str | None = None) -> str:
        """Run `highwater` as its owner would: nothing is set but the data folder."""
        program = str(Path(sys.executable).parent / "highwater")
        done = subprocess.run(
            [program, *arguments], env=dict(self.environment), input=stdin, capture_output=True, text=True, timeout=280,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"highwater {' '.join(arguments)}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
        return done.stdout

    @property
    def names(self) -> dict[str, str]:
        """The addresses and what goes with them, as settings of a role on another machine."""
        return {**{name: self.status[part] for part, name in ADDRESSES.items()}, **self.status["settings"]}

    def settings(self, **changed: str) -> Settings:
        """The settings, some of them changed."""
        return read_settings({**self.names, **changed})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One stack for the module; what it logs is beside its data."""
    data_dir = tmp_path_factory.mktemp("secured") / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"HIGHWATER_DATA_DIR": str(data_dir), "HIGHWATER_PORT": str(port), "HIGHWATER_TICK_SECONDS": "1"}
    stack = Secured(data_dir, environment, {})
    with contextlib.ExitStack() as running:
        running.callback(stack.cli, "down")
        stack.cli("up", "--secure", "--detach", "--no-sample")
        yield Secured(data_dir, environment, json.loads(stack.cli("status", "--json")))


def test_the_tour_over_tls(secured: Secured, tmp_path: Path):
    """Publish, read, replay, verify, doctor and the dashboard do over TLS what they do without."""
    rows = [
        {
            "insight_id": f"i{n}",
            "channel_id": "acme/db",
            "ts": "2026-11-21T12:00:00Z",
            "text": f"Fix {WORDS[n % 5]} {n}",
        }
        for n in range(40)
    ]
    with httpx2.Client(base_url=secured.status["api"], timeout=30) as api:
        positions = api.put("/api/users/ada/subscriptions", json={"channels": ["acme/db"]}).json()["positions"]
        secured.cli("publish", TOPIC, "-", stdin="".join(json.dumps(row) + "\n" for row in rows))
        assert api.get("/api/users/ada/pending", headers={"X-Min-Position": ",".join(positions)}).status_code == 200
        api.post("/api/users/ada/rebuild").raise_for_status()
        until = time.monotonic() + 60
        while not api.get("/api/users/ada/pending").json()["cluster_version"]:
            assert time.monotonic() < until, "ada has no clusters"
            time.sleep(0.2)
        assert api.get("/api/users/ada/feed").status_code == 200
        assert "text/html" in api.get("/").headers["content-type"]
    assert len(secured.cli("tail", TOPIC, "-n", "40", "--no-follow", "--json").splitlines()) == len(rows)
    secured.cli("replay", TOPIC, "--format", "parquet", "--output", str(tmp_path / "insights.parquet"))
    secured.cli("verify")
    secured.cli("doctor")


def test_the_addresses_ask_for_tls_and_a_password(secured: Secured):
    """The output of `status`: TLS for each, and the authority created for this stack, readable by its owner alone."""
    assert secured.status["secure"]
    assert urlsplit(secured.status["schema_registry"]).scheme == "https"
    assert "sslmode=verify-full" in secured.status["database"]
    assert urlsplit(secured.status["redis"]).scheme == "rediss"
    assert secured.status["settings"]["KAFKA_SECURITY_PROTOCOL"] == "SASL_SSL"
    keys = list((secured.data_dir / "tls").iterdir())
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    sockets = [path for path in secured.data_dir.rglob("*") if path.is_socket()]  # of PostgreSQL and of each Redis
    assert [oct(path.stat().st_mode & 0o777) for path in sockets] == ["0o700"] * 3
    assert not [path for path in keys if path.name.startswith("ca") and path.suffix == ".key"]


@pytest.mark.parametrize(
    "more",
    [
        {"security.protocol": "PLAINTEXT"},
        {"security.protocol": "SSL"},
        {"security.protocol": "SASL_PLAINTEXT"},
        {"sasl.password": "wrong"},
        {"sasl.mechanism": "PLAIN"},
    ],
    ids=lambda more: next(iter(more.values())),
)
def test_kafka_is_closed(secured: Secured, more: Mapping[str, str]):
    """Neither in the clear, nor over TLS without a password, nor with a wrong one or another mechanism."""
    client = {**secured.settings().kafka_client(), "log_level": "0", **more}
    with pytest.raises(KafkaException):
        AdminClient(client).list_topics(timeout=2)


def test_each_user_of_kafka_may_do_what_the_table_says(secured: Secured):
    """`docs/kafka-access.md`, cell by cell: the brokers are asked which operations each user has on every topic."""
    table = rights_in(kafka_access.page())
    found = {}
    for name in PRINCIPALS:
        admin = AdminClient({**client_of(secured, name), "log_level": "0"})
        asked = admin.describe_topics(
            TopicCollection([topic.name for topic in all_topics()]),
            include_authorized_operations=True,
            request_timeout=30,
        )
        for topic, future in asked.items():
            refused = future.exception(60)
            operations = {one.name for one in future.result().authorized_operations} if refused is None else set()
            assert refused is None or refused.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            letter = {"R": "READ", "W": "WRITE"}
            found[name, topic] = "".join(one for one in letter if letter[one] in operations) or "-"
            deletes = name == "api" and topic.endswith(".dlq")
            assert operations <= {"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", *({"DELETE"} if deletes else ())}
    assert found == table


def rights_in(page: str) -> dict[tuple[str, str], str]:
    """The cells of the page's table, those of the dead letters from its last column."""
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    head = next(row for row in rows if row[0] == "topic")
    found = {}
    for topic, *cells, letters in (row for row in rows if row[0] in TOPICS):
        for name, cell in zip(head[1:-1], cells, strict=True):
            found[name, topic] = cell
            writes = name == "api" or name in letters.split(", ")
            found[name, f"{topic}.dlq"] = "-" if name == "producer" else "RW" if writes else "R"
    return found


def test_a_producer_forges_no_tick(secured: Secured):
    """What only the product writes is refused, also to another process of it; what happened outside is accepted."""
    tried = (
        ("producer", "streams.tick", False),
        ("producer", "feeds.rebuild-requested", False),
        ("producer", "jobs.role-changed", False),
        ("producer", f"{TOPIC}.dlq", False),
        ("connect-workers", "streams.tick", False),
        ("producer", "league.comment-posted", True),
    )
    for name, topic, is_allowed in tried:
        answers: list[KafkaError | None] = []
        producer = Producer({**client_of(secured, name), "log_level": "0"})
        producer.produce(
            topic, b"not an event", b"key", on_delivery=lambda error, _message, to=answers: to.append(error)
        )
        producer.flush(30)
        (error,) = answers
        assert (
            (error is None)
            if is_allowed
            else (error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
        )
    group = "highwater-insights"  # the groups of the product are its own
    admin = AdminClient({**client_of(secured, "producer"), "log_level": "0"})
    refused = admin.describe_consumer_groups([group], request_timeout=30)[group].exception(60)
    assert refused is not None
    assert refused.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_init_sets_exactly_the_rights(secured: Secured):
    """A right that was added to a user by hand is removed, and rights of other users stay."""
    admin = AdminClient({**secured.settings().kafka_client(), "log_level": "0"})
    topic = (ResourceType.TOPIC, "streams.tick", ResourcePatternType.LITERAL)
    more = [
        AclBinding(*topic, f"User:{user}", "*", AclOperation.WRITE, AclPermissionType.ALLOW)
        for user in ("highwater-producer", "billing")
    ]
    for future in admin.create_acls(more).values():
        future.result(30)
    assert "highwater-producer" in secured.cli("init")
    of_ticks = AclBindingFilter(*topic, None, None, AclOperation.WRITE, AclPermissionType.ALLOW)
    writers = {binding.principal for binding in admin.describe_acls(of_ticks).result(30)}
    assert writers == {"User:highwater-worker", "User:highwater-api", "User:billing"}
    assert "users: nothing to do" in secured.cli("init")


def client_of(secured: Secured, name: str) -> dict[str, str]:
    """The settings of a client that is one of the users of Kafka."""
    passwords = passwords_of(secured.names["HIGHWATER_KAFKA_PRINCIPALS"])
    login = {"KAFKA_SASL_USERNAME": f"highwater-{name}", "KAFKA_SASL_PASSWORD": passwords[name]}
    return secured.settings(**login).kafka_client()


def test_a_process_knows_its_own_password_alone(secured: Secured):
    """Its environment, which a program in that process reads, has no other user's."""
    passwords = passwords_of(secured.names["HIGHWATER_KAFKA_PRINCIPALS"])
    everybody = {**passwords, "operator": secured.names["KAFKA_SASL_PASSWORD"]}
    roles = {part["name"]: part["pid"] for part in secured.status["parts"] if part.get("ready_url")}
    assert len(roles) == len(PROCESSES)
    for role, pid in roles.items():
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode()
        known = {name for name, password in everybody.items() if password in environment}
        assert known == {role if role in PROCESSES else f"connect-{role}"}


def test_kcat_is_refused_without_credentials(secured: Secured):
    """A foreign program gets no data."""
    if shutil.which("kcat") is None:  # as in the gate: librdkafka's own client has been refused above
        return
    asked = subprocess.run(
        ["kcat", "-b", secured.status["kafka"], "-L", "-m", "2"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert asked.returncode != 0
    assert "topic" not in asked.stdout


def test_the_controller_takes_only_its_own_broker(secured: Secured):
    """Its listener requires a certificate of the stack's authority, which only the broker has."""
    port = json.loads((secured.data_dir / "run" / "ports.json").read_text(encoding="utf-8"))["kafka_controller"]
    context = ssl.create_default_context(cafile=secured.status["settings"]["KAFKA_SSL_CA_LOCATION"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|BAD_CERTIFICATE"),
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        tls.recv(1)  # TLS 1.3 says so only now


def test_the_registry_is_closed(secured: Secured):
    """401 without credentials and with wrong ones; nothing at all in the clear."""
    access = secured.settings().registry_access()
    assert access is not None
    asked = {name: access.http_client()[name] for name in ("verify", "trust_env")}
    for credentials in (None, ("highwater", "wrong")):
        assert httpx2.get(f"{access.url}/subjects", auth=credentials, **asked).status_code == 401
    # Producers read schemas and change none.
    login = ("highwater-producer", passwords_of(secured.names["HIGHWATER_KAFKA_PRINCIPALS"])["producer"])
    newest = f"{access.url}/subjects/{TOPIC}-value/versions"
    schema = httpx2.get(f"{newest}/latest", auth=login, **asked).json()["schema"]
    for method, address in (("POST", newest), ("DELETE", newest.rpartition("/")[0]), ("PUT", f"{access.url}/config")):
        assert httpx2.request(method, address, auth=login, json={"schema": schema}, **asked).status_code == 403
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{access.url.replace('https', 'http')}/subjects", trust_env=False)


async def test_postgresql_is_closed(secured: Secured):
    """In the clear, as its superuser, and with a wrong password."""
    address = secured.status["database"]
    bare, password = address.partition("?")[0], urlsplit(address).password
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="TLS connections only"):
        await asyncpg.connect(f"{bare}?sslmode=disable")
    for wrong in (address.replace(password, "wrong"), address.replace("//highwater:", "//postgres:")):
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await asyncpg.connect(wrong)


def test_redis_is_closed(secured: Secured):
    """In the clear, without a password and with a wrong one."""
    address = secured.status["redis"]
    user, _, place = address.removeprefix("rediss://").partition("@")
    for wrong in (f"redis://{user}@{place.partition('?')[0]}", f"rediss://{place}", f"rediss://highwater:no@{place}"):
        with redis.Redis.from_url(wrong, socket_timeout=5) as client, pytest.raises(redis.ConnectionError):
            client.ping()


def test_a_wrong_setting_for_kafka_is_named(secured: Secured, wrong_authority: str):
    """The password, the authority, the host name, and a listener without TLS: one line each, with the setting."""
    port = secured.status["kafka"].rpartition(":")[2]
    for changed, said in (
        ({}, None),
        ({"KAFKA_SASL_PASSWORD": "wrong"}, "KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD"),
        ({"KAFKA_SSL_CA_LOCATION": wrong_authority}, "KAFKA_SSL_CA_LOCATION: 127.0.0.1"),
        ({"KAFKA_BOOTSTRAP_SERVERS": f"127.1:{port}"}, "KAFKA_SSL_CA_LOCATION: 127.1"),
    ):
        refusal = refusal_of(secured.settings(**changed).kafka_client())
        assert refusal is None if said is None else refusal is not None and refusal.startswith(said), refusal


def test_a_wrong_setting_for_the_registry_is_named(secured: Secured, wrong_authority: str):
    """By its client and by the replay's own reader alike."""
    for changed, said in (
        ({"SCHEMA_REGISTRY_PASSWORD": "wrong"}, "SCHEMA_REGISTRY_USERNAME and SCHEMA_REGISTRY_PASSWORD"),
        ({"SCHEMA_REGISTRY_SSL_CA_LOCATION": wrong_authority}, "SCHEMA_REGISTRY_SSL_CA_LOCATION"),
        ({"SCHEMA_REGISTRY_URL": secured.names["SCHEMA_REGISTRY_URL"].replace("127.0.0.1", "127.1")}, "mismatch"),
    ):
        access = secured.settings(**changed).registry_access()
        with pytest.raises(AccessRefusedError, match=said):
            asyncio.run(Registry(access).codec([TOPICS[TOPIC]]))
        with pytest.raises(AccessRefusedError, match=said):
            Subject.fetch(TOPICS[TOPIC], access)


async def closed(asking: Awaitable[object]) -> None:
    """Ask, and stay until the sockets of that are closed: the end of TLS takes an answer of the server, and a loop that ends
    before it leaves the socket to the garbage collector.
    """
    before = sockets()
    try:
        await asking
    finally:
        await until(lambda: not sockets() - before, "a socket is left open")


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(link.readlink()))
    return {name for name in found if name.startswith("socket:")}


def test_a_wrong_address_of_postgresql_or_redis_is_named(secured: Secured, wrong_authority: str):
    """The password, the authority and the host name."""
    authority = secured.names["KAFKA_SSL_CA_LOCATION"]
    for name, setting in (("database", "DATABASE_URL"), ("redis", "REDIS_URL")):
        address = secured.status[name]
        password = str(urlsplit(address).password)
        for wrong, said in (
            (address.replace(password, "wrong"), f"{setting} is refused"),
            (address.replace(authority, wrong_authority), f"the server of {setting} is not trusted .*certificate"),
            (address.replace("@127.0.0.1", "@127.1"), f"the server of {setting} is not trusted .*mismatch"),
        ):
            ask = open_connection(wrong, timeout=5) if name == "database" else ask_once(wrong, 5)
            with pytest.raises(AccessRefusedError, match=said):
                asyncio.run(closed(ask))


@pytest.fixture
def wrong_authority(tmp_path: Path) -> str:
    """The certificate of an authority that certified no server here."""
    from datetime import UTC, datetime

    from highwater.deploy.local.certificates import certificates_of

    return str(certificates_of(tmp_path, datetime.now(UTC)).authority)  # noqa: TID251 - the clock of TLS

"""The checks of `doctor`: this machine, the four services, and their contents against what this version expects.

Invariant: a check only reads; each failed one names the remedy. A failed check does not stop the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from highwater.api.cli.configuration import configuration_faults
from highwater.api.command.connection import ADDRESSES, database, kafka_client
from highwater.schemas.errors import ConfigurationError, HighwaterError, UnavailableError
from highwater.schemas.topics import keyed_partitions
from highwater.streams.settings import Settings
from highwater.streams.wording import counted

State = Literal["ok", "warning", "bad"]
OK: State = "ok"
WARNING: State = "warning"
BAD: State = "bad"

_GIB = 1 << 30
# Kafka stops a log folder permanently when its disk is full; a gigabyte is one segment.
DISK_BYTES_BAD, DISK_BYTES_WARNING = _GIB, 5 * _GIB
# Consumers keep up within seconds; a lag of a minute is a backlog in progress, or the beginning of a problem.
LAG_SECONDS_WARNING = 60.0
# Below this a consumer is simply working.
LAG_SECONDS_NOTED = 5.0
# The name of the decision worker among the consumers.
WORKER = "worker"
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check; `remedy` is empty if no action is needed."""

    name: str
    state: State
    detail: str
    remedy: str = ""


Checker = Callable[[Settings], Awaitable[list[Check]]]


async def check_all(settings: Settings) -> list[Check]:
    """Run every check, in an order in which a first failed one explains those after it."""
    found: list[Check] = []
    for name, checker in _CHECKERS.items():
        try:
            found += await checker(settings)
        except (HighwaterError, OSError, ValueError) as error:
            found.append(Check(name, BAD, " ".join(str(error).split()) or type(error).__name__, _REMEDY_AWAY))
        except Exception as error:  # noqa: BLE001 - a service in an unforeseen state is a finding, not a reason to stop checking
            found.append(Check(name, BAD, f"{type(error).__name__}: {' '.join(str(error).split())}", _REMEDY_AWAY))
    return found


_REMEDY_AWAY = "see the checks above, and the log of the service"


async def check_platform(_: Settings) -> list[Check]:
    """Check the machine and its Python."""
    from highwater.deploy.local.check_platform import complaint

    complaint_line = complaint(platform.system(), platform.machine(), tuple(sys.version_info[:2]))
    detail = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return [Check("platform", BAD if complaint_line else OK, detail, complaint_line)]


async def check_disk(settings: Settings) -> list[Check]:
    """Check the free space of the data folder."""
    folder = settings.data_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    return [disk_verdict(shutil.disk_usage(folder).free, settings.data_dir)]


def disk_verdict(free_bytes: int, data_dir: Path) -> Check:
    """Judge this number of free bytes."""
    state = BAD if free_bytes < DISK_BYTES_BAD else WARNING if free_bytes < DISK_BYTES_WARNING else OK
    remedy = (
        ""
        if state == OK
        else f"free some space, or set HIGHWATER_DATA_DIR to a larger disk than the one with {data_dir}"
    )
    return Check("disk", state, f"{free_bytes / _GIB:,.1f} GiB free", remedy)


async def check_clock(settings: Settings) -> list[Check]:
    """Check the product's clock."""
    return [clock_verdict(settings.clock_file)]


def clock_verdict(clock_file: Path | None) -> Check:
    """Judge the contents of the clock file."""
    if clock_file is None:
        return Check("clock", OK, "the machine's")
    try:
        offset = float(clock_file.read_text(encoding="ascii").strip() or "0")
    except FileNotFoundError:
        return Check("clock", WARNING, f"{clock_file} does not exist: no offset", "write an offset in seconds into it")
    except ValueError:
        remedy = f"{clock_file} must hold one number of seconds; until then the last readable number counts"
        return Check("clock", BAD, "unreadable", remedy)
    return Check(
        "clock",
        OK if offset == 0 else WARNING,
        f"moved by {offset:g} s",
        "" if offset == 0 else f"remove {clock_file} to end the rehearsal",
    )


async def check_configuration(settings: Settings) -> list[Check]:
    """Check the settings and files that a role reads when it starts."""
    faults = configuration_faults(settings)
    if not faults:
        return [Check("configuration", OK, "every setting and file can be used")]
    return [Check("configuration", BAD, fault, "correct it; no role that reads it starts before") for fault in faults]


async def check_addresses(settings: Settings) -> list[Check]:
    """Check that every service has an address."""
    missing = [name for field, name in ADDRESSES.items() if getattr(settings, field) is None]
    if not missing:
        return [Check("addresses", OK, "all known")]
    return [
        Check("addresses", BAD, f"unknown: {', '.join(missing)}", "`highwater up` starts each service that is not set")
    ]


async def check_kafka(settings: Settings) -> list[Check]:
    """Check the brokers, and the topics against the catalogue."""
    from confluent_kafka import KafkaException, libversion
    from confluent_kafka.admin import AdminClient

    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.refusal import refusal_of
    from highwater.schemas.errors import CatalogueMismatchError
    from highwater.schemas.topics import all_topics

    if settings.kafka is None:
        return []
    client = kafka_client(settings)
    admin = AdminClient(client)
    try:
        metadata = await asyncio.to_thread(admin.list_topics, timeout=_ANSWER_SECONDS)
    except KafkaException as error:
        refusal = await asyncio.to_thread(refusal_of, client)
        if refusal is not None:
            return [Check("kafka", BAD, refusal, "correct the setting; see docs/secure.md")]
        told = f"{settings.kafka}: {error.args[0].str()}"
        return [Check("kafka", BAD, told, "start it, or correct KAFKA_BOOTSTRAP_SERVERS")]
    brokers = counted(len(metadata.brokers), "broker")
    found = [Check("kafka", OK, f"{brokers} at {settings.kafka}, librdkafka {libversion()[0]}")]
    missing = [topic.name for topic in all_topics() if topic.name not in metadata.topics]
    if missing:
        found.append(Check("topics", BAD, f"missing: {', '.join(missing)}", "`highwater init`"))
    try:
        there = [topic for topic in all_topics() if topic.name in metadata.topics]
        await Admin(client).ensure_topics(there, replication_factor=settings.replication_factor)
    except CatalogueMismatchError as error:
        remedy = "correct what the line names, settings of a topic with `kafka-configs.sh --alter`; delete no topic"
        found.append(Check("topics", BAD, str(error), remedy))
    if len(found) == 1:
        found.append(Check("topics", OK, f"{len(there)} as in the catalogue"))
    partitions = [place for topic in metadata.topics.values() for place in topic.partitions.values()]
    return [*found, replicas_verdict([(len(place.replicas), len(place.isrs)) for place in partitions])]


def replicas_verdict(replicas: Sequence[tuple[int, int]]) -> Check:
    """Judge the numbers of replicas and of in-sync replicas of partitions."""
    behind = sum(in_sync < count for count, in_sync in replicas)
    if not behind:
        return Check("replicas", OK, f"{len(replicas):,} partitions, every replica in sync")
    detail = f"{behind:,} of {len(replicas):,} partitions have replicas that are not in sync"
    remedy = (
        "a broker is stopped or is catching up: start it and wait; if one more is lost, writes to these partitions stop"
    )
    return Check("replicas", WARNING, detail, remedy)


async def check_registry(settings: Settings) -> list[Check]:
    """Check the registry, and the schemas with their compatibility."""
    import httpx2

    from highwater.connectors.kafka.registry import COMPATIBILITY, Registry
    from highwater.schemas.errors import ConfigurationError
    from highwater.schemas.topics import TOPICS

    if settings.schema_registry is None:
        return []
    registry = Registry(settings.registry_access())
    url = registry.access.url
    missing, loose = [], []
    async with httpx2.AsyncClient(timeout=_ANSWER_SECONDS, **registry.access.http_client()) as http:
        version = await _registry_version(http, url)
        for topic in TOPICS.values():
            try:
                await registry.codec([topic])
            except ConfigurationError:
                missing.append(topic.name)
                continue
            except UnavailableError as error:
                return [Check("schema registry", BAD, f"{url}: {error}", "start it, or correct SCHEMA_REGISTRY_URL")]
            answer = await http.get(f"{url}/config/{topic.subject}")
            level = answer.json().get("compatibilityLevel") if answer.status_code == httpx2.codes.OK else None
            if level != COMPATIBILITY:
                loose.append(f"{topic.subject} ({level})")
    found = [Check("schema registry", OK, f"{url}{version}")]
    if missing:
        found.append(Check("schemas", BAD, f"not registered: {', '.join(missing)}", "`highwater init`"))
    if loose:
        found.append(Check("schemas", BAD, f"not {COMPATIBILITY}: {', '.join(loose)}", "`highwater init` sets it"))
    return found if len(found) > 1 else [*found, Check("schemas", OK, f"{len(TOPICS)} registered, {COMPATIBILITY}")]


async def _registry_version(http: Any, url: str) -> str:
    """Return the version of Apicurio; other registries do not report one."""
    import httpx2

    try:
        answer = await http.get(f"{url.partition('/apis/')[0]}/apis/registry/v3/system/info")
        return f", {answer.json()['name']} {answer.json()['version']}"
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return ""


async def check_database(settings: Settings) -> list[Check]:
    """Check PostgreSQL and its migrations."""
    from highwater.connectors.postgres import migrate

    if settings.database is None:
        return []
    try:
        async with database(settings) as pool:
            version = await pool.fetchval("SHOW server_version")
            there = await pool.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL")
            rows = await pool.fetch("SELECT name, sha256 FROM schema_migrations") if there else []
    except HighwaterError as error:
        return [Check("database", BAD, str(error), "start it, or correct DATABASE_URL")]
    folder = migrate.FOLDER
    wanted = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.sql")}
    applied = {row["name"]: row["sha256"] for row in rows}
    return [Check("database", OK, f"PostgreSQL {version}"), migrations_verdict(wanted, applied)]


def migrations_verdict(expected: dict[str, str], applied: dict[str, str]) -> Check:
    """Compare the applied migrations (name -> sha256) with those of this version."""
    missing = sorted(set(expected) - set(applied))
    changed = sorted(name for name in expected if name in applied and applied[name] != expected[name])
    newer = sorted(set(applied) - set(expected))
    if changed:
        return Check("migrations", BAD, f"changed after they were applied: {', '.join(changed)}", "restore their files")
    if missing:
        return Check("migrations", BAD, f"not applied: {', '.join(missing)}", "`highwater init`")
    if newer:
        return Check("migrations", WARNING, f"of a newer version: {', '.join(newer)}", "update this installation")
    return Check("migrations", OK, f"{len(applied)} applied")


async def check_redis(settings: Settings) -> list[Check]:
    """Check Redis, and the separate Redis for caches if there is one; name the vulnerabilities of the embedded one."""
    from highwater.connectors.redis.client import ask_once
    from highwater.deploy.local.redis import installed_program

    found, servers = [], []
    for name, address, setting in (
        ("redis", settings.redis, "REDIS_URL"),
        ("redis_cache", settings.redis_cache, "REDIS_CACHE_URL"),
    ):
        if address is None:
            continue
        try:
            server = await ask_once(address, _ANSWER_SECONDS, setting)
            servers.append(server)
            found.append(Check(name, OK, f"{server.kind} {server.version}"))
        except UnavailableError as error:
            remedy = f"start it, or correct {setting}; reads continue from PostgreSQL meanwhile"
            found.append(Check(name, BAD, f"{error}", remedy))
    embedded = next((server for server in servers if Path(server.executable) == installed_program()), None)
    return [*found, *([embedded_redis_verdict(embedded.version)] if embedded else [])]


def embedded_redis_verdict(version: str) -> Check:
    """Name the known vulnerabilities of the Redis that `make install` brings, as the audit of the dependencies has them."""
    from highwater.deploy.local.redis import known_vulnerabilities

    checked, names = known_vulnerabilities()
    detail = f"the embedded Redis {version} has {counted(len(names), 'known vulnerability', 'known vulnerabilities')}"
    remedy = (
        "install a Redis or Valkey of the system, which `highwater up` prefers from its next start on; "
        "docs/dependencies.md says which of these can be reached"
    )
    return Check("redis advisories", WARNING, f"{detail} (as of {checked}): {', '.join(names)}", remedy)


async def check_embedder(settings: Settings) -> list[Check]:
    """Check the embedding model: whether its files are complete, and how many insights wait for vectors."""
    from highwater.connectors.models.embeddings import EmbeddingError
    from highwater.connectors.models.local_model import MINILM, read_files
    from highwater.connectors.models.opening import chosen_embedder

    try:
        chosen = chosen_embedder(settings)
        if chosen == "local":
            read_files(settings.model_dir)
    except ConfigurationError as error:
        return [Check("embedder", BAD, str(error), "correct HIGHWATER_EMBEDDER, or install the model it names")]
    except EmbeddingError as error:
        remedy = "`python -m highwater.deploy.local.fetch --models`, or HIGHWATER_EMBEDDER=builtin"
        meanwhile = "feeds use the built-in embedder, and words decide searches and answers"
        return [Check("embedder", BAD, f"{error}; meanwhile {meanwhile}", remedy)]
    behind = await _vectors_behind(settings)
    if chosen == "builtin" and settings.embedder is None:
        remedy = "`make install` installs it; or set HIGHWATER_EMBEDDER=builtin to do without it"
        return [Check("embedder", WARNING, f"builtin: {MINILM.why_missing(settings.model_dir)}{behind}", remedy)]
    name = {"local": MINILM.basis_id, "service": settings.embeddings_model}.get(chosen)
    return [Check("embedder", OK, chosen + (f": {name}" if name else "") + behind)]


async def _vectors_behind(settings: Settings) -> str:
    from highwater.connectors.chunks.statements import QUERIES as CHUNKS
    from highwater.connectors.chunks.switching import behind
    from highwater.connectors.feeds.statements import QUERIES as FEEDS
    from highwater.connectors.models.backlog import BACKLOG_COUNTED_MAX
    from highwater.schemas.envelope import iso_from_ms_or_none

    if settings.database is None:
        return ""
    async with database(settings) as pool:
        insights = await pool.fetchval(FEEDS["insights_behind"], BACKLOG_COUNTED_MAX)
        chunks = await pool.fetchval(CHUNKS["chunks_behind"], BACKLOG_COUNTED_MAX)
        left = await behind(pool)
    told = f"; {counted(insights, 'insight')} and {counted(chunks, 'chunk')} wait for a vector"
    if not left.namespaces:
        return told
    due = iso_from_ms_or_none(left.due_ms) or "unknown"
    return (
        f"{told}; {counted(left.namespaces, 'namespace')} in a change of embedding model: "
        f"{counted(left.missing, 'vector')} missing, expected end {due}"
    )


async def check_lag(settings: Settings) -> list[Check]:
    """Check the lag of the consumers."""
    from highwater.api.cli.lag import gather_lags
    from highwater.connectors.kafka.truncation import COMMAND

    if settings.kafka is None or settings.database is None:
        return []
    found = []
    groups = await gather_lags(settings)
    for group in groups:
        late = (group.seconds or 0.0) > LAG_SECONDS_WARNING
        detail = f"{counted(group.events, 'event')} behind" + (f", {group.seconds:,.0f} s" if group.seconds else "")
        if group.problem:
            never = all(standing.next is None for standing in group.standings)
            remedy = "`highwater up`, or its role on some machine" if never else "see `highwater reset --help`"
            if group.is_truncated:
                remedy = f"`{COMMAND}` shows what was lost and what can be repaired"
            elif group.stopped:
                remedy = "correct the producer, then run " + ", ".join(f"`{stop.command}`" for stop in group.stopped)
            state = WARNING if never and not group.events else BAD
            found.append(Check(f"consumer {group.group}", state, f"{group.problem}; {detail}", remedy))
        elif late:
            remedy = "check that its role runs (`highwater status`), and read `highwater dlq list`"
            found.append(Check(f"consumer {group.group}", WARNING, detail, remedy))
        else:
            found.append(Check(f"consumer {group.group}", OK, detail))
    behind = [(group.group, group.events, group.seconds or 0.0) for group in groups if not group.problem]
    return [*found, bottleneck_verdict(behind)]


def bottleneck_verdict(behind: Sequence[tuple[str, int, float]]) -> Check:
    """Return which running consumer would limit a higher load first: group, events behind, seconds behind."""
    name = "next bottleneck"
    group, events, seconds = max(behind, key=lambda one: (one[2], one[1]), default=("", 0, 0.0))
    if not events:
        return Check(name, OK, "none: no running consumer is behind")
    detail = f"consumer {group}, the furthest behind: {counted(events, 'event')}, {seconds:,.1f} s"
    if seconds <= LAG_SECONDS_NOTED:
        return Check(name, OK, detail)
    command = "highwater worker" if group == WORKER else f"highwater connect {group}"
    most = keyed_partitions()
    remedy = (
        f"run another process of this role (`{command}`), up to one per partition ({most}); then a larger PostgreSQL"
    )
    return Check(name, OK, detail, remedy)


_CHECKERS: dict[str, Checker] = {
    "platform": check_platform,
    "disk": check_disk,
    "clock": check_clock,
    "configuration": check_configuration,
    "addresses": check_addresses,
    "kafka": check_kafka,
    "schema registry": check_registry,
    "database": check_database,
    "redis": check_redis,
    "embedder": check_embedder,
    "consumers": check_lag,
}

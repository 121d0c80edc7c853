"""Checks before a worker starts: the broker answers, and its topics and changelogs exist.

Invariant: a worker starts only on a complete set of topics. It waits while a broker is unavailable, logs once what is
missing, and creates nothing but its own changelogs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    CommitFailedError,
    KafkaError,
    RebalanceInProgressError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)

from highwater.schemas.errors import AccessRefusedError, CatalogueMismatchError, ConfigurationError, TailLostError
from highwater.schemas.topics import partitions_refusal
from highwater.streams.access import KafkaAccess
from highwater.streams.refusal import kafka_refusal
from highwater.streams.retry import unavailable_seconds
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# A metadata answer may lag behind a creation by this much; requested again until it is complete.
_SETTLE_SECONDS = 0.1
# A broker answers in milliseconds; one that takes longer than this counts as unavailable.
_ANSWER_SECONDS_MAX = 5.0

_log = get_log("worker")


def claim_state_dir(root: Path, partitions: int) -> tuple[Path, IO[str]]:
    """Return the first free folder for local state below `root`, locked until the returned file is closed or the
    process ends.

    Several workers of one machine may share a data folder: each takes the lowest free number, and so finds its state
    again after a restart. RocksDB itself would wait 30 s for a folder in use and then end the worker.

    Raises:
        ConfigurationError: as many workers as there are partitions run here already.
    """
    for number in range(partitions):
        state_dir = root / str(number)
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "lock").open("w", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        return state_dir, lock
    raise ConfigurationError(f"{partitions} workers use {root} already; more would have no partition to serve")


async def prepare(
    settings: Settings, group: str, sources: Collection[str], changelogs: Mapping[str, Mapping[str, str]]
) -> None:
    """Check topics and offsets; wait while a broker is unavailable, and log that once.

    Raises:
        TailLostError: a source topic lost records that this group has read.
        CatalogueMismatchError: a source topic is missing or has another number of partitions.
        AccessRefusedError: the broker refuses the credentials, or is not trusted.
    """
    attempt = 0
    while True:
        try:
            await prepare_topics(settings, sources, changelogs)
            await prepare_offsets(settings, group, sources)
        except (KafkaError, OSError) as error:  # a TimeoutError is an OSError
            attempt += 1
            if attempt == 1:
                _log.error("broker_unavailable", brokers=settings.kafka, error=repr(error), effect="waiting for it")
            await asyncio.sleep(unavailable_seconds(attempt))
        else:
            return


async def is_answering(access: KafkaAccess) -> bool:
    """Return whether a broker answers a request on a separate connection within seconds."""
    try:
        admin = AIOKafkaAdminClient(**access.aiokafka(), request_timeout_ms=int(_ANSWER_SECONDS_MAX * 1000))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                await admin.start()
        finally:
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                await admin.close()
    except (KafkaError, OSError, ConfigurationError):
        return False
    return True


async def prepare_topics(
    settings: Settings, sources: Collection[str], changelogs: Mapping[str, Mapping[str, str]]
) -> None:
    """Wait for the broker, check the source topics, and create missing changelogs.

    Raises:
        CatalogueMismatchError: a source topic is missing or has another number of partitions.
        AccessRefusedError: the broker refuses the credentials, or is not trusted.
    """
    admin = await _connect(settings)
    try:
        known = await _settled(admin, [*sources, *changelogs])
        refusal = topics_refusal(known, sources, settings.partitions)
        if refusal is not None:
            raise CatalogueMismatchError(refusal)
        await _create(admin, settings, {name: config for name, config in changelogs.items() if name not in known})
        while any(  # noqa: ASYNC110 (it is the broker that is waited for)
            count != settings.partitions for count in (await _counts(admin, changelogs)).values()
        ):
            await asyncio.sleep(_SETTLE_SECONDS)
    finally:
        await admin.close()


def topics_refusal(counts: Mapping[str, int], sources: Collection[str], expected: int) -> str | None:
    """Return why a worker cannot run on topics with these partition counts, including changelogs; None if it can."""
    missing = sorted(set(sources) - set(counts))
    if missing:
        return f"topics are missing: {', '.join(missing)}; run `highwater init`"
    refusal = partitions_refusal(counts, expected)
    if refusal is not None:
        return refusal
    return changelogs_refusal({name: count for name, count in counts.items() if name not in sources}, expected)


def changelogs_refusal(counts: Mapping[str, int], expected: int) -> str | None:
    """Return why tables cannot be kept in changelogs with these partition counts; None if they can.

    A table's partition is its source's: the library refuses another number without saying what to do. A deleted changelog
    would be created again, empty, and the worker would decide as if there had been no events: it is never deleted by hand.
    """
    other = ", ".join(f"{name} has {count}" for name, count in sorted(counts.items()) if count != expected)
    if not other:
        return None
    return (
        f"changelogs have another number of partitions than the topics, which have {expected}: {other}. Do not delete them:"
        " stop the workers and run `highwater recover-tables --recreate`, which rebuilds them from the events"
    )


async def prepare_offsets(settings: Settings, group: str, sources: Collection[str]) -> None:
    """Give every source partition of the group a committed offset, the start of the log if it has none yet, or one before it.

    The library discards fetched records when a rebalance begins and seeks to the committed offset; without one it keeps
    its place, and the discarded events are never seen. (Seen in one of three first rebalances.)

    Raises:
        TailLostError: a log ends before the committed offset, so what is written there next would be left out.
    """
    places = [TopicPartition(topic, partition) for topic in sorted(sources) for partition in range(settings.partitions)]
    consumer = AIOKafkaConsumer(group_id=group, enable_auto_commit=False, **settings.kafka_access().aiokafka())
    await consumer.start()
    try:
        consumer.assign(places)
        committed = {place: await consumer.committed(place) for place in places}
        starts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        refusal = tail_refusal({(p.topic, p.partition): (committed[p] or 0, ends[p]) for p in places})
        if refusal is not None:
            raise TailLostError(refusal)
        fresh = {
            place: starts[place] for place, offset in committed.items() if offset is None or offset < starts[place]
        }
        if fresh:
            # Refused while members are active: then one of them has done this before it joined.
            with contextlib.suppress(CommitFailedError, UnknownMemberIdError, RebalanceInProgressError):
                await consumer.commit(fresh)
    finally:
        await consumer.stop()


def tail_refusal(places: Mapping[tuple[str, int], tuple[int, int]]) -> str | None:
    """Return why a worker cannot continue from its committed offsets, each with the end of its log; None if it can."""
    beyond = {place: found for place, found in places.items() if found[0] > found[1]}
    if not beyond:
        return None
    lost = ", ".join(
        f"{topic}/{partition} from offset {end} on" for (topic, partition), (_, end) in sorted(beyond.items())
    )
    return (
        f"Kafka lost records that this worker has read: {lost}; nothing is decided until the log is repaired."
        " `highwater repair-log` shows what was lost"
    )


async def _connect(settings: Settings) -> Any:
    access = settings.kafka_access()
    attempt = 0
    while True:
        attempt += 1
        admin = AIOKafkaAdminClient(**access.aiokafka())
        try:
            await admin.start()
        except KafkaError as error:
            await admin.close()
            refusal = await kafka_refusal(access)
            if refusal is not None:
                raise AccessRefusedError(f"Kafka refuses the connection: {refusal}") from error
            if attempt == 1:
                _log.error("broker_unavailable", brokers=settings.kafka, error=str(error), effect="waiting for it")
            await asyncio.sleep(unavailable_seconds(attempt))
        else:
            return admin


async def _settled(admin: Any, names: Collection[str]) -> dict[str, int]:
    """Return the partition counts of existing topics, requested until the broker knows each."""
    while True:
        found = await admin.describe_topics(list(names))
        if all(is_settled(topic["error_code"]) for topic in found):
            return {topic["topic"]: len(topic["partitions"]) for topic in found if topic["error_code"] == 0}
        await asyncio.sleep(_SETTLE_SECONDS)


def is_settled(error_code: int) -> bool:
    """Return whether a broker's answer about a topic is final: it exists, or it does not.

    Just after a silence a broker reports that each of its topics has no leader. aiokafka calls an unknown topic
    retriable too, since somebody may be about to create it; here nobody does.
    """
    error = for_code(error_code)
    return error_code == 0 or error is UnknownTopicOrPartitionError or not error.retriable


async def _counts(admin: Any, names: Collection[str]) -> dict[str, int]:
    """Return the number of partitions with a leader, 0 for a missing topic."""
    return dict.fromkeys(names, 0) | await _partitions(admin, names)


async def _partitions(admin: Any, names: Collection[str]) -> dict[str, int]:
    found = await admin.describe_topics(list(names))
    return {
        topic["topic"]: sum(partition["leader"] >= 0 for partition in topic["partitions"])
        for topic in found
        if topic["error_code"] == 0
    }


async def _create(admin: Any, settings: Settings, missing: Mapping[str, Mapping[str, str]]) -> None:
    if not missing:
        return
    wanted = [
        NewTopic(name, settings.partitions, settings.replication_factor, topic_configs=dict(config))
        for name, config in missing.items()
    ]
    with contextlib.suppress(TopicAlreadyExistsError):  # another worker starts at the same time
        await admin.create_topics(wanted)

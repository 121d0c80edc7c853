"""The worker: a Faust app with its tables and agents, the ticker that drives it, and the watch over both.

Invariant: it decides, or it ends. A worker that cannot make progress logs one line, is unready at once and exits
non-zero, so that a supervisor starts another; local state is a cache of the changelogs and never the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import faust
import uvloop
from faust.auth import SASLCredentials, SSLCredentials
from faust.transport.drivers import aiokafka as driver

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers
from highwater.schemas.topics import MESSAGE_BYTES_MAX
from highwater.streams.access import KafkaAccess
from highwater.streams.agents import GROUP, TableAgent, Wiring
from highwater.streams.chunks.agents import IngestAgent, NamespaceAgent
from highwater.streams.chunks.passports import load_passports
from highwater.streams.clock import Clock
from highwater.streams.feeds.agents import ChannelAgent, FeedsOptions, UserAgent
from highwater.streams.feeds.policy import Policy, load_policy
from highwater.streams.folding_consumer import FoldingConsumer
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake, Learn
from highwater.streams.jobs.agents import UsageAgent
from highwater.streams.league.agents import SeasonAgent
from highwater.streams.league.windows import window_options
from highwater.streams.preflight import claim_state_dir
from highwater.streams.queries.agents import RunAgent
from highwater.streams.restoring import ReadChangelogs
from highwater.streams.settings import Settings
from highwater.streams.table_manager import Table, Tables
from highwater.streams.telemetry import CLOCK_ERROR_SECONDS, TICK_LAG_SECONDS
from highwater.streams.worker import Worker, serve

# Agent -> its table.
AGENT_KINDS: Mapping[type[TableAgent], str] = {
    ChannelAgent: "channel_heads",
    UserAgent: "users",
    SeasonAgent: "matches",
    RunAgent: "active_runs",
    UsageAgent: "usage",
    IngestAgent: "ingest_manifest",
    NamespaceAgent: "namespaces",
}

# A dead member's partitions are reassigned after this long; three missed heartbeats must fit, and a pause of a second
# must not.
_SESSION_SECONDS = 6.0
_HEARTBEAT_SECONDS = 1.5
# A fetch that finds nothing ends after this long, the first ones and those after many empty ones; a rebalance and a
# stop wait for one that is in progress. Each is a round trip to the client's thread.
_FETCH_SECONDS_MAX, _RESTING_FETCH_SECONDS_MAX = 0.2, 0.8
_EMPTY_FETCHES_BEFORE_REST = 20
# A broker answers in milliseconds, with three replicas in tenths of a second. A connection without an answer is
# replaced after this long, half of what the watch allows a tick, so that a half-open one does not end the worker.
_ANSWER_SECONDS_MAX = 30.0
# A record waits for the broker without end: a refusal ends the worker, a silence does not.
_FOREVER_SECONDS = 10 * 365 * 86_400.0
# Changelog records waiting for the producer before the streams pause; the library's 100 is less than one novelty
# record.
_CHANGELOG_BUFFER_MAX = 5_000


class _Consumer(FoldingConsumer):
    """The library's consumer, without its loss of events in a rebalance.

    A rebalance discards fetched records and seeks to the committed offsets. The library keeps fetching meanwhile, and
    records between the seek and the discarding were never seen until the next restart. Here offsets move only while the
    flow is stopped and no fetch is in progress, and records that a stop overtook are discarded.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stops = 0
        self._empty_fetches = 0  # since the last record
        self._is_still = asyncio.Event()
        self._is_still.set()

    def stop_flow(self) -> None:
        """Deliver nothing more, including the current fetch."""
        self._stops += 1
        super().stop_flow()

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:  # noqa: ASYNC109 (the name is the library's)
        stops = self._stops
        self._is_still.clear()
        is_resting = self._empty_fetches > _EMPTY_FETCHES_BEFORE_REST
        try:
            wait = min(timeout, _RESTING_FETCH_SECONDS_MAX if is_resting else _FETCH_SECONDS_MAX)
            records = await super()._getmany(active_partitions, wait)
        finally:
            self._is_still.set()
        self._empty_fetches = 0 if records else self._empty_fetches + 1
        return self._in_batches(records) if stops == self._stops else {}

    async def seek_wait(self, partitions: Any) -> None:
        """Seek to offsets of changelogs; the flow is stopped."""
        await self._is_still.wait()
        await super().seek_wait(partitions)

    async def earliest_offsets(self, *partitions: Any) -> Mapping[Any, int]:
        """Return the beginnings of logs; called before a table is restored, so lost changelog records are noted here."""
        found: Mapping[Any, int] = await super().earliest_offsets(*partitions)
        for place, start in found.items():
            table = self.transport.tables.get(place.topic)
            if table is not None:
                self.transport.log_starts[table, place.partition] = start
        return found

    async def perform_seek(self) -> None:
        """Seek to the committed offsets, 0 included; the caller empties the queues, then restarts the flow.

        aiokafka's `seek_to_committed` skips an offset of 0, so that the first events of a log would be left out.
        """
        self.stop_flow()
        await self._is_still.wait()
        await super().perform_seek()
        for place in self.assignment():
            if self._read_offset.get(place) == 0:
                await self._seek(place, 0)

    async def wait_empty(self) -> None:
        """Wait until no agent processes an event, then commit.

        The library waits for every message that any agent has begun, but messages in the queues of the others were
        discarded just before: a tick that only some had seen delayed a rebalance until the watch ended the worker.
        """
        while not self.should_stop and any(agent.is_at_event for agent in self.transport.agents):
            await self._wait_for_ack(timeout=1)
        await self.commit_and_end_transactions()


class _Producer(driver.Producer):  # type: ignore[misc]
    """The library's producer, which waits for a silent broker without limit, and whose retries the broker stores once.

    aiokafka has one limit for the answer to a request, for the wait of a record for room in a batch, and for the age of
    a batch. Here only the first is limited. An unanswered request is sent again on another connection; idempotence
    prevents the first copy from being appended later, over a newer row of a changelog.
    """

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True}

    def _new_producer(self, transactional_id: str | None = None) -> Any:
        made = super()._new_producer(transactional_id)
        made._request_timeout_ms = _FOREVER_SECONDS * 1000  # noqa: SLF001 (no name for it; the version is pinned)
        made._message_accumulator._batch_ttl = _FOREVER_SECONDS  # noqa: SLF001 (as above)
        return made


class _Transport(driver.Transport):  # type: ignore[misc]
    Consumer = _Consumer
    Producer = _Producer
    agents: Sequence[TableAgent] = ()
    folded_topics: Collection[str] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tables: dict[str, str] = {}  # changelog -> its table
        self.log_starts: dict[tuple[str, int], int] = {}


def build_app(
    settings: Settings,
    codec: Codec,
    clock: Clock,
    *,
    learn: Learn,
    read_changelogs: ReadChangelogs,
    state_dir: Path,
    policy: Policy | None = None,
    app_id: str = GROUP,
) -> Worker:
    """Build the app with its tables and agents, not started. `learn` teaches the codec an unknown schema id, and
    `read_changelogs` reads the records that restore tables.

    Raises:
        ConfigurationError: no broker is known, or a security setting or the policy cannot be used.
    """
    tables = partial(Tables, read_changelogs=read_changelogs)
    app = faust.App(app_id, Table=Table, TableManager=tables, **_app_settings(settings, state_dir))
    app.transport = _Transport(app.conf.broker_consumer, app)
    app.producer_transport = _Transport(app.conf.broker_producer, app)
    worker = Worker(
        settings=settings, clock=clock, codec=codec, app=app, heartbeats=Heartbeats([kind.name for kind in AGENT_KINDS])
    )

    async def send(
        topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> Awaitable[Any]:
        ack: Awaitable[Any] = await app.producer.send(topic, key, value, partition, None, headers)
        return ack

    wiring = Wiring(
        codec=codec,
        send=send,
        heartbeats=worker.heartbeats,
        fail=worker.fail,
        note_tick=worker.note_tick,
        log_starts=app.transport.log_starts,
    )
    ticks = _table(app, "ticks", settings.partitions)
    raw = {
        "key_type": bytes,
        "value_type": bytes,
        "key_serializer": "raw",
        "value_serializer": "raw",
        "allow_empty": True,
    }
    makers = agent_makers(settings, policy or load_policy(settings.policy_file))
    for kind, table_name in AGENT_KINDS.items():
        agent = makers[kind](
            wiring, Intake(app_id, codec, learn, send), _table(app, table_name, settings.partitions), ticks
        )
        topic = app.topic(*kind.topics, **raw)
        # concurrency=1: with more, an offset may be committed past an event still being processed.
        app.agent(topic, name=f"{app_id}.{agent.name}", concurrency=1)(agent.run)
        worker.agents.append(agent)
    for table in app.tables.values():
        table.fail = worker.fail
    app.transport.agents = worker.agents
    app.transport.folded_topics = {topic for agent in worker.agents for topic in agent.folded_topics}
    app.transport.tables.update({topic: name for name, topic in changelogs_of(app).items()})
    _watch_assignments(worker)
    app.producer.buffer.max_messages = _CHANGELOG_BUFFER_MAX
    app.sensors.add(_ChangelogSensor(worker.fail))
    TICK_LAG_SECONDS.set_function(worker.tick_lag_seconds)
    CLOCK_ERROR_SECONDS.set_function(lambda: worker.clocks.error_ms / 1000)
    return worker


def agent_makers(
    settings: Settings, policy: Policy
) -> Mapping[type[TableAgent], Callable[[Wiring, Intake, Any, Any], TableAgent]]:
    """Return the factory of each agent, with the options of its subsystem."""
    feeds = FeedsOptions(
        policy=policy,
        dirty_channels_max=settings.dirty_channels_max,
        partitions=settings.partitions,
    )
    return {
        ChannelAgent: partial(ChannelAgent, feeds),
        UserAgent: partial(UserAgent, feeds),
        SeasonAgent: partial(SeasonAgent, window_options(settings)),
        RunAgent: RunAgent,
        UsageAgent: UsageAgent,
        IngestAgent: IngestAgent,
        NamespaceAgent: partial(NamespaceAgent, load_passports(settings.namespaces_file)),
    }


class _ChangelogSensor(faust.Sensor):  # type: ignore[misc]
    """A record that the broker refused permanently: a table would silently differ from its changelog, so the worker ends."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__()
        self._fail = fail

    def on_send_error(self, producer: Any, exc: BaseException, state: Any) -> None:
        """End the worker: the library only logs a changelog record that could not be written."""
        self._fail(f"a changelog record was not acknowledged: {exc!r}")


def changelogs_of(app: Any) -> dict[str, str]:
    """Return the changelog of each table by name."""
    return {name: table.changelog_topic.get_topic_name() for name, table in app.tables.items()}


# The write buffer of a table's partition, in memory and in a log. RocksDB's 64 MiB, of which it keeps up to three,
# would be filled by the same few values repeatedly, in each partition of each table.
_TABLE_BUFFER_BYTES = 1 << 20


def _table(app: Any, name: str, partitions: int) -> Any:
    """Declare a table of bytes with a compacted changelog of as many partitions as its source topics (else
    PartitionsMismatch).
    """
    return app.Table(
        name,
        key_type=bytes,
        value_type=bytes,
        partitions=partitions,
        options={"write_buffer_size": _TABLE_BUFFER_BYTES, "max_write_buffer_number": 2},
        # Compaction ignores the open segment, and an open segment is read completely at recovery: keep it small.
        extra_topic_configs={
            "segment.ms": str(3_600_000),
            "segment.bytes": str(64 << 20),
            "min.cleanable.dirty.ratio": "0.2",
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
        },
    )


def _watch_assignments(worker: Worker) -> None:
    async def moved(*_: object, **__: object) -> None:
        worker.heartbeats.forget()
        worker.clocks.forget()
        for agent in worker.agents:
            agent.forget_indexes()

    worker.app.on_partitions_revoked.connect(moved, weak=False)
    worker.app.on_partitions_assigned.connect(moved, weak=False)


def _app_settings(settings: Settings, state_dir: Path) -> dict[str, Any]:
    access = settings.kafka_access()
    return {
        "broker": [f"kafka://{address.strip()}" for address in access.brokers.split(",") if address.strip()],
        "broker_credentials": _credentials(access),
        "broker_session_timeout": _SESSION_SECONDS,
        "broker_heartbeat_interval": _HEARTBEAT_SECONDS,
        "datadir": state_dir,
        "store": "rocksdb://",
        "processing_guarantee": "at_least_once",
        "autodiscover": False,
        "web_enabled": False,
        "topic_partitions": settings.partitions,
        "topic_replication_factor": settings.replication_factor,
        "topic_disable_leader": True,
        # A standby doubles the write load of every worker; recovery takes seconds at the sizes that one worker holds.
        "table_standby_replicas": 0,
        "producer_acks": -1,
        "producer_max_request_size": MESSAGE_BYTES_MAX,
        "producer_compression_type": "lz4",
        "producer_request_timeout": _ANSWER_SECONDS_MAX,
        # Each partition has a committed offset (`preflight.py`). A log that does not have it, since it lost its beginning or its
        # tail, ends the worker, whose next start says which of the two; "earliest" would decide everything again.
        "consumer_auto_offset_reset": "none",
        "consumer_max_fetch_size": MESSAGE_BYTES_MAX,
        "stream_wait_empty": True,
        "stream_ack_exceptions": False,
        "stream_ack_cancelled_tasks": False,
        "stream_recovery_delay": 0.0,
        "worker_redirect_stdouts": False,
    }


def _credentials(access: KafkaAccess) -> Any:
    """Return the access in the library's terms; None = plain text."""
    if access.is_authenticated:
        return SASLCredentials(
            username=access.username,
            password=access.password,
            ssl_context=access.context(),
            mechanism=access.mechanism,
        )
    return SSLCredentials(access.context()) if access.is_encrypted else None


def run_worker(
    settings: Settings,
    codec: Codec,
    clock: Clock,
    *,
    learn: Learn,
    read_changelogs: ReadChangelogs,
    data_dir: Path | None = None,
    app_id: str = GROUP,
) -> int:
    """Run one worker process; return the exit code. `data_dir` defaults to the settings' folder; state is stored below
    `faust/`.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    state_dir, lock = claim_state_dir((data_dir or settings.data_dir) / "faust", settings.partitions)

    async def main() -> int:
        worker = build_app(
            settings,
            codec,
            clock,
            learn=learn,
            read_changelogs=read_changelogs,
            state_dir=state_dir,
            app_id=app_id,
        )
        return await serve(worker)

    with lock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())

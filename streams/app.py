"""The worker: a Faust app with its tables and agents, the ticker that drives it, and the watch over both.

The law: it decides, or it ends. A worker that cannot make progress says so in one line, is unready at once and exits
non-zero, so that a supervisor starts another; local state is a cache of the changelogs and never the truth.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import faust
import uvloop
from faust.auth import SASLCredentials, SSLCredentials

from schemas.codec import Codec
from schemas.envelope import Headers, make_headers
from schemas.errors import ConfigurationError
from schemas.topics import MESSAGE_BYTES_MAX, PARTITIONS
from streams.clock import Clock, monotonic_seconds
from streams.feeds.agents import AGENTS, GROUP, TICK, ChannelAgent, TableAgent, UserAgent, Wiring
from streams.feeds.policy import Policy, load_policy
from streams.health import serve_health
from streams.heartbeat import Heartbeats, Progress
from streams.intake import Intake, Learn
from streams.preflight import prepare_topics, security_of
from streams.settings import Settings
from streams.telemetry import CONSUMER_UP, TICK_LAG_SECONDS, Log, get_log

EXIT_OK, EXIT_STUCK = 0, 70  # 70 is EX_SOFTWARE of sysexits.h

# Agent -> its table.
AGENT_KINDS: Mapping[type[TableAgent], str] = {ChannelAgent: "channel_heads", UserAgent: "users"}

# A dead member's partitions move after this long; three missed heartbeats must fit, and a pause of a second must not.
_SESSION_SECONDS = 6.0
_HEARTBEAT_SECONDS = 1.5
# Silence of a tick beyond the larger of these is a fault, not slowness.
_SILENCE_TICKS, _SILENCE_SECONDS = 10, 60.0
# A stop in order flushes the producer and commits; past this the rest is left to redelivery.
_STOP_SECONDS_MAX = 8.0
_WATCH_SECONDS = 0.5
# Changelog records waiting for the producer before the streams pause; the library's 100 is less than one novelty record.
_CHANGELOG_BUFFER_MAX = 5_000
# One run of the rebuild, two retries (streams/retry.py), and as long again in the queue before it.
_DEADLINE_REBUILDS = 4

_log: Log = get_log("worker")


@dataclass
class Worker:
    """One worker process: the app, its agents, and why it cannot go on, once it cannot."""

    settings: Settings
    clock: Clock
    codec: Codec
    app: Any
    heartbeats: Heartbeats
    agents: list[TableAgent] = field(default_factory=list)
    failure: str | None = None
    last_tick_now: int | None = None
    clock_back_ms: int = 0
    last_tick_number: int = -1
    is_broker_slow: bool = False

    def fail(self, reason: str) -> None:
        """Note the first reason for which the worker has to end."""
        self.failure = self.failure or reason

    def note_tick(self, now: int, newest_now: int) -> None:
        """A tick was heard; it was let go without effect when its `now` lies before the newest one of its partition."""
        went_back_ms = newest_now - now
        if went_back_ms > 0 and self.clock_back_ms == 0:
            _log.error("clock_went_back", by_ms=went_back_ms, effect="nothing is decided until it has caught up")
        self.clock_back_ms = went_back_ms
        self.last_tick_now = max(now, self.last_tick_now or now)

    def tick_lag_seconds(self) -> float:
        """Age of the newest applied tick by the product's clock."""
        return 0.0 if self.last_tick_now is None else (self.clock() - self.last_tick_now) / 1000

    @property
    def silence_seconds_max(self) -> float:
        """How long a tick may be under way, and a start or recovery without any movement."""
        return max(_SILENCE_TICKS * self.settings.tick_seconds, _SILENCE_SECONDS)

    def tick_partitions(self) -> list[int]:
        """Partitions of the tick that this worker serves now; none while it starts, rebalances or recovers."""
        if not self.is_running():
            return []
        return sorted(tp.partition for tp in self.app.consumer.assignment() if tp.topic == TICK)

    def is_running(self) -> bool:
        """Whether partitions are settled and their tables restored."""
        app = self.app
        return bool(app.started and not app.rebalancing and app.tables.actives_ready and not app.should_stop)

    def readiness(self) -> dict[str, str]:
        """What is not ready: name -> reason; empty = ready."""
        if self.failure is not None:
            return {"worker": self.failure}
        if not self.app.started:
            return {"worker": "starting"}
        if not self.is_running():
            remaining = max(0, self.app.tables.recovery.active_remaining_total()) if self.app.in_recovery else 0
            return {
                "tables": f"restoring, {remaining} changelog records to go" if remaining else "partitions are moving"
            }
        found = self.heartbeats.late(monotonic_seconds(), self.silence_seconds_max / 2)
        if self.clock_back_ms:
            found["clock"] = f"it went back; nothing is decided for {self.clock_back_ms / 1000:.0f} s"
        if self.is_broker_slow:
            found["kafka"] = "the broker does not acknowledge"
        return found

    def changelogs(self) -> dict[str, Mapping[str, str]]:
        """The changelog topics with their settings."""
        return {
            table.changelog_topic.get_topic_name(): {"cleanup.policy": "compact", **table.extra_topic_configs}
            for table in self.app.tables.values()
        }

    def movement(self) -> object:
        """Something that changes while a start, rebalance or recovery goes on."""
        app = self.app
        if not app.started:
            return "starting"
        return (
            app.rebalancing_count,
            app.consumer_generation_id,
            tuple(sorted(app.tables.recovery.active_offsets.items())),
        )


def build_app(
    settings: Settings,
    codec: Codec,
    clock: Clock,
    *,
    learn: Learn,
    state_dir: Path,
    policy: Policy | None = None,
    app_id: str = GROUP,
) -> Worker:
    """The app with its tables and agents, not started. `learn` teaches the codec an unknown schema id.

    Raises:
        ConfigurationError: no broker is known, or a security setting or the policy cannot be used.
    """
    app = faust.App(app_id, **_app_settings(settings, state_dir))
    worker = Worker(settings=settings, clock=clock, codec=codec, app=app, heartbeats=Heartbeats(AGENTS))

    async def send(
        topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> Awaitable[Any]:
        ack: Awaitable[Any] = await app.producer.send(topic, key, value, partition, None, headers)
        return ack

    wiring = Wiring(
        codec=codec,
        policy=policy or load_policy(settings.policy_file),
        send=send,
        heartbeats=worker.heartbeats,
        fail=worker.fail,
        note_tick=worker.note_tick,
        dirty_channels_max=settings.dirty_channels_max,
        request_deadline_ms=int(_DEADLINE_REBUILDS * settings.rebuild_seconds_max * 1000),
    )
    ticks = _table(app, "ticks")
    raw = {
        "key_type": bytes,
        "value_type": bytes,
        "key_serializer": "raw",
        "value_serializer": "raw",
        "allow_empty": True,
    }
    for kind, table_name in AGENT_KINDS.items():
        agent = kind(wiring, Intake(app_id, codec, learn, send), _table(app, table_name), ticks)
        topic = app.topic(*kind.topics, **raw)
        # concurrency=1: with more, an offset may be committed past an event still being dealt with.
        app.agent(topic, name=f"{app_id}.{agent.name}", concurrency=1)(agent.run)
        worker.agents.append(agent)
    _watch_assignments(worker)
    app.producer.buffer.max_messages = _CHANGELOG_BUFFER_MAX
    app.sensors.add(_ChangelogSensor(worker.fail))
    TICK_LAG_SECONDS.set_function(worker.tick_lag_seconds)
    return worker


class _ChangelogSensor(faust.Sensor):  # type: ignore[misc]
    """A record the broker refused for good: a table would silently differ from its changelog, so the worker ends."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__()
        self._fail = fail

    def on_send_error(self, producer: Any, exc: BaseException, state: Any) -> None:
        """The library only logs a changelog record that could not be written."""
        self._fail(f"a changelog record was not acknowledged: {exc!r}")


def _table(app: Any, name: str) -> Any:
    """A table of bytes with a compacted changelog of as many partitions as its source topics (else PartitionsMismatch)."""
    return app.Table(
        name,
        key_type=bytes,
        value_type=bytes,
        partitions=PARTITIONS,
        # Compaction leaves the open segment alone, and an open segment is read in full at recovery: keep it small.
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
        for agent in worker.agents:
            agent.forget_indexes()

    worker.app.on_partitions_revoked.connect(moved, weak=False)
    worker.app.on_partitions_assigned.connect(moved, weak=False)


def _app_settings(settings: Settings, state_dir: Path) -> dict[str, Any]:
    brokers = settings.kafka_client()["bootstrap.servers"]
    return {
        "broker": [f"kafka://{address.strip()}" for address in brokers.split(",") if address.strip()],
        "broker_credentials": _credentials(settings),
        "broker_session_timeout": _SESSION_SECONDS,
        "broker_heartbeat_interval": _HEARTBEAT_SECONDS,
        "datadir": state_dir,
        "store": "rocksdb://",
        "processing_guarantee": "at_least_once",
        "autodiscover": False,
        "web_enabled": False,
        "topic_partitions": PARTITIONS,
        "topic_replication_factor": settings.replication_factor,
        "topic_disable_leader": True,
        # A standby doubles the write load of every worker; recovery takes seconds at the sizes one worker holds.
        "table_standby_replicas": 0,
        "producer_acks": -1,
        "producer_max_request_size": MESSAGE_BYTES_MAX,
        "producer_compression_type": "lz4",
        # Longer than the watch waits, so that a broker that is away is noticed by the watch and by nothing else.
        "producer_request_timeout": 600.0,
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": MESSAGE_BYTES_MAX,
        "stream_wait_empty": True,
        "stream_ack_exceptions": False,
        "stream_ack_cancelled_tasks": False,
        "stream_recovery_delay": 0.0,
        "worker_redirect_stdouts": False,
    }


def _credentials(settings: Settings) -> Any:
    """The security settings in the library's terms; None = plain text."""
    security = security_of(settings)
    if security.protocol == "PLAINTEXT":
        return None
    if security.protocol == "SSL":
        return SSLCredentials(security.context)
    return SASLCredentials(
        username=settings.kafka_sasl_username,
        password=settings.kafka_sasl_password,
        ssl_context=security.context,
        mechanism=security.mechanism,
    )


def claim_state_dir(root: Path) -> tuple[Path, IO[str]]:
    """The first free folder for local state below `root`, held until the returned file is closed or the process ends.

    Several workers of one machine may share a data folder: each takes the lowest number that is free, and so finds its
    state again after a restart. RocksDB itself would wait 30 s for a folder in use and then end the worker.

    Raises:
        ConfigurationError: as many workers as there are partitions run here already.
    """
    for number in range(PARTITIONS):
        state_dir = root / str(number)
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "lock").open("w", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        return state_dir, lock
    raise ConfigurationError(f"{PARTITIONS} workers use {root} already; more would have no partition to serve")


async def tick_forever(worker: Worker) -> None:
    """Publish a tick into every partition served, at each full tick of the product's clock."""
    tick_ms = max(1, int(worker.settings.tick_seconds * 1000))
    while True:
        now = worker.clock()
        if now // tick_ms != worker.last_tick_number:
            worker.last_tick_number = now // tick_ms
            await _publish_ticks(worker, {"number": worker.last_tick_number, "now": now})
        # Measured on the monotonic clock; at least a millisecond, should it wake early.
        await asyncio.sleep(max(1, tick_ms - worker.clock() % tick_ms) / 1000)


async def _publish_ticks(worker: Worker, tick: Mapping[str, int]) -> None:
    value = worker.codec.encode(TICK, tick)
    acks: list[asyncio.Future[Any]] = []
    for partition in worker.tick_partitions():
        if worker.heartbeats.is_full(partition):
            continue
        worker.heartbeats.sent(partition, tick["number"], monotonic_seconds())
        headers = make_headers(
            event_id=f"{TICK}/{partition}#{tick['number']}#{tick['now']}",
            event_type=TICK,
            source="highwater/worker",
            now_ms=tick["now"],
            caused_by=None,
        )
        acks.append(await worker.app.producer.send(TICK, None, value, partition, None, headers))
    if acks:
        done, waiting = await asyncio.wait(acks, timeout=_SESSION_SECONDS)
        worker.is_broker_slow = bool(waiting)
        if waiting:
            _log.error("broker_silent", topic=TICK, after_seconds=_SESSION_SECONDS, brokers=worker.settings.kafka)
        for ack in done:
            if ack.exception() is not None:
                worker.fail(f"a tick was refused by the broker: {ack.exception()!r}")


async def watch(worker: Worker) -> str:
    """Wait until the worker cannot go on, and say why."""
    progress = Progress(monotonic_seconds())
    limit = worker.silence_seconds_max
    was_ready = False
    while worker.failure is None:
        await asyncio.sleep(_WATCH_SECONDS)
        at = monotonic_seconds()
        is_ready = not worker.readiness()
        if is_ready != was_ready:
            _log.info(
                "ready" if is_ready else "unready", unready=worker.readiness(), partitions=worker.tick_partitions()
            )
            was_ready = is_ready
        CONSUMER_UP.labels(GROUP).set(is_ready)
        late = worker.heartbeats.late(at, limit)
        stuck_seconds = progress.look(at if worker.is_running() else worker.movement(), at)
        if worker.app.crashed:
            worker.fail(f"the stream library ended: {worker.app.crash_reason!r}")
        elif late:
            worker.fail(f"{len(late)} ticks were silent: {next(iter(late.items()))}")
        elif stuck_seconds > limit:
            worker.fail(f"no movement for {stuck_seconds:.0f} s: {worker.readiness()}")
        elif dead := _dead_actors(worker.app):
            worker.fail(f"agents are dead: {dead}")
    return worker.failure


def _dead_actors(app: Any) -> list[str]:
    return [
        name
        for name, agent in app.agents.items()
        for actor in list(agent._actors)  # noqa: SLF001 (the library does not say otherwise whether an agent lives)
        if actor.actor_task is not None and actor.actor_task.done() and app.started and not app.rebalancing
    ]


async def serve(worker: Worker) -> int:
    """Run until SIGTERM or SIGINT (0) or until it cannot go on (non-zero)."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    settings = worker.settings
    health = await serve_health(settings.host, settings.health_port, worker.readiness) if settings.health_port else None
    worker.app.in_worker = True
    tasks = {
        "start": asyncio.create_task(_start(worker)),
        "stop": asyncio.create_task(stop.wait()),
        "watch": asyncio.create_task(watch(worker)),
        "tick": asyncio.create_task(tick_forever(worker)),
    }
    failure = await _first_end(tasks)
    if failure is not None:
        worker.fail(failure)
        _log.error("worker_failed", reason=failure)
    tasks["tick"].cancel()
    is_stopped = await _stop(worker)
    if health is not None:
        health.close()
    if failure is None and is_stopped:
        return EXIT_OK
    # Threads of the library and an agent that holds its event would keep the process: what was not committed comes again.
    os._exit(EXIT_OK if failure is None else EXIT_STUCK)


async def _start(worker: Worker) -> None:
    """Start the app once the broker has all topics.

    The library subscribes to whatever the metadata shows at that moment: a changelog that was created a moment before is
    left out, its table then has no partitions, and the first write to it fails.
    """
    await prepare_topics(
        worker.settings, [topic for agent in AGENT_KINDS for topic in agent.topics], worker.changelogs()
    )
    await worker.app.start()


async def _first_end(tasks: dict[str, asyncio.Task[Any]]) -> str | None:
    """Why the worker is to end: None on a signal, else the reason."""
    waiting = dict(tasks)
    while True:
        done, _ = await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        for name in [name for name, task in waiting.items() if task in done]:
            task = waiting.pop(name)
            if task.exception() is not None:
                return f"{name} failed: {task.exception()!r}"
            if name == "stop":
                return None
            if name == "watch":
                return str(task.result())


async def _stop(worker: Worker) -> bool:
    """Stop in order within a bounded time; whether that worked."""
    if worker.failure is not None:
        # Not in order: that would wait for the very agent that is stuck, and commit what it may not have done.
        return False
    try:
        async with asyncio.timeout(_STOP_SECONDS_MAX):
            await worker.app.stop()
    except Exception as error:  # the process ends in any case
        _log.warning("stopped_without_order", error=repr(error))
        return False
    return True


def run_worker(
    settings: Settings, codec: Codec, clock: Clock, *, learn: Learn, data_dir: Path | None = None, app_id: str = GROUP
) -> int:
    """Run one worker process; the exit code. `data_dir` defaults to the settings' folder; state goes below `faust/`.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    state_dir, lock = claim_state_dir((data_dir or settings.data_dir) / "faust")

    async def main() -> int:
        worker = build_app(settings, codec, clock, learn=learn, state_dir=state_dir, app_id=app_id)
        return await serve(worker)

    with lock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())

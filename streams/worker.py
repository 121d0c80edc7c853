"""Runs a worker: the ticker that drives it, the watch over it, and how it ends.

Invariant: it decides, or it ends. A worker that cannot make progress logs one line, is unready at once and exits
non-zero, so that a supervisor starts another.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import make_headers
from highwater.schemas.streams import TICK, Tick
from highwater.streams.agents import GROUP, Noted, TableAgent
from highwater.streams.clock import Clock, monotonic_seconds, offset_ms_of
from highwater.streams.health import serve_health
from highwater.streams.heap import settle_heap
from highwater.streams.heartbeat import Heartbeats, Progress
from highwater.streams.preflight import is_answering, prepare
from highwater.streams.settings import Settings
from highwater.streams.telemetry import CONSUMER_UP, Log, get_log
from highwater.streams.ticks import Admission, Clocks
from highwater.streams.worker_lag import measure_forever

EXIT_OK, EXIT_STUCK = 0, 70  # 70 is EX_SOFTWARE of sysexits.h

# A silent tick beyond the larger of these is a fault, not slowness.
_SILENCE_TICKS, _SILENCE_SECONDS = 10, 60.0
# A tick without the broker's acknowledgement is reported after this long; the watch ends the worker much later.
_ACK_SECONDS = 6.0
# A graceful stop flushes the producer and commits; beyond this the rest is left to redelivery.
_STOP_SECONDS_MAX = 8.0
_WATCH_SECONDS = 0.5
# How often a worker without progress checks the broker; each check is a connection.
_ASK_SECONDS = 2.0

_log: Log = get_log("worker")


@dataclass
class Worker:
    """One worker process: the app, its agents, and why it cannot continue, once it cannot."""

    settings: Settings
    clock: Clock
    codec: Codec
    app: Any
    heartbeats: Heartbeats
    agents: list[TableAgent] = field(default_factory=list)
    failure: str | None = None
    clocks: Clocks = field(default_factory=Clocks)
    last_tick_now: int | None = None
    last_tick_number: int = -1
    is_broker_slow: bool = False
    is_broker_silent: bool = False
    broker_silent_at: float = float("-inf")  # when it was last checked and did not answer

    def fail(self, reason: str) -> None:
        """Note the first reason for which the worker has to end."""
        self.failure = self.failure or reason

    def note_tick(self, noted: Noted) -> None:
        """Note a judged tick; the beginning and the end of a period of wrong time are logged."""
        was_back, was_degraded = self.clocks.back_ms, self.clocks.degraded
        self.clocks.note(noted.partition, noted.now, noted.verdict)
        if self.clocks.back_ms and not was_back:
            _log.error("clock_went_back", by_ms=self.clocks.back_ms, effect="nothing is decided until it has caught up")
        if noted.verdict.admission is Admission.OVERRULES:
            _log.warning(
                "time_overruled", partition=noted.partition, by_ms=noted.verdict.by_ms, reason="it was of the future"
            )
        self._say_clocks(was_degraded)
        if noted.verdict.is_admitted:
            is_overruled = noted.verdict.admission is Admission.OVERRULES
            self.last_tick_now = noted.now if is_overruled else max(noted.now, self.last_tick_now or noted.now)

    def note_append(self, partition: int, ahead_ms: int) -> None:
        """Note the broker's time of a tick: by how much this machine's clock, uncorrected, was ahead of it."""
        was_degraded = self.clocks.degraded
        self.clocks.measured(partition, ahead_ms)
        self._say_clocks(was_degraded)

    def _say_clocks(self, was_degraded: str | None) -> None:
        if self.clocks.degraded and not was_degraded:
            _log.error("clocks_differ", reason=self.clocks.degraded)
        elif was_degraded and not self.clocks.degraded:
            _log.info("clocks_agree")

    def tick_lag_seconds(self) -> float:
        """Return the age of the newest applied tick by the product's clock."""
        return 0.0 if self.last_tick_now is None else (self.clock() - self.last_tick_now) / 1000

    @property
    def silence_seconds_max(self) -> float:
        """Return how long a tick may be in flight, and a start or recovery without any progress."""
        return max(_SILENCE_TICKS * self.settings.tick_seconds, _SILENCE_SECONDS)

    def tick_partitions(self) -> list[int]:
        """Return the tick partitions that this worker serves now; none while it starts, rebalances or recovers."""
        if not self.is_running():
            return []
        return sorted(tp.partition for tp in self.app.consumer.assignment() if tp.topic == TICK)

    def served(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the event partitions that this worker serves now, each with the committed offset and the end of the log."""
        if not self.is_running():
            return {}
        sources, consumer = {topic for agent in self.agents for topic in agent.topics}, self.app.consumer
        found = {}
        for tp in consumer.assignment():
            following = consumer._committed_offset.get(tp)  # noqa: SLF001 (the library has no name for it; the version is pinned)
            high = consumer.highwater(tp) if tp.topic in sources else None
            if following is not None and high is not None:
                found[tp.topic, tp.partition] = (following, high)
        return found

    def is_running(self) -> bool:
        """Return whether partitions are assigned and their tables restored."""
        app = self.app
        return bool(app.started and not app.rebalancing and app.tables.actives_ready and not app.should_stop)

    def readiness(self) -> dict[str, str]:
        """Return what is not ready: name -> reason; empty = ready."""
        if self.failure is not None:
            return {"worker": self.failure}
        if not self.app.started:
            return {"worker": "starting"} | ({"kafka": "no broker answers"} if self.is_broker_silent else {})
        if not self.is_running():
            return {"tables": self.app.tables.recovery.restoring() or "partitions are moving"}
        found = self.heartbeats.late(monotonic_seconds(), self.silence_seconds_max / 2)
        if self.clocks.back_ms:
            found["clock"] = f"it went back; nothing is decided for {self.clocks.back_ms / 1000:.0f} s"
        if self.is_broker_slow:
            found["kafka"] = "the broker does not acknowledge"
        if self.is_broker_silent:
            found["kafka"] = "no broker answers; nothing is decided until one does"
        return found

    def degraded(self) -> dict[str, str]:
        """Return the partitions with only bad events, while everything else is decided; and differing clocks."""
        found = {name: text for agent in self.agents for name, text in agent.degraded.items()}
        return found if self.clocks.degraded is None else {**found, "clock": self.clocks.degraded}

    def changelogs(self) -> dict[str, Mapping[str, str]]:
        """Return the changelog topics with their settings."""
        return {
            table.changelog_topic.get_topic_name(): {"cleanup.policy": "compact", **table.extra_topic_configs}
            for table in self.app.tables.values()
        }

    def movement(self) -> object:
        """Return something that changes while a start, rebalance or recovery progresses."""
        app = self.app
        if not app.started:
            return "starting"
        return (
            app.rebalancing_count,
            app.consumer_generation_id,
            tuple(sorted(app.tables.recovery.active_offsets.items())),
        )


async def tick_forever(worker: Worker) -> None:
    """Publish a tick to every served partition, at each full tick of the product's clock."""
    tick_ms = max(1, int(worker.settings.tick_seconds * 1000))
    while True:
        now = worker.clock()
        if now // tick_ms != worker.last_tick_number:
            worker.last_tick_number = now // tick_ms
            await _publish_ticks(worker, now, offset_ms_of(worker.clock), tick_ms)
        # Measured on the monotonic clock; at least a millisecond, in case it wakes early.
        await asyncio.sleep(max(1, tick_ms - worker.clock() % tick_ms) / 1000)


async def _publish_ticks(worker: Worker, now: int, offset_ms: int, tick_ms: int) -> None:
    acks: dict[asyncio.Future[Any], int] = {}
    for partition in worker.tick_partitions():
        if worker.heartbeats.is_full(partition):
            continue
        at = worker.clocks.corrected(partition, now)
        tick: Tick = {"number": at // tick_ms, "now": at, "clock_offset_ms": offset_ms}
        worker.heartbeats.sent(partition, tick["number"], monotonic_seconds())
        headers = make_headers(
            event_id=f"{TICK}/{partition}#{tick['number']}#{tick['now']}",
            event_type=TICK,
            source="highwater/worker",
            now_ms=tick["now"],
            caused_by=None,
        )
        value = worker.codec.encode(TICK, tick)
        acks[await worker.app.producer.send(TICK, None, value, partition, None, headers)] = partition
    if acks:
        done, waiting = await asyncio.wait(acks, timeout=_ACK_SECONDS)
        worker.is_broker_slow = bool(waiting)
        if waiting:
            _log.error("broker_silent", topic=TICK, after_seconds=_ACK_SECONDS, brokers=worker.settings.kafka)
        for ack in done:
            if ack.exception() is not None:
                worker.fail(f"a tick was refused by the broker: {ack.exception()!r}")
            elif (appended_ms := ack.result().timestamp) is not None:
                worker.note_append(acks[ack], now - offset_ms - appended_ms)


async def _watch_broker(worker: Worker) -> None:
    """Check the broker while the worker makes no progress: a silent broker is waited for, and its silence is not the worker's."""
    while True:
        await asyncio.sleep(_ASK_SECONDS)
        if not worker.readiness() and not worker.heartbeats.late(monotonic_seconds(), _ACK_SECONDS):
            continue
        answers = await is_answering(worker.settings.kafka_access())
        if not answers:
            worker.broker_silent_at = monotonic_seconds()
        if answers == worker.is_broker_silent:
            (_log.info if answers else _log.error)(
                "broker_answers" if answers else "broker_unavailable", brokers=worker.settings.kafka
            )
        worker.is_broker_silent = not answers


async def watch(worker: Worker) -> str:
    """Wait until the worker cannot continue, and return why."""
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
        late = worker.heartbeats.late(at, limit, worker.broker_silent_at)
        progress.forgive(worker.broker_silent_at)
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
    """Run until SIGTERM or SIGINT (0) or until it cannot continue (non-zero)."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    settings = worker.settings
    health = None
    if settings.health_port:
        health = await serve_health(settings.host, settings.health_port, worker.readiness, worker.degraded)
    worker.app.in_worker = True
    tasks = {
        "start": asyncio.create_task(_start(worker)),
        "stop": asyncio.create_task(stop.wait()),
        "watch": asyncio.create_task(watch(worker)),
        "tick": asyncio.create_task(tick_forever(worker)),
        "broker": asyncio.create_task(_watch_broker(worker)),
        "lag": asyncio.create_task(measure_forever(worker.served)),
    }
    failure = await _first_end(tasks)
    if failure is not None:
        worker.fail(failure)
        _log.error("worker_failed", reason=failure)
    tasks["tick"].cancel()
    tasks["broker"].cancel()
    tasks["lag"].cancel()
    is_stopped = await _stop(worker)
    if health is not None:
        health.close()
    if failure is None and is_stopped:
        return EXIT_OK
    # Threads of the library and an agent that holds its event would keep the process alive: uncommitted events are
    # redelivered.
    os._exit(EXIT_OK if failure is None else EXIT_STUCK)


async def _start(worker: Worker) -> None:
    """Start the app once the broker has all topics.

    The library subscribes to the topics in its metadata at that time: a changelog that was just created may be missing,
    its table then has no partitions, and the first write to it fails.
    """
    sources = {topic for agent in worker.agents for topic in agent.topics}
    await prepare(worker.settings, worker.app.conf.id, sources, worker.changelogs())
    settle_heap()  # the library runs the garbage collector once per table at each start
    await worker.app.start()
    settle_heap()


async def _first_end(tasks: dict[str, asyncio.Task[Any]]) -> str | None:
    """Return why the worker should end: None on a signal, else the reason."""
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
    """Stop gracefully within a limited time; return whether that worked."""
    if worker.failure is not None:
        # Not gracefully: that would wait for the stuck agent, and commit what it may not have done.
        return False
    try:
        async with asyncio.timeout(_STOP_SECONDS_MAX):
            await worker.app.stop()
    except Exception as error:  # noqa: BLE001 (the process ends in any case)
        _log.warning("stopped_without_order", error=repr(error))
        return False
    return True

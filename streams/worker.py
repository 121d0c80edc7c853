"""The running of a worker: the ticker that drives it, the watch over it, and how it ends.

The law: it decides, or it ends. A worker that cannot make progress says so in one line, is unready at once and exits
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
from highwater.schemas.streams import TICK
from highwater.streams.agents import GROUP, TableAgent
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.health import serve_health
from highwater.streams.heap import settle_heap
from highwater.streams.heartbeat import Heartbeats, Progress
from highwater.streams.preflight import prepare_offsets, prepare_topics
from highwater.streams.settings import Settings
from highwater.streams.telemetry import CONSUMER_UP, Log, get_log

EXIT_OK, EXIT_STUCK = 0, 70  # 70 is EX_SOFTWARE of sysexits.h

# Silence of a tick beyond the larger of these is a fault, not slowness.
_SILENCE_TICKS, _SILENCE_SECONDS = 10, 60.0
# A tick that the broker has not acknowledged after this long is reported; the watch ends the worker much later.
_ACK_SECONDS = 6.0
# A stop in order flushes the producer and commits; past this the rest is left to redelivery.
_STOP_SECONDS_MAX = 8.0
_WATCH_SECONDS = 0.5

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

    def degraded(self) -> dict[str, str]:
        """Partitions from which nothing but bad events comes, while everything else is decided."""
        return {name: text for agent in self.agents for name, text in agent.degraded.items()}

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
        done, waiting = await asyncio.wait(acks, timeout=_ACK_SECONDS)
        worker.is_broker_slow = bool(waiting)
        if waiting:
            _log.error("broker_silent", topic=TICK, after_seconds=_ACK_SECONDS, brokers=worker.settings.kafka)
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
    health = None
    if settings.health_port:
        health = await serve_health(settings.host, settings.health_port, worker.readiness, worker.degraded)
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
    sources = {topic for agent in worker.agents for topic in agent.topics}
    await prepare_topics(worker.settings, sources, worker.changelogs())
    await prepare_offsets(worker.settings, worker.app.conf.id, sources)
    await worker.app.start()
    settle_heap()


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
    except Exception as error:  # noqa: BLE001 (the process ends in any case)
        _log.warning("stopped_without_order", error=repr(error))
        return False
    return True

"""One run: clients that work beside each other until they are stopped, then the final reads of what they have left.

Invariant: memory is bounded by the number of operations, which ends a run: a client keeps the id of each insight it wrote,
and a check one record for each insight, resource and ETag. The history itself is on disk and is read once.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from highwater.api.history_check.checks import Verdict, check_history
from highwater.api.history_check.clients import INSIGHT_TOPIC, Client, Names
from highwater.api.history_check.history import Action, Completion, Recorder, read_history, with_moved
from highwater.api.history_check.sessions import Draws, Session, Target, insight_path, insight_resource
from highwater.api.history_check.wire import UnreachableError, foreign_producer
from highwater.streams.access import RegistryAccess
from highwater.streams.clock import Clock

# About 1 KB of memory for each write and distinct ETag among them: less than 500 MB in all.
OPERATIONS_MAX = 1_000_000
# A final read waits until the product has recovered from what was done to it during the run.
FINAL_SECONDS_MAX = 180.0
_FINAL_READERS = 8
_AGAIN_SECONDS = 0.25
# A process of the API starts in some seconds; a busy machine takes ten times that.
START_SECONDS_MAX = 120.0
# Definite answers of a final read; after any other one the read is repeated. 410 is the answer for a retracted insight, and
# for a position that the log has lost.
_FOUND = frozenset({200, 404})
_KNOWN = _FOUND | {410}


@dataclass(frozen=True, slots=True)
class Workload:
    """How many clients work, how long each waits between two operations, and the seed of what they draw."""

    clients: int
    pause_seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Left:
    """What the final reads found: how much of each kind is stored, and how many of them got no definite answer."""

    stored: Mapping[str, int]
    unread: int


class Run:
    """The clients of one run, in a thread of their own; a `with` block starts and ends them."""

    def __init__(
        self, path: Path, workload: Workload, target: Target, kafka: Mapping[str, str], registry: RegistryAccess, clock: Clock,
    ) -> None:  # fmt: skip
        """Open the history, which must not exist yet.

        Raises:
            UnreachableError: the registry does not answer.
        """
        self._path = path
        self._workload = workload
        self._target = target
        self._names = Names(f"hc{workload.seed}-{secrets.token_hex(3)}")
        self._clock = clock
        self._producer = foreign_producer(kafka, registry, INSIGHT_TOPIC)
        self._recorder = Recorder(path, seed=workload.seed, apis=target.apis)
        self._clients: list[Client] = []
        self._positions: list[str] = []
        self._is_stopped = threading.Event()
        self._turns = threading.Lock()  # guards the next two
        self._is_paused = False
        self._working = 0  # operations in progress
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work_in_thread, name="history-check")

    def __enter__(self) -> Self:
        """Start the clients."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop them, if `stop` has not done it; the history stays open for the final reads."""
        self._is_stopped.set()
        self._thread.join()

    def stop(self) -> None:
        """Stop the clients after the operations in progress.

        Raises:
            BaseException: a client broke.
        """
        self._is_stopped.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def wait(self, seconds: float) -> None:
        """Let the clients work for this long, or until they have invoked the highest number of operations."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._is_over() and self._thread.is_alive():
            self._is_stopped.wait(_AGAIN_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no client work: operations in progress are completed first."""
        with self._turns:
            self._is_paused = True
        try:
            while self._working and self._thread.is_alive():
                time.sleep(_AGAIN_SECONDS)
            yield
        finally:
            self._is_paused = False

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        while not self._begins():  # noqa: ASYNC110 (another thread ends the pause)
            await asyncio.sleep(_AGAIN_SECONDS)
        try:
            yield
        finally:
            self._working -= 1

    def _begins(self) -> bool:
        with self._turns:
            self._working += not self._is_paused
            return not self._is_paused

    def _is_over(self) -> bool:
        return self._is_stopped.is_set() or self._recorder.count >= OPERATIONS_MAX

    def _work_in_thread(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `stop` in the thread that waits
            self._failure = error

    async def _work(self) -> None:
        names = [f"client-{number}" for number in range(self._workload.clients)]
        async with asyncio.TaskGroup() as working:
            for number, name in enumerate(names):
                working.create_task(self._one(name, names, uses_kafka=number % 2 == 1))

    async def _one(self, name: str, names: Sequence[str], *, uses_kafka: bool) -> None:
        draws = Draws(self._workload.seed, name)
        async with Session(name, self._target, self._recorder, draws) as session:
            producer = self._producer if uses_kafka else None
            client = Client(session, self._names, names, self._clock, producer)
            self._clients.append(client)
            await client.run(self._is_over, self._turn, self._workload.pause_seconds)
            for action in (Action.READ_FEED, Action.READ_QUERIES, Action.READ_PAGE):
                self._positions += session.known_positions(action)

    def read_left(self) -> Left:
        """Read what is stored: every insight, channel, subscription and list of queries; close the history."""
        with self._recorder:
            return asyncio.run(self._read_left())

    async def _read_left(self) -> Left:
        deadline = time.monotonic() + FINAL_SECONDS_MAX
        async with Session("final", self._target, self._recorder, Draws(self._workload.seed, "final")) as session:
            session.learn(self._positions)
            reads = _FinalReads(session, deadline)
            stored = {"insights": 0, "subscriptions": 0, "queries": 0, "matches": 0, "results": 0}
            for channel in self._names.channels:
                head = await reads.read(Action.READ_CHANNEL, f"channel:{channel}", f"/api/channels/{channel}")
                stored["insights"] += int(head.content.get("current_seq", 0))
            for name in (f"client-{number}" for number in range(self._workload.clients)):
                user, asker = self._names.user(name), self._names.asker(name)
                path = f"/api/users/{user}/subscriptions"
                found = await reads.read(Action.READ_SUBSCRIPTIONS, f"subscriptions:{user}", path)
                stored["subscriptions"] += len(found.content.get("channels", ()))
                path = f"/api/users/{asker}/queries?limit=1000"
                found = await reads.read(Action.READ_QUERIES, f"queries:{asker}", path)
                stored["queries"] += len(found.content.get("request_ids", ()))
            for kind, page in (("matches", "schedule"), ("results", "results")):
                path = f"/api/league/{self._names.season}/{page}"
                found = await reads.read(Action.READ_PAGE, f"league:{self._names.season}/{page}", path)
                stored[kind] = int(found.content.get("matches", 0))
            await _side_by_side([reads.insight(one) for client in self._clients for one in sorted(client.insights)])
            return Left(stored, reads.unread)

    def verdict(self, moved: Mapping[str, str] | None = None) -> Verdict:
        """Check the history; `moved`: the new positions of records that a repair of the log has moved, by former ones."""
        events = read_history(self._path)
        return check_history(with_moved(events, moved) if moved else events)


class _FinalReads:
    """Reads at the positions of all sessions, each repeated until its answer is definite.

    A read whose positions the product cannot reach any more is repeated without them: what is stored is judged in any case.
    """

    def __init__(self, session: Session, deadline: float) -> None:
        self._session = session
        self._deadline = deadline
        self.unread = 0

    async def read(self, action: Action, resource: str, path: str) -> Completion:
        """Return the answer at the positions of all sessions, or after the limit any answer."""
        answer = await self._definite(action, resource, path, _KNOWN, is_positioned=True)
        if answer.status in _FOUND:
            return answer
        self.unread += answer.status not in _KNOWN
        return await self._definite(action, resource, path, _FOUND, is_positioned=False)

    async def insight(self, insight_id: str) -> None:
        """Read an insight; the reads before this one have waited for all positions."""
        path = insight_path(insight_id.partition("--")[0], insight_id)
        resource = insight_resource(insight_id)
        answer = await self._definite(Action.READ_INSIGHT, resource, path, _KNOWN, is_positioned=False)
        self.unread += answer.status not in _KNOWN

    async def _definite(
        self, action: Action, resource: str, path: str, definite: frozenset[int], *, is_positioned: bool
    ) -> Completion:
        while True:
            answer = await self._session.read(action, resource, path, is_positioned=is_positioned, is_final=True)
            if answer.status in definite or time.monotonic() > self._deadline:
                return answer
            await asyncio.sleep(_AGAIN_SECONDS)


async def _side_by_side(reads: Sequence[Awaitable[None]]) -> None:
    """Await all, some at a time."""
    places = asyncio.Semaphore(_FINAL_READERS)

    async def one(read: Awaitable[None]) -> None:
        async with places:
            await read

    await asyncio.gather(*map(one, reads))


def require_ready(apis: Sequence[str], is_ready: Callable[[str], bool], wait_seconds: float = 0.0) -> None:
    """Wait until every API process is ready.

    Raises:
        UnreachableError: one is not.
    """
    deadline = time.monotonic() + wait_seconds
    for api in apis:
        while not is_ready(api):
            if time.monotonic() >= deadline:
                raise UnreachableError(f"no API is ready at {api}; start it, or name another one with --api")
            time.sleep(_AGAIN_SECONDS)

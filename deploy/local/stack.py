"""The services of a local stack: those with a given address are used, the others are started.

Invariant: `start` returns when all of them answer, or leaves nothing running; every process of the stack ends with this
one. Failure tests kill, stop and start single services by name; a service keeps its port through all of that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from highwater.deploy.local.brokers import settle_brokers
from highwater.deploy.local.certificates import Certificates, certificates_of
from highwater.deploy.local.contents import check_contents, record_contents
from highwater.deploy.local.datadir import DataDirLock, checked
from highwater.deploy.local.errors import LocalStackError, PartFailedError, StartCancelledError
from highwater.deploy.local.kafka import KINDS as BROKERS
from highwater.deploy.local.kafka import Kafka
from highwater.deploy.local.open_files import allow_open_files
from highwater.deploy.local.part import START_LIMIT, STOP_LIMIT, Addresses, Part, service_of, with_settings
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.postgres import Postgres
from highwater.deploy.local.probes import probe_service
from highwater.deploy.local.process import ManagedProcess, describe_exit
from highwater.deploy.local.progress import Wait
from highwater.deploy.local.redis import Redis, RedisCache
from highwater.deploy.local.registry import Registry
from highwater.deploy.local.relay import TlsRelay
from highwater.deploy.local.stack_secrets import hidden_password
from highwater.streams.progress import Progress

# In the order of starting; stopping goes backwards. None needs another, so they start concurrently.
PARTS: tuple[type[Part], ...] = (Postgres, Redis, RedisCache, Kafka, Registry)
GIVEN_SECONDS_MAX = 10.0  # an external service is running already, or it is not
PROBE_SECONDS = 2.0
POLL_SECONDS = 0.1
KAFKA_DOOR_PORT_DEFAULT = 9292
# A service that dies while starting is started again: its port was taken between the choice and the bind, or the
# children of a killed predecessor still had its memory.
LAUNCHES_MAX = 3

Report = Callable[[str], None]


def _kinds(brokers: int) -> tuple[type[Part], ...]:
    """Return every service, the broker as often as requested."""
    return tuple(one for kind in PARTS for one in (BROKERS[:brokers] if kind is Kafka else (kind,)))


class LocalStack:
    """The services under one data folder."""

    def __init__(
        self,
        data_dir: Path,
        given: Addresses | None = None,
        report: Report | None = None,
        *,
        is_secure: bool = False,
        late_seconds: float | None = None,
        brokers: int = 1,
        principals: Sequence[str] = (),
        is_restoring: bool = False,
    ) -> None:
        """`is_secure`: every service started here uses TLS and requires a password.

        `late_seconds` is after how long an unready service is called late, and awaited further. None: `START_LIMIT` ends
        the start. `brokers` is the number of Kafka brokers, one of `brokers.CHOICES`. `principals`: the users of
        Kafka that get a password each, besides the operator.
        `is_restoring`: PostgreSQL and the registry may begin empty beside a log.
        """
        self.data_dir = checked(data_dir)
        self.given = given or Addresses()
        self.ports = PortBook(self.data_dir)
        self.lock = DataDirLock(self.data_dir)
        self.cancelled = threading.Event()  # set from a signal handler: a start in progress gives up
        self.answered: set[str] = set()  # the services that came up in this start
        self._report = report or (lambda _line: None)
        named = self.given.by_name()
        self._parts: dict[str, Part] = {
            kind.name: kind(self.data_dir, self.ports)
            for kind in _kinds(brokers)
            if named[service_of(kind.name)] is None
        }
        self.brokers = brokers
        for part in self._parts.values():
            if isinstance(part, Kafka):
                part.brokers, part.principals = brokers, tuple(principals)
        if self.given.redis is not None:
            # With one given Redis and no second, that one holds everything.
            self._parts.pop(RedisCache.name, None)
        self.is_secure = is_secure
        self._is_restoring = is_restoring
        self._late_seconds = late_seconds
        self._relay: TlsRelay | None = None

    def __enter__(self) -> Self:
        """Start; the `with` block stops it in any case."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the services that this stack starts itself, in order of starting."""
        return tuple(self._parts)

    @property
    def addresses(self) -> Addresses:
        """Return the addresses of the services; None for one that is still to be started."""
        known = self.given.by_name()
        started = {name: part for name, part in self._parts.items() if part.process.pid is not None}
        for name, part in started.items():
            service = service_of(name)
            known[service] = part.address if service == name else f"{known[service] or ''},{part.address}".strip(",")
        settings = {name: value for part in started.values() for name, value in part.client_settings.items()}
        return with_settings(self.given, known, settings)

    def names_of(self, service: str) -> tuple[str, ...]:
        """Return the services that this stack starts for one of the addresses."""
        return tuple(name for name in self._parts if service_of(name) == service)

    def address_of(self, name: str) -> str | None:
        """Return the address of a service; None for one that is still to be started."""
        part = self._parts.get(name)
        if part is None:
            return self.given.by_name()[name]
        return None if part.process.pid is None else part.address

    def start(self) -> Addresses:
        """Start what was not given and return all addresses, once every service answers.

        Raises:
            AlreadyRunningError: Another process runs a stack on this folder.
            LocalStackError: This machine, or what the folder has, does not allow a start.
            PartFailedError: A service did not come up; the error has the last lines of its log.
            StartCancelledError: `cancelled` was set meanwhile.
        """
        was_locked = self.lock.is_taken  # by a supervisor, which releases the folder when it has written its state
        self.lock.take()
        try:
            allow_open_files()
            folders = [part.folder.name for part in self._parts.values() if part.is_kept]
            check_contents(self.data_dir, folders, is_restoring=self._is_restoring)
            if Kafka.name in self._parts:
                settle_brokers(self.data_dir, self.brokers)
            certificates = self._certificates() if self.is_secure else None
            for part in self._parts.values():
                part.certificates = certificates
                part.take_ports()
            self._relay = None if certificates is None else TlsRelay(certificates)
            self._side_by_side()
            record_contents(self.data_dir, folders)
        except BaseException:
            self.stop_parts()
            if not was_locked:
                self.lock.release()
            raise
        return self.addresses

    def stop(self) -> None:
        """Stop every service, the last started first, and release folder and ports."""
        self.stop_parts()
        self.ports.release()
        self.lock.release()

    def stop_parts(self) -> None:
        """Stop every service, the last started first, and keep the folder."""
        for part in reversed(self._parts.values()):
            # Brokers end together: the last of three would wait in vain for the others to take over its partitions.
            for other in self.names_of(service_of(part.name)):
                self.process(other).begin_stop()
            part.process.stop(STOP_LIMIT)
        if self._relay is not None:
            self._relay.stop()

    def put_broker_behind(self, name: str, proxy_port: int) -> int:
        """Let a broker redirect clients of a second port to the proxy's; return that second port.

        Call it before the start, for a stack without TLS.
        """
        part = self.part(name)
        assert isinstance(part, Kafka)
        assert not self.is_secure
        door = self.ports.take(f"{name}_behind_proxy", KAFKA_DOOR_PORT_DEFAULT)
        part.behind_proxy = (door, proxy_port)
        return door

    def process(self, name: str) -> ManagedProcess:
        """Return the process of a service."""
        return self.part(name).process

    def kill_part(self, name: str) -> None:
        """End a service as a crash would."""
        self.part(name).process.kill()

    def stop_part(self, name: str) -> None:
        """Stop a service gracefully."""
        part = self.part(name)
        part.process.stop(STOP_LIMIT)

    def launch_part(self, name: str) -> None:
        """Start a service again on its previous port, without waiting until it answers."""
        part = self.part(name)
        part.prepare()
        part.process.start(part.command())

    def start_part(self, name: str) -> None:
        """Start a service again on its previous port and wait until it answers."""
        self._bring_up(self.part(name), may_move=False)

    def restart_part(self, name: str) -> None:
        """Stop a service gracefully and start it again on its port."""
        self.stop_part(name)
        self.start_part(name)

    def probe(self, name: str, timeout_seconds: float = PROBE_SECONDS) -> str | None:
        """Return None if the service answers, else one line that says why not."""
        return probe_service(name, self.addresses, timeout_seconds, self.address_of(name))

    def _certificates(self) -> Certificates:
        now = datetime.now(UTC)  # noqa: TID251 - the machine's clock, by which clients check them
        return certificates_of(self.data_dir, now)

    def part(self, name: str) -> Part:
        """Return a service.

        Raises:
            LocalStackError: this stack does not run it.
        """
        try:
            return self._parts[name]
        except KeyError:
            raise LocalStackError(f"this stack does not run a service called {name}") from None

    def _side_by_side(self) -> None:
        failed = threading.Event()
        given = [name for name, address in self.given.by_name().items() if address is not None]
        with ThreadPoolExecutor(len(self._parts) + len(given), thread_name_prefix="stack-start") as pool:
            tasks: list[Future[None]] = [
                pool.submit(self._bring_up, part, may_move=True, failed=failed) for part in self._parts.values()
            ]
            tasks += [pool.submit(self._await_given, name, failed) for name in given]
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            failed.set()  # if any failed the others need not continue; if none did nobody reads it any more
        errors = [error for task in (*done, *tasks) if (error := task.exception()) is not None]
        # The one that failed by itself, rather than one that gave up because of it.
        errors.sort(key=lambda error: isinstance(error, StartCancelledError))
        if errors:
            raise errors[0]

    def _bring_up(self, part: Part, *, may_move: bool, failed: threading.Event | None = None) -> None:
        wait = Wait(part.name, time.monotonic(), self._late_seconds)
        for launch in range(1, LAUNCHES_MAX + 1):
            if launch > 1 and may_move:
                part.take_ports()
            part.prepare()
            if self._relay is not None and part.relayed is not None:
                self._relay.serve(part.relayed)
            part.process.start(part.command())
            if self._is_up(part, wait, failed):
                self.answered.add(part.name)
                seconds = wait.seconds(time.monotonic())
                self._report(f"{part.name} is ready after {seconds:.1f} s at {hidden_password(part.address)}")
                return
            time.sleep(POLL_SECONDS * 10)  # a second: what a killed predecessor's children need to notice that it died
        raise part.process.failure(f"{describe_exit(part.process.exit_status() or 0)} while starting")

    def _is_up(self, part: Part, wait: Wait, failed: threading.Event | None) -> bool:
        """Wait until the service answers; return False if it died."""
        progress = Progress(START_LIMIT, time.monotonic())
        while True:
            if self.cancelled.is_set() or (failed is not None and failed.is_set()):
                raise StartCancelledError(f"{part.name}: the start was abandoned")
            if not part.process.is_alive():
                return False
            reason = self.probe(part.name)
            # Checked again whether it lives: the answer may be from another program that already had the port.
            if reason is None and part.process.is_alive():
                return True
            for line in wait.lines(time.monotonic(), reason or "it has died"):
                self._report(line)
            why = progress.why_over(part.process.work, time.monotonic())
            if why is not None and self._late_seconds is None:
                raise part.process.failure(f"does not answer ({reason}) and {why}")
            time.sleep(POLL_SECONDS)

    def _await_given(self, name: str, failed: threading.Event) -> None:
        deadline = time.monotonic() + GIVEN_SECONDS_MAX
        reason: str | None = None
        while not (self.cancelled.is_set() or failed.is_set()):
            reason = self.probe(name)
            if reason is None:
                self._report(f"{name} is used at {hidden_password(self.given.by_name()[name] or '')}")
                return
            if time.monotonic() > deadline:
                raise PartFailedError(name, f"the configured address does not answer ({reason})", [])
            time.sleep(POLL_SECONDS)
        raise StartCancelledError(f"{name}: the start was abandoned")

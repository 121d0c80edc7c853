"""A separate stack for faults: servers, a proxy in front of each, and roles that know only the proxies.

Invariant: the environment does not influence it. Settings of the caller are unset for its roles, and its data is in one
folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from highwater.api.chaos.election import UncleanElection
from highwater.api.chaos.plan import PROXIED, Kind
from highwater.api.chaos.proxy import Proxies
from highwater.api.chaos.unsynced import lose_unsynced, recovery_points
from highwater.connectors.chaos import truths
from highwater.connectors.chaos.changelogs import delete_changelogs
from highwater.connectors.chaos.groups import delete_groups, displace
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.groups import kafka_group_of
from highwater.connectors.kafka.memberships import membership
from highwater.connectors.postgres.pool import Connection, open_connection
from highwater.connectors.run import CONNECTOR_GROUPS
from highwater.deploy.local import control
from highwater.deploy.local.kafka import Kafka
from highwater.deploy.local.part import STOP_LIMIT, Addresses, service_of, with_settings
from highwater.deploy.local.process import Command, ManagedProcess
from highwater.deploy.local.stack import LocalStack
from highwater.deploy.local.state import read_state
from highwater.deploy.local.supervisor import Plan, Role, Supervisor
from highwater.schemas.errors import UnavailableError
from highwater.streams.settings import SETTINGS, Settings, read_settings

# Everything as shipped except waiting times of decisions: one tick per second, and frequent rebuilds.
POLICY = """
[plans.free]
novelty_count_min = 50
cooldown_seconds = 2
[plans.pro]
novelty_count_min = 20
cooldown_seconds = 2
"""
TICK_SECONDS = 1.0
# Searched upwards; next to the servers' default ports, and below the kernel's ephemeral ports.
_PROXY_PORT_FIRST = 19_092
_LOOK_SECONDS = 0.1
_LOSS_LOOK_SECONDS = 2.0
_OFFSETS_TOPIC = "__consumer_offsets"
START_SECONDS_MAX = 240.0
_KILLED_SECONDS_MAX = 10.0

MakePlan = Callable[[Settings, Mapping[str, str]], Plan]
Report = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remedies:
    """The commands that an operator runs after some faults: `highwater recover-tables`, and `highwater repair-log --execute`,
    which returns the new positions of moved records by their former ones.
    """

    recover_tables: Callable[[Settings], None]
    repair_log: Callable[[Settings], Mapping[str, str]]


class Stuck(Exception):  # noqa: N818 - what is found, and no failure of the command
    """An expected event did not happen within a time that is generous on a busy machine."""


class Ground:
    """The stack; a `with` block starts and ends it."""

    def __init__(
        self, folder: Path, make_plan: MakePlan, remedies: Remedies, report: Report, *, brokers: int = 1
    ) -> None:
        """`brokers`: the number of Kafka's, one of `brokers.CHOICES`."""
        self.folder = folder
        self._remedies = remedies
        self._make_plan = make_plan
        self._report = report
        self._open = contextlib.ExitStack()
        self.servers = LocalStack(folder / "servers", report=report, brokers=brokers)
        self._proxies = Proxies()
        self._second: dict[str, ManagedProcess] = {}
        self._roles: dict[str, Role] = {}
        self._environments: dict[str, dict[str, str]] = {}  # of the roles, which read them at each start
        self._failure: BaseException | None = None
        self._looked_at = 0.0  # when losses of the log were last asked for
        self.moved: dict[str, str] = {}  # new positions by former ones, after all repairs of the log
        self.settings: Settings = read_settings({})
        self.data_dir = folder / "roles"
        self.api_url = ""

    def __enter__(self) -> Self:
        """Start everything and wait until it is ready."""
        with contextlib.ExitStack() as opened:
            self._start(opened)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._open.close()

    def _start(self, opened: contextlib.ExitStack) -> None:
        ports = self.servers.ports
        proxied = [name for service in PROXIED for name in self.servers.names_of(service)]
        fronts = {name: ports.take(f"proxy_{name}", _PROXY_PORT_FIRST) for name in proxied}
        doors = {name: self.servers.put_broker_behind(name, fronts[name]) for name in self.servers.names_of(Kafka.name)}
        opened.enter_context(self.servers)
        opened.enter_context(self._proxies)
        direct = self.servers.addresses
        behind: dict[str, str | None] = dict(direct.by_name())
        for name, front in fronts.items():
            own, addresses = self.servers.address_of(name), behind[service_of(name)]
            assert own is not None
            assert addresses is not None
            port = self._port_of(own)
            self._proxies.add(name, front, doors.get(name, port))
            behind[service_of(name)] = addresses.replace(f":{port}", f":{front}")
        self.settings = read_settings(self._environment(direct))
        plan = self._planned(with_settings(direct, behind, direct.settings))
        self._roles = {role.name: role for role in plan.roles}
        self.api_url = plan.api_url or ""
        opened.callback(self._end_seconds)
        self._supervise(plan, opened)
        self.until(self.is_ready, "the stack is not ready", START_SECONDS_MAX)

    def _port_of(self, address: str) -> int:
        return int(address.rsplit(":", 1)[1].split("/", maxsplit=1)[0])

    def _environment(self, addresses: Addresses) -> dict[str, str]:
        """Return the settings of every role: settings of the caller are unset, and ours override a file `.env`."""
        policy = self.folder / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        return {
            **dict.fromkeys(SETTINGS, ""),
            **addresses.environment(),
            "HIGHWATER_DATA_DIR": str(self.data_dir),
            "HIGHWATER_POLICY": str(policy),
            "HIGHWATER_TICK_SECONDS": str(TICK_SECONDS),
            "HIGHWATER_WINDOW_DAYS": "60",
        }

    def _planned(self, addresses: Addresses) -> Plan:
        environment = self._environment(addresses)
        plan = self._make_plan(read_settings(environment), environment)
        self._environments = {
            role.name: {**environment, "HIGHWATER_CLOCK_FILE": str(self._clock_file(role.name)), **role.env}
            for role in plan.roles
        }
        return replace(plan, roles=tuple(replace(role, env=self._environments[role.name]) for role in plan.roles))

    def _supervise(self, plan: Plan, opened: contextlib.ExitStack) -> None:
        supervisor = Supervisor(plan, self._report)

        def run() -> None:
            try:
                supervisor.run()
            except BaseException as error:  # noqa: BLE001 - reported by the code that waits for the roles
                self._failure = error

        thread = threading.Thread(target=run, name="supervisor", daemon=True)
        thread.start()
        opened.callback(thread.join, STOP_LIMIT.total_seconds_max)
        opened.callback(supervisor.request_stop)

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings for a command that bypasses the proxies."""
        return self._environment(self.servers.addresses)

    # -- its state
    # -------------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], what: str, seconds: float) -> T:
        """Poll until a condition holds and return its value.

        Raises:
            Stuck: it did not hold in time.
        """
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            self._repair_what_is_found()
            if self._failure is not None:
                raise Stuck(f"the supervisor ended: {self._failure}") from self._failure
            if time.monotonic() > deadline:
                raise Stuck(f"after {seconds:.0f} s: {what}; {self.why_not_ready()}")
            time.sleep(_LOOK_SECONDS)
        return found

    def _repair_what_is_found(self) -> None:
        """Do what an operator does after an election: a topic without readers shows its loss only when it is written to."""
        if self.servers.brokers > 1 and time.monotonic() > self._looked_at + _LOSS_LOOK_SECONDS:
            self._looked_at = time.monotonic()
            with contextlib.suppress(UnavailableError):
                if self.asked(truths.open_losses):
                    self._repair()

    def is_ready(self) -> bool:
        """Return whether every service and role is ready."""
        return bool(control.status(self.data_dir)["ready"])

    def why_not_ready(self) -> str:
        """Return the services and roles that are not ready, with the reasons."""
        parts = control.status(self.data_dir)["parts"]
        found = [f"{part['name']}: {part.get('reason')}" for part in parts if not part["ready"]]
        return "; ".join(found) or "every part is ready"

    def restarts(self) -> dict[str, int]:
        """Return how often each role was restarted."""
        return {part["name"]: int(part["restarts"]) for part in self._written() if part["kind"] == "role"}

    def last_error(self, role: str) -> str | None:
        """Return what the supervisor reports about a role's last exit."""
        return next((part["last_error"] for part in self._written() if part["name"] == role), None)

    def role_pid(self, name: str) -> int | None:
        """Return the current process of a role."""
        found = next((part["pid"] for part in self._written() if part["name"] == name), None)
        return None if found is None else int(found)

    def _written(self) -> list[dict[str, Any]]:
        """Return the services and roles as the supervisor wrote them; none is queried, since a paused one takes seconds
        to time out.
        """
        state = read_state(self.data_dir)
        return [] if state is None else list(state["parts"])

    def asked(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Query PostgreSQL, bypassing the proxy.

        Raises:
            UnavailableError: it does not answer.
        """

        async def ask() -> T:
            assert self.settings.database is not None
            connection = await open_connection(self.settings.database, admit=None, timeout=5.0, command_timeout=30.0)
            try:
                return await question(connection)
            finally:
                connection.terminate()

        return asyncio.run(ask())

    # -- building blocks of faults
    # -----------------------------------------------------------------------------------------

    def signal_role(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a role, if it runs."""
        pid = self.role_pid(name)
        if pid is not None:
            _send(pid, number)

    def signal_server(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a server and all of its processes."""
        pid = self.servers.process(name).pid
        assert pid is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children(recursive=True):
                _send(child.pid, number)
        _send(pid, number)

    def limit_files(self, name: str, bytes_max: int | None) -> None:
        """Limit the size of files of a role or server and its processes; None: no limit (Linux only)."""
        pid = self.role_pid(name) if name in self._roles else self.servers.process(name).pid
        limit = psutil.RLIM_INFINITY if bytes_max is None else bytes_max
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is not None:
                parent = psutil.Process(pid)
                for process in (parent, *parent.children(recursive=True)):  # the parent first: its children inherit it
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.rlimit(psutil.RLIMIT_FSIZE, (limit, psutil.RLIM_INFINITY))

    def revive_server(self, name: str) -> None:
        """Wait until a server answers that may have ended; one that has ended is restarted."""
        while self.servers.process(name).is_alive():
            if self.servers.probe(name) is None and self.servers.process(name).is_alive():
                return
            time.sleep(_LOOK_SECONDS)
        self.servers.start_part(name)

    def hinder(self, server: str, fault: Kind) -> None:
        """Inject a network fault between the roles and a server."""
        for name in self.servers.names_of(server):
            self._proxies.begin(name, fault)

    def unhinder(self, server: str) -> None:
        """End the network fault."""
        for name in self.servers.names_of(server):
            self._proxies.end(name)

    def set_clock(self, role: str, seconds: int) -> None:
        """Set a role's clock ahead by this many seconds; 0 corrects it."""
        path = self._clock_file(role)
        fresh = path.with_suffix(".new")
        fresh.write_text(str(seconds), encoding="ascii")
        fresh.replace(path)

    def set_region(self, name: str, zone: str, locale: str) -> None:
        """Let a role have another time zone and locale from its next start on."""
        self._environments[name].update(TZ=zone, LC_ALL=locale)

    def set_database_region(self, zone: str, date_style: str) -> None:
        """Let PostgreSQL have another time zone and date style in every later session."""
        self.asked(lambda connection: truths.set_region(connection, zone, date_style))

    def is_without_members(self, role: str) -> bool:
        """Return whether the groups of a role have no live member."""
        admin = Admin(self.settings.kafka_client())
        return not any(asyncio.run(membership(admin, group)).members for group in kafka_groups(role))

    def displace_groups(self, role: str, records: int) -> None:
        """Change the offsets of the groups of a role in Kafka."""
        for group in kafka_groups(role):
            asyncio.run(displace(self.settings.kafka_client(), group, records))

    def delete_groups(self, role: str) -> None:
        """Delete the groups of a role in Kafka."""
        delete_groups(Admin(self.settings.kafka_client()), kafka_groups(role))

    def lose_unsynced(self) -> int:
        """Take from Kafka what it has not synced, as a power loss does; return in how many partitions that was something.

        The offsets of groups stay: a topic that only the worker reads would lose its tail unnoticed with them.
        """
        log_dir = next(self.servers.data_dir.glob("kafka/**/recovery-point-offset-checkpoint")).parent
        points = recovery_points(log_dir)
        keep = {place: offset for place, offset in points.items() if place[0] != _OFFSETS_TOPIC}
        return len(lose_unsynced(log_dir, keep))

    def unclean_election(self) -> UncleanElection:
        """Return an election that takes from every topic what one broker has missed. The offsets of groups stay, as in a power
        loss.
        """
        return UncleanElection(self.servers, self.settings.kafka_client(), keeping=(_OFFSETS_TOPIC,))

    def start_second(self, name: str) -> str:
        """Start another process of a role, with its own folder and port; return where it listens."""
        role = self._roles[name]
        folder = self.folder / "second"
        folder.mkdir(exist_ok=True)
        port = self.servers.ports.take(f"second_{name}", _PROXY_PORT_FIRST)
        listens = "HIGHWATER_PORT" if name == "api" else "HIGHWATER_HEALTH_PORT"
        mine = {"HIGHWATER_DATA_DIR": str(folder), listens: str(port)}
        process = self._second.setdefault(
            name, ManagedProcess(f"second {name}", self.folder / "logs" / f"second-{name}.log")
        )
        process.start(Command(role.argv, env={**os.environ, **role.env, **mine}))
        return f"http://127.0.0.1:{port}"

    def stop_second(self, name: str) -> None:
        """Stop it gracefully."""
        self._second[name].stop(STOP_LIMIT)

    def kill_second(self, name: str) -> None:
        """Kill it."""
        self._second[name].kill()

    def terminate_connections(self) -> None:
        """Let PostgreSQL end every connection."""
        self.asked(truths.terminate)

    def rewind(self, group: str, records: int) -> None:
        """Set the consumers of a group back."""
        self.asked(lambda connection: truths.rewind(connection, group, records))

    def forget_tables(self) -> None:
        """Delete the worker's local tables; it must not run meanwhile."""
        shutil.rmtree(self.data_dir / "faust", ignore_errors=True)

    def delete_changelogs(self) -> None:
        """Delete the records from which the worker's tables are restored."""
        delete_changelogs(self.settings.kafka_client())

    def recover_tables(self) -> None:
        """Run `highwater recover-tables`."""
        self._remedies.recover_tables(self.settings)

    def repair_log(self) -> None:
        """Run `highwater repair-log --execute`, again while a server does not answer."""
        self.until(lambda: is_answered(self._repair), "the log is not repaired", START_SECONDS_MAX)

    def _repair(self) -> bool:
        moved = self._remedies.repair_log(self.settings)
        self.moved = {**{before: moved.get(now, now) for before, now in self.moved.items()}, **moved}
        return True

    def _clock_file(self, role: str) -> Path:
        return self.folder / f"clock-{role}"

    def _end_seconds(self) -> None:
        for process in self._second.values():
            process.kill()


def kafka_groups(role: str) -> list[str]:
    """Return the groups of a role by their names in Kafka."""
    return [kafka_group_of(name) for name in CONNECTOR_GROUPS.get(role, (role,))]


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_answered(question: Callable[[], object]) -> bool:
    """Return whether a query returns a true value; false while its services are unavailable."""
    try:
        return bool(question())
    except UnavailableError:
        return False

"""`highwater up`, `down` and `status`: the local stack, its roles, and the bundled sample on its first start.

Invariant: `up` returns or prints the addresses only when everything answers; a configured port is used or refused, a
default one that is in use is avoided.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highwater.api.cli.configuration import refuse_faults
from highwater.api.command.command import FAILED, Command, CommandFailedError, RoleCommand, json_option
from highwater.api.command.connection import own_settings, stack_settings
from highwater.api.command.terminal import print_json, print_result, print_table, say, warn
from highwater.schemas.errors import ConfigurationError
from highwater.streams.processes import API, PRINCIPALS, PROCESSES
from highwater.streams.settings import environment_with_file

if TYPE_CHECKING:
    from highwater.deploy.local.part import Addresses
    from highwater.deploy.local.ports import PortBook
    from highwater.deploy.local.supervisor import Plan, Role
    from highwater.streams.settings import Settings

# Searched upwards; next to the services' default ports (8080 to 8181) so that no role takes a service's port.
_HEALTH_PORT_FIRST, _HEALTH_PORTS = 20_000, 12_000
_API_PORT_FALLBACK = 8880
# For trials on one machine: each process has pools of up to 20 of PostgreSQL's 200 connections, and 100-200 MB.
WORKERS_MAX = 4
_READY_LOOK_SECONDS = 0.5
_UMASK = 0o077  # only the owner may read files of the data folder; children inherit this


def _local() -> Any:
    """Return the module that controls local stacks.

    Raises:
        CommandFailedError: it is not installed.
    """
    try:
        from highwater.deploy.local import control
        from highwater.deploy.local.supervisor import Supervisor  # noqa: F401 - a missing dependency is found now, not half-way
    except ModuleNotFoundError as error:
        raise CommandFailedError(
            f"the local stack is not installed ({error.name} is missing): `make install`, or pip install 'highwater[local]'"
        ) from error
    return control


@click.command(cls=RoleCommand)
@click.option("--detach", is_flag=True, help="Return when everything is ready; `highwater down` stops it.")
@click.option("--no-sample", is_flag=True, help="Do not load the bundled sample on the first start.")
@click.option("--secure", is_flag=True, help="Run all services with TLS and passwords, Kafka included.")
@click.option(
    "--brokers",
    type=click.Choice(["1", "3"]),
    help="Number of Kafka brokers of a new data folder: 1 (the default) or 3; an existing folder keeps its own.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    help="Number of processes of each role except the API [default: 1].",
)
@click.option(
    "--services-only", is_flag=True, help="Start Kafka, registry, PostgreSQL and Redis only, as `restore` needs."
)
@json_option
def up(
    detach: bool,
    no_sample: bool,
    secure: bool,
    brokers: str | None,
    workers: int,
    services_only: bool,
    as_json: bool,
) -> None:
    """Start the whole local stack: services, workers and API.

    With --json, what `highwater status --json` prints once everything is ready, passwords included.
    """
    control = _local()
    from highwater.deploy.local.supervisor import Plan

    settings = own_settings()
    os.umask(_UMASK)
    running = control.status(settings.data_dir, _given(settings))
    if running["running"]:
        say(f"a local stack is already running on {running['data_dir']}", err=as_json)
        if detach and not running["ready"]:
            plan = Plan(settings.data_dir, _given(settings), late_seconds=settings.up_timeout_seconds)
            with _as_wrong_use():
                ready = control.await_ready(plan, report=_report)
            _load_sample_and_greet(ready, settings.data_dir, no_sample=no_sample, as_json=as_json)
            return
        _print_status(running, as_json=as_json)
        click.get_current_context().exit(0 if detach else FAILED)
    if services_only and not detach:
        raise click.UsageError("--services-only needs --detach", click.get_current_context())
    refuse_faults(settings)
    if brokers is not None and settings.kafka is not None:
        raise click.UsageError("--brokers applies to the embedded Kafka, but KAFKA_BOOTSTRAP_SERVERS names another")
    if None in (settings.kafka, settings.schema_registry, settings.redis):
        _fetch_parts()
    asked = None if brokers is None else int(brokers)
    plan = make_plan(settings, environment_with_file(), is_secure=secure, brokers=asked, workers=workers)
    if services_only:
        # `init` is a role that ends: programs that need only the services find topics and schemas as this version needs
        # them.
        plan = replace(plan, roles=tuple(role for role in plan.roles if role.oneshot))
    if detach:
        with _as_wrong_use():
            status = control.start_detached(plan, report=_report)
        if services_only:
            print_result(
                status, as_json=as_json, line="the services are ready, no role runs; `highwater down` stops them"
            )
            return
        _load_sample_and_greet(status, plan.data_dir, no_sample=no_sample, as_json=as_json)
        return
    _run_in_foreground(control, plan, no_sample=no_sample, as_json=as_json)


@contextlib.contextmanager
def _as_wrong_use() -> Iterator[None]:
    """Report a setting that a role refused as one that a command refuses.

    Raises:
        ConfigurationError: a role cannot use a setting; everything was stopped again.
    """
    from highwater.deploy.local.errors import MisconfiguredError

    try:
        yield
    except MisconfiguredError as error:
        raise ConfigurationError(str(error)) from error


def _fetch_parts() -> None:
    """Install the broker, the registry and Redis if they are missing: once, without `make install`.

    Raises:
        CommandFailedError: they cannot be downloaded.
    """
    from highwater.deploy.local import fetch
    from highwater.deploy.local.installed import install_root

    if fetch.is_installed(install_root()):
        return
    _report("fetching the broker, the schema registry and Redis, about 140 MB, once")
    if fetch.main([]):
        raise CommandFailedError("the broker, the schema registry and Redis could not be installed")


def make_plan(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    is_secure: bool = False,
    brokers: int | None = None,
    workers: int = 1,
) -> Plan:
    """Return the supervisor's plan: configured addresses, the roles with their ports, and the address of the API.

    `brokers` None: the number that the data folder was created with, one if it is new.

    Raises:
        LocalStackError: the folder was created with another number of brokers.
    """
    from highwater.api.command.connection import own_api_address
    from highwater.deploy.local.brokers import brokers_of, check_brokers
    from highwater.deploy.local.datadir import checked
    from highwater.deploy.local.ports import PortBook
    from highwater.deploy.local.supervisor import Plan

    data_dir = checked(settings.data_dir)
    if brokers is not None:
        check_brokers(data_dir, brokers)
    ports = PortBook(data_dir)
    port = _api_port(ports, settings, is_set=bool(environment.get("HIGHWATER_PORT", "").strip()))
    given = _given(settings)
    api_url = own_api_address(settings, port)
    certificate = None if settings.tls_cert_file is None else str(settings.tls_cert_file.absolute())
    roles = _roles(ports, data_dir, port, api_url, certificate, workers)
    count = brokers or brokers_of(data_dir) or 1
    return Plan(data_dir, given, roles, api_url, is_secure, settings.up_timeout_seconds, count, PRINCIPALS)


def _roles(
    ports: PortBook, data_dir: Path, api_port: int, api_url: str, certificate: str | None, workers: int
) -> tuple[Role, ...]:
    from highwater.deploy.local.supervisor import Role

    # -P: a folder called `api` in the working directory must not shadow ours.
    program = (sys.executable, "-P", "-m", "highwater.api.cli.main")
    # Otherwise each thread has its own malloc arena, hardly used, up to eight times the number of cores.
    common = {"HIGHWATER_DATA_DIR": str(data_dir), "MALLOC_ARENA_MAX": "2"}
    roles = [Role("init", (*program, "init"), env=common, oneshot=True)]
    # The second process of a role is `worker-2`, and so on.
    long = {process.removeprefix("connect-"): process for process in PROCESSES if process != API}
    several = [(f"{name}-{number}" if number > 1 else name, name) for name in long for number in range(1, workers + 1)]
    for name, role in several:
        port = ports.take(f"{name}_health", _health_port(data_dir, name))
        # The health port of a local role listens only on this machine, wherever the API listens.
        env = {**common, "HIGHWATER_HEALTH_PORT": str(port), "HIGHWATER_HOST": "127.0.0.1"}
        ready_url = f"http://127.0.0.1:{port}/readyz"
        argv = (*program, *PROCESSES[long[role]])
        roles.append(Role(name, argv, env=env, ready_url=ready_url, principal=long[role]))
    env = {**common, "HIGHWATER_PORT": str(api_port)}
    ready_url = f"{api_url}/readyz"
    argv = (*program, *PROCESSES[API])
    roles.append(Role(API, argv, env=env, ready_url=ready_url, certificate=certificate, principal=API))
    return tuple(roles)


def _health_port(data_dir: Path, name: str) -> int:
    """Return the first health port to try: spread by data folder, so that two stacks starting at once do not collide.

    Below 32768, where ephemeral ports begin: a client connecting to a stopped server there may reach itself.
    """
    return _HEALTH_PORT_FIRST + zlib.crc32(f"{data_dir.absolute()}:{name}".encode()) % _HEALTH_PORTS


def _api_port(ports: PortBook, settings: Settings, *, is_set: bool) -> int:
    from highwater.deploy.local.ports import is_free

    if is_set and settings.port:
        return int(ports.take("api", settings.port, explicit=settings.port, host=settings.host))
    wanted = settings.port if settings.port and is_free(settings.port, settings.host) else _API_PORT_FALLBACK
    return int(ports.take("api", wanted, host=settings.host))


def _given(settings: Settings) -> Addresses:
    """Return the external services of the settings, and how each is reached."""
    from highwater.deploy.local.part import Addresses

    options = {} if settings.kafka is None else settings.kafka_client()
    registry = settings.registry_access()
    files: dict[str, str | None] = {}
    if registry is not None:
        files = {"ca": registry.ca, "certificate": registry.certificate, "key": registry.key}
    return Addresses(
        kafka=settings.kafka,
        schema_registry=None if registry is None else registry.address,
        database=settings.database,
        redis=settings.redis,
        redis_cache=settings.redis_cache,
        kafka_client_options={name: value for name, value in options.items() if name != "bootstrap.servers"},
        registry_files={name: path for name, path in files.items() if path is not None},
        # For commands on the data folder, which do not have the environment of `up`.
        settings={"HIGHWATER_PARTITIONS": str(settings.partitions)},
    )


def _run_in_foreground(control: Any, plan: Plan, *, no_sample: bool, as_json: bool) -> None:
    """Supervise in this process until Ctrl-C; another thread prints the addresses once everything is ready."""
    from highwater.deploy.local.supervisor import Supervisor

    ended = threading.Event()

    def greet_when_ready() -> None:
        while not ended.wait(_READY_LOOK_SECONDS):
            status = control.status(plan.data_dir, plan.given)
            if status["ready"]:
                try:
                    _load_sample_and_greet(status, plan.data_dir, no_sample=no_sample, as_json=as_json)
                except Exception as error:  # noqa: BLE001 - printed, since nothing waits for this thread; the stack itself runs
                    warn(f"highwater: the sample was not loaded: {error}")
                return

    threading.Thread(target=greet_when_ready, name="greeter", daemon=True).start()
    try:
        with _as_wrong_use():
            Supervisor(plan, report=_report).run()
    finally:
        ended.set()


def greet(status: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Print all addresses, and who else can reach them."""
    _print_status(status, as_json=as_json)
    _hint_at_neighbours(status)


def _print_status(status: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(status)
    else:
        _print_addresses(status)


def _load_sample_and_greet(status: Mapping[str, Any], data_dir: Path, *, no_sample: bool, as_json: bool) -> None:
    """Load the sample if it is due, and print all addresses."""
    from highwater.api.cli import sample

    if sample.is_due(data_dir):
        if no_sample:
            sample.remember(data_dir, "declined")
        else:
            count = sample.load_sample(stack_settings("kafka", "schema_registry", "database"))
            sample.remember(data_dir, "loaded")
            say(f"loaded the sample: {count:,} insights, read by user {sample.READER}", err=True)
    greet(status, as_json=as_json)


def _readiness(part: Mapping[str, Any]) -> str:
    if not part["ready"]:
        return str(part["reason"])
    return f"ready, degraded: {', '.join(sorted(part['degraded']))}" if part["degraded"] else "ready"


def _print_addresses(status: Mapping[str, Any]) -> None:
    """Print all addresses for people: others may see a screen, so passwords are hidden."""
    from highwater.deploy.local.stack_secrets import hidden_password

    rows = [("API", status["api"]), ("docs", f"{status['api']}/docs"), ("Kafka", status["kafka"])]
    rows += [("schema registry", status["schema_registry"]), ("PostgreSQL", status["database"])]
    rows += [("Redis", status["redis"])]
    rows += [("Redis of caches", status["redis_cache"])] if status.get("redis_cache") else []
    rows += [("data", status["data_dir"]), ("logs", f"{status['data_dir']}/logs")]
    if status["secure"]:
        rows.insert(-2, ("authority", status["settings"]["KAFKA_SSL_CA_LOCATION"]))
    for name, address in rows:
        say(f"{name:<16} {address and hidden_password(address)}")


def _hint_at_neighbours(status: Mapping[str, Any]) -> None:
    """Warn about what other users of this machine can reach, if that can be avoided."""
    settings = own_settings()
    if settings.api_keys or settings.api_keys_file or settings.oidc_issuer:
        return
    say(
        f"Other users of this machine can use {_open_to_neighbours(status)}. To close the API set HIGHWATER_API_KEYS or"
        " HIGHWATER_API_KEYS_FILE (`highwater keys add`). Addresses with their passwords: `highwater status --json`.",
        err=True,
    )


def _open_to_neighbours(status: Mapping[str, Any]) -> str:
    if status["secure"]:
        return (
            f"the API at {status['api']}, which asks for no key, and the health and metrics of the schema registry; everything"
            " else is closed to them"
        )
    return (
        f"the API at {status['api']}, Kafka and the schema registry, which ask for no password (`highwater up --secure` has"
        " the two ask for one); the data folder, PostgreSQL and Redis are closed to them"
    )


def _report(line: str) -> None:
    say(line, err=True)


@click.command(cls=Command)
@json_option
def down(as_json: bool) -> None:
    """Stop the local stack."""
    control = _local()
    data_dir = own_settings().data_dir
    was_running = control.stop(data_dir)
    line = "stopped" if was_running else f"no local stack was running on {data_dir.absolute()}"
    print_result({"was_running": was_running, "data_dir": str(data_dir.absolute())}, as_json=as_json, line=line)


@click.command(cls=Command)
@json_option
def status(as_json: bool) -> None:
    """Show the services and roles of the local stack; exit status 0 if all are ready."""
    control = _local()
    settings = own_settings()
    found = control.status(settings.data_dir, _given(settings))
    if as_json:
        print_json(found)
    elif not found["running"]:
        say(f"no local stack is running on {settings.data_dir.absolute()}")
    else:
        rows = [
            (part["name"], part["state"], _readiness(part), part["pid"], part["restarts"]) for part in found["parts"]
        ]
        print_table(["part", "state", "", "pid", "restarts"], rows, right=["pid", "restarts"])
        for line in sorted({f"{name}: {text}" for part in found["parts"] for name, text in part["degraded"].items()}):
            say(line)
        _print_addresses(found)
    if not found["ready"]:
        click.get_current_context().exit(FAILED)

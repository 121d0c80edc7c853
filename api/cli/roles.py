"""One role each, for running on many machines: `init`, `worker`, `connect`, `api`, and `health`, which checks them.

Invariant: a role runs in the foreground until SIGTERM or Ctrl-C; a missing requirement is one line at its start.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import click

from highwater.api.command.command import FAILED, Command, RoleCommand, json_option
from highwater.api.command.connection import (
    api_of_this_machine,
    api_trust,
    database,
    kafka_client,
    own_settings,
    reachable,
    stack_settings,
)
from highwater.api.command.terminal import print_json, say, warn
from highwater.streams.processes import USER_PREFIX
from highwater.streams.settings import environment_with_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from highwater.schemas.codec import Codec
    from highwater.streams.settings import Settings

# A container's health check runs every few seconds; a role that takes longer to answer is not healthy.
HEALTH_SECONDS = 3.0


@click.command(cls=Command)
@click.option("--languages", is_flag=True, help="Also find the languages of texts that were stored before 0.3.")
@json_option
def init(languages: bool, as_json: bool) -> None:
    """Create or migrate database, topics and schemas for this version."""
    settings = stack_settings("kafka", "schema_registry", "database")
    done = asyncio.run(_initialise(settings, languages=languages))
    if as_json:
        print_json(done)
        return
    for what, names in done.items():
        say(f"{what}: {', '.join(names) if names else 'nothing to do'}")


async def _initialise(settings: Settings, *, languages: bool) -> dict[str, list[str]]:
    from highwater.connectors.kafka.acls import settle_users
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.registry import Registry
    from highwater.connectors.kafka.truncation import look
    from highwater.connectors.postgres.migrate import migrate
    from highwater.connectors.principals import passwords_of, rules_of
    from highwater.connectors.retrieval.languages import label_texts
    from highwater.schemas.topics import TOPICS, all_topics
    from highwater.streams.clock import ProductClock

    passwords = {} if settings.kafka_principals is None else passwords_of(settings.kafka_principals)
    registry = Registry(settings.registry_access())
    admin = Admin(kafka_client(settings))
    async with database(settings) as pool:
        migrations = await migrate(pool)
        labelled = await label_texts(pool) if languages else {}
        # A producer may write as soon as it sees a topic, so its schema is registered first.
        ids = await registry.register(await registry.missing(TOPICS.values()))
        created = await admin.ensure_topics(all_topics(), replication_factor=settings.replication_factor)
        users = []
        if passwords:
            rules = {f"{USER_PREFIX}{name}": rules_of(name) for name in passwords}
            users = await settle_users(admin, {f"{USER_PREFIX}{name}": one for name, one in passwords.items()}, rules)
        for loss in await look(admin, pool, "init", ProductClock(settings.clock_file)()):
            warn(loss.text)
    return {
        "migrations": migrations,
        "topics": created,
        "schemas": list(ids),
        **({"languages": [f"{count} {name}" for name, count in labelled.items()]} if languages else {}),
        **({"users": users} if passwords else {}),
    }


@click.command(cls=RoleCommand)
def worker() -> None:
    """Run the Faust agents, which decide."""
    from highwater.connectors.kafka.changelogs import read_changelogs
    from highwater.connectors.tracing import start_tracing
    from highwater.streams.app import run_worker
    from highwater.streams.clock import ProductClock
    from highwater.streams.metric_roles import Role, begin_role
    from highwater.streams.telemetry import configure_logging

    settings = own_settings()
    configure_logging(settings.log_level, settings.log_format)
    begin_role(Role.WORKER)
    settings.kafka_client()  # without a broker's address there is nothing to wait for
    codec = asyncio.run(_codec_when_there(settings))

    async def learn(schema_id: int) -> None:
        from highwater.connectors.kafka.registry import Registry

        # A separate client each time: new ids are rare, and the worker's event loop is not the one of the start.
        codec.teach(schema_id, await Registry(settings.registry_access()).text_of(schema_id))

    exporter = start_tracing(settings, "worker")
    reads = partial(read_changelogs, settings.kafka_client())
    status = run_worker(settings, codec, ProductClock(settings.clock_file), learn=learn, read_changelogs=reads)
    if exporter is not None:
        exporter.close()
    click.get_current_context().exit(status)


async def _codec_when_there(settings: Settings) -> Codec:
    """Return the codec; wait while the registry is unavailable or has no schemas yet, and log that once."""
    from highwater.connectors.kafka.registry import Registry
    from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
    from highwater.streams.retry import unavailable_seconds
    from highwater.streams.telemetry import get_log

    registry = Registry(settings.registry_access())
    attempt = 0
    while True:
        try:
            return await registry.codec()
        except AccessRefusedError:  # waiting does not correct a password
            raise
        except (UnavailableError, ConfigurationError) as error:
            attempt += 1
            if attempt == 1:
                get_log("worker").warning("worker_waiting", reason=str(error))
            await asyncio.sleep(unavailable_seconds(attempt))


@click.command(cls=RoleCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1)
def connect(names: tuple[str, ...]) -> None:
    """Run connectors: those named, a group of them (sinks, workers, materializers), or all."""
    import uvloop

    from highwater.connectors.run import resolve_names, run_connectors
    from highwater.streams.metric_roles import Role, begin_role
    from highwater.streams.telemetry import configure_logging

    settings = own_settings()
    wanted = resolve_names(names)
    configure_logging(settings.log_level, settings.log_format)
    begin_role(Role.CONNECT)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_connectors(settings, wanted))


@click.command(cls=RoleCommand)
def api() -> None:
    """Run the HTTP API."""
    from highwater.api.app import serve
    from highwater.streams.metric_roles import Role, begin_role
    from highwater.streams.telemetry import configure_logging

    settings = own_settings()
    configure_logging(settings.log_level, settings.log_format)
    begin_role(Role.API)
    serve(settings)


@click.command(cls=Command)
@click.option("--api", "of_api", is_flag=True, help="Ask the API instead of the role on HIGHWATER_HEALTH_PORT.")
@json_option
def health(of_api: bool, as_json: bool) -> None:
    """Ask a role on this machine whether it is ready; exit status 0 when it is."""
    import httpx2

    settings = own_settings()
    address = health_address(settings, environment_with_file(), of_api=of_api)
    url = f"{address}/readyz"
    verify = api_trust(settings, address)
    try:
        # trust_env off: a proxy of the environment cannot reach this machine's own ports.
        answer = httpx2.get(url, timeout=HEALTH_SECONDS, trust_env=False, verify=verify)
        ready, detail = answer.status_code == httpx2.codes.OK, answer.text.strip()
    except httpx2.HTTPError as error:
        ready, detail = False, f"{url} does not answer: {str(error) or type(error).__name__}"
    if as_json:
        print_json({"ready": ready, "url": url, "detail": detail})
    elif ready:
        say("ready")
    else:
        say(f"not ready: {' '.join(detail.split())[:500]}", err=True)
    if not ready:
        click.get_current_context().exit(FAILED)


def health_address(settings: Settings, environment: Mapping[str, str], *, of_api: bool) -> str:
    """Return the address at which `health` checks a role on this machine: the API at its port, other roles at their
    health port.

    Raises:
        UsageError: no health port is set.
        CommandFailedError: the address of the API is unknown.
    """
    if of_api:
        return api_of_this_machine(settings, environment)
    if not settings.health_port:
        context = click.get_current_context(silent=True)
        raise click.UsageError("HIGHWATER_HEALTH_PORT is not set; --api asks the API", context)
    return f"http://{reachable(settings.host)}:{settings.health_port}"

"""docker-compose.kafka.yml against the rest of the project: services, settings and commands it names are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from highwater.api.cli.roles import HEALTH_SECONDS, health, health_address
from highwater.api.core.auth import parse_api_keys, refuse_public_address_without_keys
from highwater.connectors.principals import passwords_of
from highwater.connectors.run import CONNECTORS, resolve_names
from highwater.streams.processes import PROCESSES, USER_PREFIX
from highwater.streams.settings import SETTINGS
from tests.compose import BROKERS, COMPOSE, OURS, SERVICES, environment_of, settings_of


def own_commands() -> list[tuple[str, ...]]:
    """Return every `highwater …` of the file: the command of each of our services and its health check."""
    found = [tuple(service["command"]) for service in OURS.values()]
    tests = [service["healthcheck"].get("test", []) for service in OURS.values()]
    found += [tuple(test[2:]) for test in tests if test[:2] == ["CMD", "highwater"]]
    return sorted(set(found))


def test_three_brokers_form_one_quorum():
    """Three brokers with one cluster id each vote, under the same address."""
    environments = [broker["environment"] for broker in BROKERS.values()]
    assert len(BROKERS) == 3
    assert len({environment["CLUSTER_ID"] for environment in environments}) == 1
    voters = {f"{broker['environment']['KAFKA_NODE_ID']}@{name}:9093" for name, broker in BROKERS.items()}
    for environment in environments:
        assert set(environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")) == voters


def test_each_broker_advertises_its_own_name():
    """A client in a container that was given one broker's name can reach it there, and is given all three."""
    for name, broker in BROKERS.items():
        assert listeners(broker, "KAFKA_ADVERTISED_LISTENERS")["PLAINTEXT"] == f"{name}:9092"
        assert listeners(broker, "KAFKA_LISTENERS")["PLAINTEXT"] == ":9092"
        assert broker["environment"]["KAFKA_INTER_BROKER_LISTENER_NAME"] == "PLAINTEXT"
    for service in OURS.values():
        servers = service["environment"]["KAFKA_BOOTSTRAP_SERVERS"].split(",")
        assert sorted(servers) == sorted(f"{name}:9092" for name in BROKERS)


def test_a_client_outside_the_containers_reaches_each_broker():
    """Each broker advertises localhost at a port of its own that is published to the listener it advertises."""
    advertised = set()
    for broker in BROKERS.values():
        host, port = listeners(broker, "KAFKA_ADVERTISED_LISTENERS")["EXTERNAL"].split(":")
        assert host == "localhost"
        # Below the kernel's own choices, so that no client's connection has the port when the broker starts.
        assert 1024 < int(port) < 32768
        assert broker["ports"] == [f"127.0.0.1:{port}{listeners(broker, 'KAFKA_LISTENERS')['EXTERNAL']}"]
        protocols = dict(
            pair.split(":") for pair in broker["environment"]["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
        )
        assert set(protocols) == set(listeners(broker, "KAFKA_LISTENERS"))
        advertised.add(port)
    assert len(advertised) == len(BROKERS)


def listeners(broker: dict[str, Any], name: str) -> dict[str, str]:
    """`host:port` of each listener in a broker's setting."""
    found = broker["environment"][name].split(",")
    return {listener: address for listener, _, address in (one.partition("://") for one in found)}


def test_only_the_api_is_published_beyond_this_machine():
    """A service without a key is published on loopback, if at all; the API, which requires one, on every interface."""
    published = {(name, port) for name, service in SERVICES.items() for port in service.get("ports", [])}
    open_to_all = {(name, port) for name, port in published if not port.startswith("127.0.0.1:")}
    settings = settings_of("api")
    assert open_to_all == {("api", f"{settings.port}:{settings.port}")}
    assert parse_api_keys(settings.api_keys)
    ports = [port.rsplit(":", 1)[0].rsplit(":", 1)[-1] for _, port in published]
    assert len(set(ports)) == len(ports)


def test_an_acknowledged_write_survives_one_broker():
    """Every topic, the internal ones too, has three replicas of which two acknowledge."""
    for broker in BROKERS.values():
        environment = broker["environment"]
        assert {value for name, value in environment.items() if name.endswith("REPLICATION_FACTOR")} == {"3"}
        assert environment["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
        assert {value for name, value in environment.items() if name.endswith("MIN_ISR")} == {"2"}


def test_our_topics_have_a_replica_on_each_broker():
    """Topics and changelogs are created with as many replicas as there are brokers; one broker may be missing from a write."""
    for name in OURS:
        assert settings_of(name).replication_factor == len(BROKERS), name
    for broker in BROKERS.values():
        assert int(broker["environment"]["KAFKA_MIN_INSYNC_REPLICAS"]) == len(BROKERS) - 1


def test_every_connector_runs_in_one_service():
    """Every connector of `highwater connect` runs, and none runs twice; new ones belong to a group that is in a service."""
    running = [
        name
        for service in OURS.values()
        if service["command"][0] == "connect"
        for name in resolve_names(service["command"][1:])
    ]
    assert sorted(running) == sorted(CONNECTORS)


def test_every_role_of_the_local_stack_is_a_service():
    """The roles of `highwater up` are those of the file, with the same connectors in one process."""
    commands = [tuple(service["command"]) for service in OURS.values()]
    assert sorted(commands) == sorted([("init",), *PROCESSES.values()])


def test_each_service_is_its_own_user_of_kafka():
    """A process has its user and password and no other's; `init`, the operator, gives them to the brokers."""
    operator = environment_of("init")
    assert operator["KAFKA_SASL_USERNAME"] == "highwater"
    passwords = passwords_of(operator["HIGHWATER_KAFKA_PRINCIPALS"])
    variables = set()
    for name in PROCESSES:
        environment = environment_of(name)
        assert environment["KAFKA_SASL_USERNAME"] == f"{USER_PREFIX}{name}"
        assert environment["KAFKA_SASL_PASSWORD"] == passwords[name]
        assert "HIGHWATER_KAFKA_PRINCIPALS" not in environment
        variables.add(OURS[name]["environment"]["KAFKA_SASL_PASSWORD"])
        assert (
            f"{name}:{OURS[name]['environment']['KAFKA_SASL_PASSWORD']}"
            in OURS["init"]["environment"]["HIGHWATER_KAFKA_PRINCIPALS"]
        )
    assert len(variables) == len(PROCESSES)  # each can be set by itself


# What a container decides: where it listens, where its data is, who it is.
_OF_THE_CONTAINER = {"HIGHWATER_HOST", "HIGHWATER_PORT", "HIGHWATER_HEALTH_PORT", "HIGHWATER_REPLICATION_FACTOR"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_setting_can_be_set_without_a_change_of_the_file(name: str):
    """From the shell if the file has it as `${NAME…}`, else from `highwater.env`, which a value of the file would hide."""
    assert OURS[name]["env_file"] == [{"path": "highwater.env", "required": False}]
    assert "./config:/etc/highwater/config:ro" in OURS[name]["volumes"]
    hidden = {setting for setting, value in OURS[name]["environment"].items() if "${" not in value}
    services = {"KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "REDIS_URL", "REDIS_CACHE_URL"}
    login = {"KAFKA_SECURITY_PROTOCOL", "KAFKA_SASL_MECHANISM", "KAFKA_SASL_USERNAME"}
    assert hidden <= services | login | _OF_THE_CONTAINER


def test_dependencies_name_services_and_can_be_met():
    """A dependency names a service of the file, and one that waits for health waits for a service with a health check."""
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, f"{name} needs {needed}"
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[needed]["healthcheck"], f"{name} waits for the health of {needed}"


def test_roles_wait_for_init_and_come_back():
    """Every role starts after `init` ended well and is started again when it ends."""
    roles = {name: service for name, service in OURS.items() if name != "init"}
    assert set(roles) == {"worker", "connect-sinks", "connect-workers", "connect-materializers", "api"}
    for service in roles.values():
        assert service["depends_on"]["init"] == {"condition": "service_completed_successfully"}
        assert service["restart"] == "unless-stopped"
    assert OURS["init"]["restart"] == "no"


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_health_check_asks_where_the_role_listens(name: str):
    """`highwater health` in a role's environment asks the port on which that role listens; the one-shot has no check."""
    test = OURS[name]["healthcheck"].get("test", [])
    if name == "init":
        assert OURS[name]["healthcheck"] == {"disable": True}
        return
    assert test[:3] == ["CMD", "highwater", "health"]
    settings, is_api = settings_of(name), OURS[name]["command"] == ["api"]
    asked = health.make_context("health", list(test[3:])).params["of_api"]
    port = settings.port if is_api else settings.health_port
    assert port
    assert health_address(settings, environment_of(name), of_api=asked) == f"http://127.0.0.1:{port}"
    assert seconds(OURS[name]["healthcheck"]["timeout"]) > HEALTH_SECONDS


@pytest.mark.parametrize("name", sorted(set(OURS) - {"init"}))
def test_other_containers_reach_a_role(name: str):
    """A role listens on every address of its container, so that its metrics can be collected, and starts with such an address."""
    settings = settings_of(name)
    assert settings.host == "0.0.0.0"
    if OURS[name]["command"] == ["api"]:
        refuse_public_address_without_keys(settings.host, parse_api_keys(settings.api_keys))


def seconds(duration: str) -> float:
    """A duration of the file, all of which are in seconds."""
    return float(duration.removesuffix("s"))


@pytest.mark.requirement("R2.2", "R2.3")
def test_what_must_not_go_and_what_may_have_a_redis_each():
    """R2.2, R2.3: one keeps its keys with a log and a snapshot every 15 minutes, the other evicts the least used."""
    kept, cache = (options_of(SERVICES[name]["command"]) for name in ("redis", "redis-cache"))
    assert kept["maxmemory-policy"] == "noeviction"
    assert (kept["appendonly"], kept["appendfsync"], kept["save"]) == ("yes", "everysec", "900 1")
    assert (cache["maxmemory-policy"], cache["appendonly"], cache["save"]) == ("allkeys-lru", "no", "")
    assert "maxmemory" in cache
    for service in OURS.values():
        assert service["environment"]["REDIS_URL"] == "redis://redis:6379/0"
        assert service["environment"]["REDIS_CACHE_URL"] == "redis://redis-cache:6379/0"


def options_of(command: list[str]) -> dict[str, str]:
    """The options with which a server is started."""
    said = " ".join(word or '""' for word in command[1:]).removeprefix("--").split(" --")
    return {name: value.strip('"') for name, _, value in (option.partition(" ") for option in said)}


def test_named_volumes_and_configs_are_declared():
    """Volumes and configs that a service mounts are declared at the end of the file, and nothing else is."""
    named = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    mounted = {name for name in named if not name.startswith("./")}
    configs = {config["source"] for service in SERVICES.values() for config in service.get("configs", [])}
    assert mounted == set(COMPOSE["volumes"])
    assert configs == set(COMPOSE["configs"])


def test_every_setting_is_known():
    """A name in the environment of one of our services is in the settings catalogue."""
    for name, service in OURS.items():
        assert set(service["environment"]) <= set(SETTINGS), name


@pytest.mark.parametrize("arguments", own_commands(), ids=" ".join)
def test_every_command_is_there(arguments: tuple[str, ...]):
    """A command that the file runs is one that the program has."""
    program = Path(sys.executable).with_name("highwater")
    answer = subprocess.run([program, *arguments, "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr

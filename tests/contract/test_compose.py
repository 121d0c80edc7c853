"""docker-compose.kafka.yml against the rest of the project: services, settings and commands it names are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.kafka.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("highwater:")}
BROKERS = {name: service for name, service in SERVICES.items() if service["image"].startswith("apache/kafka:")}


def own_commands() -> list[tuple[str, ...]]:
    """Return every `highwater …` of the file: what a service of ours runs and how its health is asked."""
    found = [tuple(service["command"]) for service in OURS.values()]
    tests = [service["healthcheck"].get("test", []) for service in OURS.values()]
    found += [tuple(test[2:]) for test in tests if test[:2] == ["CMD", "highwater"]]
    return sorted(set(found))


def test_three_brokers_form_one_quorum():
    """Three brokers with one cluster id each vote, under the address that all are told."""
    environments = [broker["environment"] for broker in BROKERS.values()]
    assert len(BROKERS) == 3
    assert len({environment["CLUSTER_ID"] for environment in environments}) == 1
    voters = {f"{broker['environment']['KAFKA_NODE_ID']}@{name}:9093" for name, broker in BROKERS.items()}
    for environment in environments:
        assert set(environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")) == voters


def test_each_broker_advertises_its_own_name():
    """A client that was given one broker's name can reach it there, and is given all three."""
    for name, broker in BROKERS.items():
        assert broker["environment"]["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
    for service in OURS.values():
        servers = service["environment"]["KAFKA_BOOTSTRAP_SERVERS"].split(",")
        assert sorted(servers) == sorted(f"{name}:9092" for name in BROKERS)


def test_an_acknowledged_write_survives_one_broker():
    """Every topic, the internal ones too, has three replicas of which two acknowledge."""
    for broker in BROKERS.values():
        environment = broker["environment"]
        assert {value for name, value in environment.items() if name.endswith("REPLICATION_FACTOR")} == {"3"}
        assert environment["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
        assert {value for name, value in environment.items() if name.endswith("MIN_ISR")} == {"2"}


def test_dependencies_name_services_and_can_be_met():
    """A dependency names a service of the file, and one that waits for health waits for a service that tells it."""
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


def test_every_service_of_ours_tells_its_health():
    """Each role is asked by `highwater health` at the port it was given; the one-shot says that it is not."""
    for name, service in OURS.items():
        if name == "init":
            assert service["healthcheck"] == {"disable": True}
        else:
            assert service["healthcheck"]["test"] == ["CMD", "highwater", "health"]
            assert service["environment"]["HIGHWATER_HEALTH_PORT"].isdigit()


def test_named_volumes_and_configs_are_declared():
    """What a service mounts is declared at the end of the file, and nothing else is."""
    mounted = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    configs = {config["source"] for service in SERVICES.values() for config in service.get("configs", [])}
    assert mounted == set(COMPOSE["volumes"])
    assert configs == set(COMPOSE["configs"])


def test_every_setting_is_known():
    """A name in the environment of a service of ours is in the settings catalogue."""
    from highwater.streams.settings import SETTINGS

    for name, service in OURS.items():
        assert set(service["environment"]) <= set(SETTINGS), name


@pytest.mark.parametrize("arguments", own_commands(), ids=" ".join)
def test_every_command_is_there(arguments: tuple[str, ...]):
    """A command that the file runs is one that the program has."""
    program = Path(sys.executable).with_name("highwater")
    answer = subprocess.run([program, *arguments, "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr

"""The manifests of `deploy/kubernetes`: current, what the compose file runs, and with nothing open that need not be."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from highwater.connectors.kafka.groups import KAFKA_GROUP_PREFIX, WORKER_KAFKA_GROUP
from highwater.deploy.kubernetes.__main__ import main
from highwater.deploy.kubernetes.generate import FOLDER, files
from highwater.schemas.topics import PARTITIONS, TOPICS, all_topics, use_partitions
from highwater.streams.processes import PRINCIPALS
from highwater.streams.settings import SETTINGS, read_settings
from tests.compose import BROKERS, OURS

OBJECTS: list[dict[str, Any]] = [
    one for path in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
ROLES = sorted(set(OURS) - {"init"})
# Variables of the file's environment that are elsewhere here, and variables that are not settings but parts of others.
ELSEWHERE = {
    *("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_SECURITY_PROTOCOL", "KAFKA_SASL_MECHANISM", "HIGHWATER_KAFKA_PRINCIPALS"),
    *("SCHEMA_REGISTRY_URL", "DATABASE_URL", "REDIS_URL", "REDIS_CACHE_URL"),
}
MADE_OF = {"REDIS_PASSWORD"}


def named(kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind by name."""
    return {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == kind}


DEPLOYMENTS, POLICIES = named("Deployment"), named("NetworkPolicy")
TEMPLATES = {
    name: one["spec"]["template"] for kind in ("Deployment", "StatefulSet", "Job") for name, one in named(kind).items()
}


def container(name: str) -> dict[str, Any]:
    """The one container of a workload."""
    (found,) = TEMPLATES[name]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(name: str) -> dict[str, str | None]:
    """Its variables; None where a Secret has the value."""
    return {one["name"]: one.get("value") for one in container(name)["env"]}


def selects(selector: Mapping[str, str], name: str) -> bool:
    """Whether labels are among those of a workload's pods."""
    return selector.items() <= TEMPLATES[name]["metadata"]["labels"].items()


def test_the_manifests_are_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The files in the repository equal the output of the generator; a file that differs is named."""
    assert main(["--check"]) == 0
    assert main(["--into", str(tmp_path)]) == 0
    (tmp_path / "api.yaml").write_text("", encoding="utf-8")
    assert main(["--into", str(tmp_path), "--check"]) == 1
    assert "api.yaml: out of date" in capsys.readouterr().err


def test_every_file_is_applied():
    """The kustomization lists each file beside it, and sets the image that the workloads name."""
    found = named_kustomization()
    assert sorted(found["resources"]) == sorted({path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"})
    images = {container(name)["image"].partition(":")[0] for name in OURS}
    assert images == {image["name"] for image in found["images"]}


def named_kustomization() -> dict[str, Any]:
    """The kustomization, which has no name."""
    text = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_role_is_run_as_the_compose_file_runs_it(name: str):
    """The same command; the same variables, with the same values except for addresses and secrets; each one a setting."""
    file, here = OURS[name]["environment"], environment(name)
    assert container(name)["args"] == OURS[name]["command"]
    assert set(file) - set(here) <= {"HIGHWATER_KAFKA_PRINCIPALS"}  # Strimzi sets up the users
    literal = {key: value for key, value in file.items() if key not in ELSEWHERE and not value.startswith("${")}
    assert literal == {key: here[key] for key in literal}
    assert set(here) - MADE_OF <= set(SETTINGS)
    assert read_settings({key: value for key, value in here.items() if value and key not in MADE_OF}).partitions == 8
    grace = TEMPLATES[name]["spec"].get("terminationGracePeriodSeconds", 30)
    assert f"{grace}s" == OURS[name]["stop_grace_period"]


def test_there_are_no_other_workloads():
    """Roles, `init`, the registry and both Redis; Kafka and PostgreSQL are their operators'."""
    assert sorted(DEPLOYMENTS) == sorted([*ROLES, "registry"])
    assert sorted(named("StatefulSet")) == ["redis", "redis-cache"]
    assert sorted(named("Job")) == ["init"]


@pytest.mark.parametrize("name", ROLES)
def test_probes_ask_where_the_role_listens(name: str):
    """Each probe and the Service go to the port of the role's environment, on every address of the pod."""
    found = environment(name)
    port = found["HIGHWATER_PORT" if name == "api" else "HIGHWATER_HEALTH_PORT"]
    assert found["HIGHWATER_HOST"] == "0.0.0.0"
    (listens,) = container(name)["ports"]
    assert str(listens["containerPort"]) == port
    probes = {kind: container(name)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {listens["name"]}
    assert [probes[kind]["path"] for kind in ("startup", "liveness", "readiness")] == [
        "/healthz",
        "/healthz",
        "/readyz",
    ]
    (reached,) = named("Service")[name]["spec"]["ports"]
    assert (str(reached["port"]), reached["targetPort"]) == (port, listens["name"])
    assert selects(named("Service")[name]["spec"]["selector"], name)


@pytest.mark.parametrize("name", [*ROLES, "registry"])
def test_a_machine_may_be_drained(name: str):
    """Two of each at least, a budget that lets one go at a time, and fellows on other machines where there are any."""
    budget = named("PodDisruptionBudget")[name]["spec"]
    assert (budget["maxUnavailable"], selects(budget["selector"]["matchLabels"], name)) == (1, True)
    scaled = named("ScaledObject").get(name, {}).get("spec", {})
    assert scaled.get("minReplicaCount", DEPLOYMENTS[name]["spec"].get("replicas")) == 2
    (spread,) = TEMPLATES[name]["spec"]["topologySpreadConstraints"]
    assert selects(spread["labelSelector"]["matchLabels"], name)


def test_roles_are_scaled_by_the_lag_of_their_consumers():
    """Each consumer of the catalogue is a trigger of the one role that runs it, and no role is given more than partitions."""
    triggers = [
        (trigger["metadata"]["consumerGroup"], name)
        for name, one in named("ScaledObject").items()
        for trigger in one["spec"]["triggers"]
    ]
    readers = {reader for topic in TOPICS.values() for reader in topic.consumers} - {"worker"}
    assert sorted(group for group, _ in triggers) == sorted(
        [WORKER_KAFKA_GROUP, *(f"{KAFKA_GROUP_PREFIX}{reader}" for reader in readers)]
    )
    assert {name for _, name in triggers} == set(ROLES) - {"api"}
    for name, one in named("ScaledObject").items():
        assert one["spec"]["scaleTargetRef"]["name"] == name
        assert one["spec"]["maxReplicaCount"] == PARTITIONS
        assert "replicas" not in DEPLOYMENTS[name]["spec"]
        (login,) = {t["authenticationRef"]["name"] for t in one["spec"]["triggers"]}
        secrets = named("TriggerAuthentication")[login]["spec"]["secretTargetRef"]
        assert [secret["name"] for secret in secrets] == [
            environment(name)["KAFKA_SASL_USERNAME"],
            "highwater-cluster-ca-cert",
        ]


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_setting_can_be_set_without_a_change_of_a_manifest(name: str):
    """By a ConfigMap or a Secret that need not exist; files that settings name are in the same folder as with compose."""
    assert container(name)["envFrom"] == [
        {"configMapRef": {"name": "highwater-settings", "optional": True}},
        {"secretRef": {"name": "highwater-settings", "optional": True}},
    ]
    (mount,) = [mount for mount in container(name)["volumeMounts"] if mount["name"] == "files"]
    assert f"./config:{mount['mountPath']}:ro" in OURS[name]["volumes"]


def test_users_of_kafka_have_the_rights_of_their_processes():
    """One user for each kind of process and for producers; only the operator, whose user `init` has, may do everything."""
    users = named("KafkaUser")
    assert set(users) == {"highwater", *(f"highwater-{name}" for name in PRINCIPALS)}
    assert named("Kafka")["highwater"]["spec"]["kafka"]["authorization"]["superUsers"] == ["highwater"]
    assert [name for name, user in users.items() if "authorization" not in user["spec"]] == ["highwater"]
    for name in OURS:
        assert environment(name)["KAFKA_SASL_USERNAME"] == ("highwater" if name == "init" else f"highwater-{name}")
    producer = users["highwater-producer"]["spec"]["authorization"]["acls"]
    assert {(acl["resource"]["name"], *acl["operations"]) for acl in producer} == {
        (topic.name, "Write") for topic in TOPICS.values() if topic.outsider and not topic.is_grant
    }


def test_topics_are_the_catalogues():
    """One KafkaTopic each, with the catalogue's partitions and settings, three times."""
    found = {name: one["spec"] for name, one in named("KafkaTopic").items()}
    assert set(found) == {topic.name for topic in all_topics()}
    for topic in all_topics():
        spec = found[topic.name]
        assert (spec["partitions"], spec["replicas"]) == (topic.partitions, 3)
        assert {key: str(value) for key, value in spec["config"].items()} == topic.config()


def test_another_number_of_partitions_reaches_everything():
    """Topics, the setting of each process and the bound of scaling follow `--partitions`."""
    try:
        text = files(24)
    finally:
        use_partitions(PARTITIONS)
    topics = list(yaml.safe_load_all(text["topics.yaml"]))
    assert {one["spec"]["partitions"] for one in topics} == {1, 24}
    for name in OURS:
        assert "name: HIGHWATER_PARTITIONS\n          value: '24'" in text[f"{name}.yaml"]
    assert "maxReplicaCount: 24" in text["worker.yaml"]


def test_brokers_are_set_as_in_the_compose_file():
    """Three nodes; what an acknowledged write needs, and that no topic makes itself, is the file's."""
    config = named("Kafka")["highwater"]["spec"]["kafka"]["config"]
    (pool,) = named("KafkaNodePool").values()
    assert pool["spec"]["replicas"] == len(BROKERS) == 3
    environment = BROKERS["kafka-1"]["environment"]
    for name in ("MIN_INSYNC_REPLICAS", "DEFAULT_REPLICATION_FACTOR", "OFFSETS_TOPIC_REPLICATION_FACTOR"):
        assert str(config[name.lower().replace("_", ".")]) == environment[f"KAFKA_{name}"]
    assert (config["auto.create.topics.enable"], config["log.retention.ms"]) == (False, -1)
    (listener,) = named("Kafka")["highwater"]["spec"]["kafka"]["listeners"]
    assert (listener["tls"], listener["authentication"]["type"]) == (True, "scram-sha-512")


# Workload or operator's pods -> which pods connect to which port; None: any.
ARROWS: Mapping[str, Mapping[int, set[str] | None]] = {
    "registry": {8080: {"clients"}},
    "redis": {6379: {"clients"}},
    "redis-cache": {6379: {"clients"}},
    "postgres": {5432: {"clients", "registry", "postgres", "cnpg-system"}, 8000: {"postgres", "cnpg-system"}},
    **{name: {8090: {"monitoring"}} for name in ROLES if name != "api"},
    "api": {8080: None},
}


def who(peer: Mapping[str, Any]) -> str:
    """A peer of a policy by a short name."""
    pods = peer.get("podSelector", {}).get("matchLabels", {})
    if "highwater.dev/client" in pods:
        return "clients"
    if "namespaceSelector" in peer:
        (label, value), *_ = peer["namespaceSelector"]["matchLabels"].items()
        return "monitoring" if label == "highwater.dev/monitoring" else str(value)
    return str(pods.get("app.kubernetes.io/name") or pods.get("cnpg.io/cluster"))


def test_policies_cover_each_arrow():
    """Only the arrows above are permitted; every client has the label that the policies name, and Kafka permits the same."""
    assert set(POLICIES) == {"nothing-else", *ARROWS}
    closed = POLICIES["nothing-else"]["spec"]
    assert closed["ingress"] == []
    assert all(selects(closed["podSelector"]["matchLabels"], name) for name in TEMPLATES)
    for name, arrows in ARROWS.items():
        rules = POLICIES[name]["spec"]["ingress"]
        found = {
            rule["ports"][0]["port"]: {who(peer) for peer in rule["from"]} if "from" in rule else None for rule in rules
        }
        assert found == dict(arrows)
        if name in TEMPLATES:
            assert selects(POLICIES[name]["spec"]["podSelector"]["matchLabels"], name)
    clients = {name for name, template in TEMPLATES.items() if "highwater.dev/client" in template["metadata"]["labels"]}
    assert clients == set(OURS)
    (listener,) = named("Kafka")["highwater"]["spec"]["kafka"]["listeners"]
    peers = [next(iter(peer.values()))["matchLabels"] for peer in listener["networkPolicyPeers"]]
    assert {"highwater.dev/client": "true"} in peers


def test_secrets_are_never_in_the_files():
    """No Secret, and no password in a variable: a secret setting is a reference, or made of one."""
    assert named("Secret") == {}
    secret = {
        name
        for name in (*SETTINGS, *MADE_OF, "REDISCLI_AUTH", "APICURIO_DATASOURCE_PASSWORD")
        if name in MADE_OF or re.search("PASSWORD$|_KEY$|_KEYS$|_SECRET$|_TOKEN$|AUTH$|DATABASE_URL", name)
    }
    for name in TEMPLATES:
        for key, value in environment(name).items():
            if key in secret:
                assert value is None, f"{name}: {key}"
            if key in {"REDIS_URL", "REDIS_CACHE_URL"}:
                assert value is not None
                assert value.startswith("redis://:$(REDIS_PASSWORD)@")


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_pods_have_no_right_that_they_do_not_need(name: str):
    """No root, no way to it, no access to the cluster; variables by the names of Services would be unknown settings."""
    spec = TEMPLATES[name]["spec"]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert container(name)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert "memory" in container(name)["resources"]["limits"]


@pytest.mark.skipif(
    "HIGHWATER_KUBERNETES_SCHEMAS" not in os.environ,
    reason="HIGHWATER_KUBERNETES_SCHEMAS names a folder of published schemas (deploy/kubernetes/README.md)",
)
def test_every_object_is_valid_by_the_published_schemas():
    """Each object is what its published schema says, with no field that the schema does not know."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    folder = Path(os.environ["HIGHWATER_KUBERNETES_SCHEMAS"])
    own = custom_schemas(folder)
    definitions = folder / "kubernetes" / "_definitions.json"
    resources = [("https://kubernetes.io/api/_definitions.json", json.loads(definitions.read_text(encoding="utf-8")))]
    registry = jsonschema.Registry(resources)
    wrong = []
    for one in (one for one in OBJECTS if one["kind"] != "Kustomization"):
        group, _, version = one["apiVersion"].rpartition("/")
        schema = own.get((one["apiVersion"], one["kind"]))
        if schema is None:
            name = "-".join(filter(None, (one["kind"].lower(), group.partition(".")[0], version)))
            schema = json.loads((folder / "kubernetes" / f"{name}.json").read_text(encoding="utf-8"))
        validator = jsonschema.validator_for(schema, registry=registry)
        wrong += [f"{one['kind']} {one['metadata']['name']}: {error}" for error in validator.iter_errors(one)]
    assert wrong == []


def custom_schemas(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The schemas of custom resources by version and kind; below `spec` a field that they do not name is refused."""
    found = {}
    for path in folder.glob("*.yaml"):
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        for version in definition["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            close(schema["properties"]["spec"])
            found[f"{definition['group']}/{version['name']}", definition["names"]["kind"]] = schema
    return found


def close(schema: Any) -> None:
    """Refuse unknown fields, as the cluster does not store them."""
    if isinstance(schema, dict):
        is_closed = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
        if is_closed and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        close(inner)

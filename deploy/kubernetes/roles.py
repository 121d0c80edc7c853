"""The roles: the services of the compose file, two of each, and more when consumers lag."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.connectors.run import resolve_names
from highwater.deploy.kubernetes.compose import Service, is_required
from highwater.deploy.kubernetes.parts import (
    CLIENT,
    FILES,
    FILES_FOLDER,
    KAFKA,
    KAFKA_CA_SECRET,
    KAFKA_PORT,
    KAFKA_USER,
    POSTGRES,
    REDIS_PORT,
    REGISTRY_PORT,
    ROLE,
    SECRETS,
    SETTINGS,
    USER_ID,
    Manifest,
    disruption_budget,
    from_secret,
    labels,
    manifest,
    pod,
    resources,
    service,
)
from highwater.schemas.topics import TOPICS
from highwater.streams.processes import PROCESSES, USER_PREFIX

_IMAGE = "highwater:latest"  # kustomization.yaml says where it is
_BOOTSTRAP = f"{KAFKA}-kafka-bootstrap:{KAFKA_PORT}"
_CA_FOLDER = "/etc/highwater/kafka"
_DATA_FOLDER = "/var/lib/highwater/data"
_REPLICAS_MIN = 2  # one may be lost, or drained
# Lag per process before another is added: a second or two of a sink's work, minutes of a worker that computes.
_LAG_EVENTS = 1_000
# Kafka's names of the readers of our topics (connectors/kafka/groups.py).
_GROUP_PREFIX, _WORKER_GROUP = "highwater-", "highwater-feeds"


# Strimzi gives users their passwords and rights (kafka.yaml), in place of `init`.
_STRIMZIS_OWN = "HIGHWATER_KAFKA_PRINCIPALS"


def _services_addresses(user: str) -> list[Manifest]:
    """Return the addresses of the services, replacing the compose file's; `user` is the one of Kafka."""
    return [
        {"name": "KAFKA_BOOTSTRAP_SERVERS", "value": _BOOTSTRAP},
        {"name": "KAFKA_SECURITY_PROTOCOL", "value": "SASL_SSL"},
        {"name": "KAFKA_SASL_MECHANISM", "value": "SCRAM-SHA-512"},
        {"name": "KAFKA_SASL_USERNAME", "value": user},
        from_secret("KAFKA_SASL_PASSWORD", user, "password"),
        {"name": "KAFKA_SSL_CA_LOCATION", "value": f"{_CA_FOLDER}/ca.crt"},
        {"name": "SCHEMA_REGISTRY_URL", "value": f"http://registry:{REGISTRY_PORT}/apis/ccompat/v7"},
        from_secret("DATABASE_URL", f"{POSTGRES}-app", "uri"),
        # Before the addresses that refer to it.
        from_secret("REDIS_PASSWORD", SECRETS, "REDIS_PASSWORD"),
        {"name": "REDIS_URL", "value": f"redis://:$(REDIS_PASSWORD)@redis:{REDIS_PORT}/0"},
        {"name": "REDIS_CACHE_URL", "value": f"redis://:$(REDIS_PASSWORD)@redis-cache:{REDIS_PORT}/0"},
    ]


def environment(one: Service, partitions: int) -> list[Manifest]:
    """Return the compose file's environment with this cluster's addresses and the Secret's values; the rest is unchanged."""
    found = _services_addresses(f"{USER_PREFIX}{one.name}" if one.name in PROCESSES else KAFKA_USER)
    named = {variable["name"] for variable in found}
    for name, value in one.environment.items():
        required = is_required(value)
        if name in named or name == _STRIMZIS_OWN:
            continue
        if required is None:
            found.append({"name": name, "value": value})
        else:
            found.append(from_secret(name, SECRETS, name, optional=not required))
    return [*found, {"name": "HIGHWATER_PARTITIONS", "value": str(partitions)}]


def role(one: Service, partitions: int) -> list[Manifest]:
    """Return a role's Deployment, with its Service, disruption budget and scaling."""
    found = [_deployment(one, partitions), disruption_budget(one.name)]
    assert one.port is not None
    found.append(service(one.name, one.port, is_headless=not one.is_api))
    groups = consumer_groups(one)
    return [*found, *_scaling(one.name, groups, partitions)] if groups else found


def init(one: Service, partitions: int) -> Manifest:
    """Return the Job that upgrades topics, schemas and tables to this version; repeated while services start."""
    container = _container(one, partitions)
    template = pod(
        one.name, [container], volumes=_volumes(), more_labels=CLIENT, user_id=USER_ID, restartPolicy="OnFailure"
    )
    spec = {"backoffLimit": 30, "ttlSecondsAfterFinished": 86_400, "template": template}
    return manifest("batch/v1", "Job", one.name, spec=spec)


def consumer_groups(one: Service) -> list[str]:
    """Return the consumer groups of a role that read our topics, by Kafka's names; none for the API and `init`."""
    if one.command == ("worker",):
        return [_WORKER_GROUP]
    if one.command[0] != "connect":
        return []
    readers = {reader for topic in TOPICS.values() for reader in topic.consumers}
    return [f"{_GROUP_PREFIX}{name}" for name in resolve_names(one.command[1:]) if name in readers]


def _trigger_authentication(role: str) -> Manifest:
    """Return how KEDA logs in to Kafka: as the role whose lag it reads."""
    secrets = [
        {"parameter": "password", "name": f"{USER_PREFIX}{role}", "key": "password"},
        {"parameter": "ca", "name": KAFKA_CA_SECRET, "key": "ca.crt"},
    ]
    # Strimzi's Secret contains no user name: it is read from the environment of the scaled role.
    user = {"parameter": "username", "name": "KAFKA_SASL_USERNAME"}
    spec = {"env": [user], "secretTargetRef": secrets}
    return manifest("keda.sh/v1alpha1", "TriggerAuthentication", f"kafka-{role}", spec=spec)


def _deployment(one: Service, partitions: int) -> Manifest:
    port = {"name": "http", "containerPort": one.port}
    alive = {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 3}
    container = {
        **_container(one, partitions),
        "ports": [port],
        # A role that waits for a service, or restores its tables, is alive and not ready.
        "startupProbe": {**alive, "failureThreshold": 30},
        "livenessProbe": {**alive, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 3},
    }
    template = pod(
        one.name,
        [container],
        volumes=_volumes(),
        more_labels={**CLIENT, **ROLE},
        user_id=USER_ID,
        terminationGracePeriodSeconds=one.grace_seconds,
    )
    # If KEDA scales, only KEDA sets the number: applying this again must not reset it.
    replicas = {} if consumer_groups(one) else {"replicas": _REPLICAS_MIN}
    spec = {**replicas, "selector": {"matchLabels": labels(one.name)}, "template": template}
    return manifest("apps/v1", "Deployment", one.name, spec=spec)


def _container(one: Service, partitions: int) -> Manifest:
    return {
        "name": one.name,
        "image": _IMAGE,
        "args": list(one.command),
        # What `env` has as well counts there.
        "envFrom": [{kind: {"name": SETTINGS, "optional": True}} for kind in ("configMapRef", "secretRef")],
        "env": environment(one, partitions),
        "volumeMounts": [
            {"name": "files", "mountPath": FILES_FOLDER, "readOnly": True},
            {"name": "kafka-ca", "mountPath": _CA_FOLDER, "readOnly": True},
            {"name": "data", "mountPath": _DATA_FOLDER},
        ],
        "resources": resources("256Mi", "1Gi", "100m"),
    }


def _volumes() -> list[Manifest]:
    """Return the brokers' authority, a folder for data (tables are restored from their changelogs), and the files of settings."""
    authority = {"secretName": KAFKA_CA_SECRET, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    files = {"name": FILES, "optional": True}
    return [
        {"name": "kafka-ca", "secret": authority},
        {"name": "data", "emptyDir": {}},
        {"name": "files", "configMap": files},
    ]


def _scaling(name: str, groups: Iterable[str], partitions: int) -> list[Manifest]:
    """Add processes while a consumer of the role lags; one process reads a partition, so at most as many as partitions."""
    common = {
        "bootstrapServers": _BOOTSTRAP,
        "lagThreshold": str(_LAG_EVENTS),
        "offsetResetPolicy": "earliest",
        "sasl": "scram_sha512",
        "tls": "enable",
    }
    triggers = [
        {
            "type": "kafka",
            "metadata": {**common, "consumerGroup": group},
            "authenticationRef": {"name": f"kafka-{name}"},
        }
        for group in groups
    ]
    spec = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": _REPLICAS_MIN,
        "maxReplicaCount": partitions,
        # Each change of the number of processes causes a rebalance: not for every short peak.
        "cooldownPeriod": 600,
        "triggers": triggers,
    }
    return [_trigger_authentication(name), manifest("keda.sh/v1alpha1", "ScaledObject", name, spec=spec)]

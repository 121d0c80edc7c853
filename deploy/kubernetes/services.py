"""Kafka, PostgreSQL, Redis and the registry: by Strimzi, by CloudNativePG, and two workloads of our own."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.connectors.kafka.acls import Rule
from highwater.connectors.principals import rules_of
from highwater.deploy.kubernetes.compose import broker_config, image_of, server_options
from highwater.deploy.kubernetes.parts import (
    CLIENT,
    KAFKA,
    KAFKA_PORT,
    KAFKA_USER,
    POSTGRES,
    REDIS_PORT,
    REGISTRY_PORT,
    SECRETS,
    Manifest,
    disruption_budget,
    from_secret,
    labels,
    manifest,
    pod,
    resources,
    service,
)
from highwater.schemas.topics import Topic
from highwater.streams.processes import PRINCIPALS, USER_PREFIX

_BROKERS, _REPLICAS = 3, 3
_STRIMZI = "kafka.strimzi.io/v1"
_REGISTRY_USER_ID, _REDIS_USER_ID = 1001, 999  # of the images


def kafka() -> list[Manifest]:
    """Return three brokers, each also a controller, with one listener: TLS, and a password for every client."""
    clients = [
        {"podSelector": {"matchLabels": CLIENT}},
        {"podSelector": {"matchLabels": {"strimzi.io/cluster": KAFKA}}},
        # KEDA reads the lag of the consumers.
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}},
    ]
    listener = {
        "name": "tls",
        "port": KAFKA_PORT,
        "type": "internal",
        "tls": True,
        "authentication": {"type": "scram-sha-512"},
        "networkPolicyPeers": clients,
    }
    config = {name: _number(value) for name, value in broker_config().items()}
    cluster = {"strimzi.io/cluster": KAFKA}
    disk = {"type": "persistent-claim", "size": "100Gi", "deleteClaim": False}
    pool = {
        "replicas": _BROKERS,
        "roles": ["controller", "broker"],
        "storage": {"type": "jbod", "volumes": [{"id": 0, "kraftMetadata": "shared", **disk}]},
        "resources": resources("2Gi", "2Gi", "500m"),
    }
    return [
        manifest(
            _STRIMZI, "KafkaNodePool", "brokers", metadata={"labels": {**labels("brokers"), **cluster}}, spec=pool
        ),
        manifest(
            _STRIMZI,
            "Kafka",
            KAFKA,
            spec={
                "kafka": {
                    "listeners": [listener],
                    "authorization": {"type": "simple", "superUsers": [KAFKA_USER]},
                    "config": config,
                },
                "entityOperator": {"topicOperator": {}, "userOperator": {}},
            },
        ),
    ]


def kafka_users() -> list[Manifest]:
    """Return the operator, and the user of each kind of process and of outside producers with its rights."""
    others = (_user(f"{USER_PREFIX}{name}", _authorization(rules_of(name))) for name in PRINCIPALS)
    return [_user(KAFKA_USER, {}), *others]


def _user(name: str, authorization: Manifest) -> Manifest:
    """Return a user of Kafka; the operator puts its password into the Secret of that name."""
    metadata = {"labels": {**labels(name), "strimzi.io/cluster": KAFKA}}
    spec = {"authentication": {"type": "scram-sha-512"}, **authorization}
    return manifest(_STRIMZI, "KafkaUser", name, metadata=metadata, spec=spec)


def _authorization(rules: Iterable[Rule]) -> Manifest:
    acls = [{"resource": _resource(rule), "operations": list(rule.operations)} for rule in rules]
    return {"authorization": {"type": "simple", "acls": acls}}


def _resource(rule: Rule) -> Manifest:
    if rule.kind == "cluster":  # there is one
        return {"type": rule.kind}
    return {"type": rule.kind, "name": rule.name, "patternType": "prefix" if rule.is_prefix else "literal"}


def topics(catalogue: Iterable[Topic]) -> list[Manifest]:
    """Return every topic of the catalogue, as `highwater init` would create it; the worker creates changelogs."""
    return [
        manifest(
            _STRIMZI,
            "KafkaTopic",
            topic.name,
            metadata={"labels": {**labels("topic"), "strimzi.io/cluster": KAFKA}},
            spec={
                "partitions": topic.partitions,
                "replicas": _REPLICAS,
                "config": {name: _number(value) for name, value in topic.config().items()},
            },
        )
        for topic in catalogue
    ]


def _number(value: str) -> str | int | bool:
    """Return a value as the operator compares it: numbers as numbers."""
    if value in {"true", "false"}:
        return value == "true"
    return int(value) if value.removeprefix("-").isdecimal() else value


def postgres() -> list[Manifest]:
    """Return three instances, of which one writes; the operator creates the Secret `postgres-app` with the address."""
    spec: Manifest = {
        "instances": 3,
        "imageName": "ghcr.io/cloudnative-pg/postgresql:18-standard-trixie",  # has pgvector
        "storage": {"size": "50Gi"},
        "resources": resources("2Gi", "2Gi", "500m"),
        # A commit is on two machines before it is acknowledged, like a record of Kafka.
        "postgresql": {
            "parameters": {"max_connections": "400"},
            "synchronous": {"method": "any", "number": 1, "dataDurability": "required"},
        },
        "bootstrap": {
            "initdb": {
                "database": "highwater",
                "owner": "highwater",
                "postInitSQL": ["CREATE DATABASE registry OWNER highwater"],
                "postInitApplicationSQL": ["CREATE EXTENSION IF NOT EXISTS vector"],
            }
        },
    }
    return [manifest("postgresql.cnpg.io/v1", "Cluster", POSTGRES, spec=spec)]


def registry() -> list[Manifest]:
    """Return two processes over the database `registry`."""
    name = "registry"
    probe = {"httpGet": {"path": "/apis/ccompat/v7/subjects", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    container = {
        "name": name,
        "image": image_of(name),
        "env": [
            {"name": "APICURIO_STORAGE_KIND", "value": "sql"},
            {"name": "APICURIO_STORAGE_SQL_KIND", "value": "postgresql"},
            {"name": "APICURIO_DATASOURCE_URL", "value": f"jdbc:postgresql://{POSTGRES}-rw:5432/registry"},
            from_secret("APICURIO_DATASOURCE_USERNAME", f"{POSTGRES}-app", "username"),
            from_secret("APICURIO_DATASOURCE_PASSWORD", f"{POSTGRES}-app", "password"),
            {"name": "QUARKUS_HTTP_PORT", "value": str(REGISTRY_PORT)},
        ],
        "ports": [{"name": "http", "containerPort": REGISTRY_PORT}],
        "readinessProbe": probe,
        "startupProbe": {**probe, "failureThreshold": 30},
        "resources": resources("512Mi", "1Gi", "100m"),
    }
    template = pod(name, [container], user_id=_REGISTRY_USER_ID)
    spec = {"replicas": 2, "selector": {"matchLabels": labels(name)}, "template": template}
    return [
        manifest("apps/v1", "Deployment", name, spec=spec),
        service(name, REGISTRY_PORT),
        disruption_budget(name),
    ]


def redis() -> list[Manifest]:
    """Return one for durable data, with a disk, and one for caches."""
    return [*_redis("redis", disk="10Gi"), *_redis("redis-cache", disk=None)]


def _redis(name: str, *, disk: str | None) -> list[Manifest]:
    probe = {"exec": {"command": ["redis-cli", "ping"]}, "periodSeconds": 10, "timeoutSeconds": 3}
    container: Manifest = {
        "name": "redis",
        "image": image_of(name),
        "args": [*server_options(name), "--requirepass", "$(REDIS_PASSWORD)"],
        "env": [
            from_secret("REDIS_PASSWORD", SECRETS, "REDIS_PASSWORD"),
            from_secret("REDISCLI_AUTH", SECRETS, "REDIS_PASSWORD"),
        ],
        "ports": [{"name": "redis", "containerPort": REDIS_PORT}],
        "readinessProbe": probe,
        "livenessProbe": {**probe, "failureThreshold": 6},
        "resources": resources("512Mi", "1Gi", "100m"),
    }
    if disk is not None:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec: Manifest = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": labels(name)},
        "template": pod(name, [container], user_id=_REDIS_USER_ID),
    }
    if disk is not None:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": disk}}}
        spec["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
    return [manifest("apps/v1", "StatefulSet", name, spec=spec), service(name, REDIS_PORT, port_name="redis")]

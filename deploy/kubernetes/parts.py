"""The common parts of manifests: names, labels, and pod templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Manifest = dict[str, Any]

APPLICATION = "highwater"
# The Secret that the person who installs it creates: HIGHWATER_API_KEYS, REDIS_PASSWORD, and the optional ones.
SECRETS = "highwater-secrets"
# A ConfigMap and a Secret that the same person may create, with any settings as variables; and a ConfigMap with the files that
# they name, in this folder.
SETTINGS, FILES, FILES_FOLDER = "highwater-settings", "highwater-files", "/etc/highwater/config"
KAFKA, KAFKA_USER = "highwater", "highwater"
KAFKA_PORT, KAFKA_CA_SECRET = 9093, f"{KAFKA}-cluster-ca-cert"
POSTGRES, POSTGRES_PORT = "postgres", 5432
REDIS_PORT, REGISTRY_PORT = 6379, 8080
# The label of clients of the services: every pod of Highwater has it.
CLIENT = {"highwater.dev/client": "true"}
ROLE = {"highwater.dev/role": "true"}
USER_ID = 10_001  # of deploy/Dockerfile


def labels(name: str) -> dict[str, str]:
    """Return the labels by which a workload's pods are found."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": APPLICATION}


def manifest(api: str, kind: str, name: str, **more: Any) -> Manifest:
    """One object."""
    metadata: Manifest = {"name": name, "labels": labels(name), **more.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def from_secret(name: str, secret: str, key: str, *, optional: bool = False) -> Manifest:
    """Return a container variable whose value is a Secret's."""
    reference: Manifest = {"name": secret, "key": key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference | ({"optional": True} if optional else {})}}


def service(name: str, port: int, *, port_name: str = "http", is_headless: bool = False) -> Manifest:
    """Return a Service of a workload's pods; a headless one has the address of each, for Prometheus."""
    spec: Manifest = {"clusterIP": "None"} if is_headless else {}
    ports = [{"name": port_name, "port": port, "targetPort": port_name}]
    return manifest("v1", "Service", name, spec={**spec, "selector": labels(name), "ports": ports})


def disruption_budget(name: str) -> Manifest:
    """Let a drained machine take one pod of a workload at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(name)}}
    return manifest("policy/v1", "PodDisruptionBudget", name, spec=spec)


def pod(
    name: str,
    containers: Sequence[Manifest],
    *,
    volumes: Sequence[Manifest] = (),
    more_labels: Mapping[str, str] | None = None,
    user_id: int | None = None,
    **spec: Any,
) -> Manifest:
    """Return a pod's template: minimal rights, and replicas on other machines."""
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if user_id is not None:
        security |= {"runAsUser": user_id, "runAsGroup": user_id, "fsGroup": user_id}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(name)},
    }
    return {
        "metadata": {"labels": {**labels(name), **(more_labels or {})}},
        "spec": {
            "automountServiceAccountToken": False,
            # Kubernetes would otherwise add variables by the names of Services, including HIGHWATER_* ones that are not
            # settings.
            "enableServiceLinks": False,
            "securityContext": security,
            "topologySpreadConstraints": [spread],
            **spec,
            "containers": [{**container, "securityContext": confined} for container in containers],
            **({"volumes": list(volumes)} if volumes else {}),
        },
    }


def resources(memory: str, memory_max: str, cpu: str) -> Manifest:
    """Return a container's requests, and its memory limit; the processor is not limited."""
    return {"requests": {"memory": memory, "cpu": cpu}, "limits": {"memory": memory_max}}

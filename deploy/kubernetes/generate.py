"""Generates the files of `deploy/kubernetes/manifests`, as text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from highwater.deploy.kubernetes import network, roles, services
from highwater.deploy.kubernetes.compose import own_services
from highwater.schemas.topics import PARTITIONS, all_topics, use_partitions

FOLDER = Path(__file__).parent / "manifests"
_HEAD = "# Written by `python -m highwater.deploy.kubernetes`; change what it is written from.\n"


class _Plain(yaml.SafeDumper):
    """No anchors: each object is complete."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Return true: never use an alias."""
        return True


def files(partitions: int = PARTITIONS) -> dict[str, str]:
    """Return the texts by file name."""
    use_partitions(partitions)
    own = own_services()
    one_shot, *running = own
    written = {
        "kafka.yaml": services.kafka(),
        "users.yaml": services.kafka_users(),
        "topics.yaml": services.topics(all_topics()),
        "postgres.yaml": services.postgres(),
        "redis.yaml": services.redis(),
        "registry.yaml": services.registry(),
        "init.yaml": [roles.init(one_shot, partitions)],
        **{f"{one.name}.yaml": roles.role(one, partitions) for one in running},
        "network.yaml": network.policies(running),
    }
    found = {name: _HEAD + _text(objects) for name, objects in written.items()}
    return found | {"kustomization.yaml": _HEAD + _text([_kustomization(written)])}


def _kustomization(names: Iterable[str]) -> dict[str, Any]:
    """Return what `kubectl apply -k` applies, the namespace, and the image."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "highwater",
        "resources": list(names),
        "images": [{"name": "highwater", "newName": "highwater", "newTag": "latest"}],
    }


def _text(objects: Iterable[dict[str, Any]]) -> str:
    return "---\n".join(yaml.dump(one, Dumper=_Plain, sort_keys=False, width=120) for one in objects)

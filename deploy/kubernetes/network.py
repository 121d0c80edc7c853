"""Who may connect to whom. Outgoing connections of a pod are not limited: models and sources are outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from highwater.deploy.kubernetes.compose import Service
from highwater.deploy.kubernetes.parts import (
    APPLICATION,
    CLIENT,
    POSTGRES,
    POSTGRES_PORT,
    REDIS_PORT,
    REGISTRY_PORT,
    Manifest,
    labels,
    manifest,
)

_CLIENTS: Manifest = {"podSelector": {"matchLabels": CLIENT}}
_REGISTRY: Manifest = {"podSelector": {"matchLabels": labels("registry")}}
_INSTANCES: Manifest = {"podSelector": {"matchLabels": {"cnpg.io/cluster": POSTGRES}}}
_OPERATOR: Manifest = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "cnpg-system"}}}
# The label of the namespace that collects metrics.
_MONITORING: Manifest = {"namespaceSelector": {"matchLabels": {"highwater.dev/monitoring": "true"}}}
_POSTGRES_STATUS_PORT = 8000


def policies(roles: Iterable[Service]) -> list[Manifest]:
    """Allow only the named connections; Strimzi writes the brokers' policy from the listener's `networkPolicyPeers`."""
    found = [
        _policy("nothing-else", {"app.kubernetes.io/part-of": APPLICATION}, []),
        _policy("registry", labels("registry"), [_rule([_CLIENTS], REGISTRY_PORT)]),
        _policy("redis", labels("redis"), [_rule([_CLIENTS], REDIS_PORT)]),
        _policy("redis-cache", labels("redis-cache"), [_rule([_CLIENTS], REDIS_PORT)]),
        _policy(
            POSTGRES,
            {"cnpg.io/cluster": POSTGRES},
            [
                _rule([_CLIENTS, _REGISTRY, _INSTANCES, _OPERATOR], POSTGRES_PORT),
                _rule([_INSTANCES, _OPERATOR], _POSTGRES_STATUS_PORT),
            ],
        ),
    ]
    for one in roles:
        assert one.port is not None
        # The API requires a key; the Ingress or Gateway before it may be anywhere.
        found.append(_policy(one.name, labels(one.name), [_rule([] if one.is_api else [_MONITORING], one.port)]))
    return found


def _policy(name: str, pods: dict[str, str], rules: Sequence[Manifest]) -> Manifest:
    spec = {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"], "ingress": list(rules)}
    return manifest("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)


def _rule(peers: Sequence[Manifest], port: int) -> Manifest:
    """Allow connections from these peers to a port; without peers from everywhere."""
    return {**({"from": list(peers)} if peers else {}), "ports": [{"protocol": "TCP", "port": port}]}

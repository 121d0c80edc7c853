"""Users of the brokers and what each may do: SCRAM passwords and access rules, set as they are declared.

Invariant: a user has its rules and no others. Other users, and rules for all users (`User:*`), stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from highwater.connectors.kafka.admin import REQUEST_SECONDS, Admin
from highwater.streams.access import KafkaAccess

# The minimum of Java's clients (RFC 7677); passwords are random, so more would only cost time.
_ITERATIONS = 4_096
_LOGIN_SECONDS_MAX = 60.0  # six times what a broker on a busy machine took
_EVERYWHERE = "*"  # every host: a connection is known by its user

Kind: TypeAlias = Literal["topic", "group", "cluster"]
# By Kafka's names; Read, Write, Delete and Alter include Describe.
Operation: TypeAlias = Literal["Read", "Write", "Create", "Delete", "Describe", "DescribeConfigs"]
_KINDS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "cluster": ResourceType.BROKER}
_OPERATIONS: Mapping[Operation, AclOperation] = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class Rule(NamedTuple):
    """One right: operations on a resource, or on all whose names begin with `name`; `*` is every name."""

    kind: Kind
    name: str
    operations: tuple[Operation, ...]
    is_prefix: bool = False


async def settle_users(admin: Admin, passwords: Mapping[str, str], rules: Mapping[str, Iterable[Rule]]) -> list[str]:
    """Set the passwords and rules of users, by user; return those whose rules have changed.

    Raises:
        UnavailableError: the broker does not answer, or its user may not do this.
    """
    return await asyncio.to_thread(_settle_users, admin, passwords, rules)


def _settle_users(admin: Admin, passwords: Mapping[str, str], rules: Mapping[str, Iterable[Rule]]) -> list[str]:
    changed = []
    with admin.asking("Kafka does not set its access rules") as client:
        for user, wanted in rules.items():
            # librdkafka refuses an empty list, so each call is made only if there is something to do.
            declared = {binding for rule in wanted for binding in _bindings(user, rule)}
            there = set(
                client.describe_acls(_all_of(user), request_timeout=REQUEST_SECONDS).result(2 * REQUEST_SECONDS)
            )
            if declared == there:
                continue
            changed.append(user)
            # First what is missing: while both versions run neither lacks what both need.
            if missing := declared - there:
                for future in client.create_acls(list(missing), request_timeout=REQUEST_SECONDS).values():
                    future.result(2 * REQUEST_SECONDS)
            if surplus := there - declared:
                asked = client.delete_acls([_exactly(one) for one in surplus], request_timeout=REQUEST_SECONDS)
                for future in asked.values():
                    future.result(2 * REQUEST_SECONDS)
    with admin.asking("Kafka does not set the passwords of its users") as client:
        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
        credentials = [UserScramCredentialUpsertion(user, how, text.encode()) for user, text in passwords.items()]
        for future in client.alter_user_scram_credentials(credentials, request_timeout=REQUEST_SECONDS).values():
            future.result(2 * REQUEST_SECONDS)
        brokers = client.list_topics(timeout=REQUEST_SECONDS).brokers.values()
    for broker in brokers:
        for user, password in passwords.items():
            _await_login(admin, f"{broker.host}:{broker.port}", user, password)
    return changed


def _await_login(admin: Admin, broker: str, user: str, password: str) -> None:
    """Wait until a broker knows a user. The controller answers before the brokers have read of it, ten seconds on a busy machine;
    rules were written before the passwords, so they are known too.
    """
    login = KafkaAccess.of_client(admin.client)
    login = replace(login, brokers=broker, mechanism="SCRAM-SHA-512", username=user, password=password)
    client = {**login.librdkafka(), "reconnect.backoff.max.ms": "200", "log_level": "0"}
    with admin.asking(f"{broker} does not accept the password of {user}"):
        AdminClient(client).list_topics(timeout=_LOGIN_SECONDS_MAX)


def _bindings(user: str, rule: Rule) -> list[AclBinding]:
    pattern = ResourcePatternType.PREFIXED if rule.is_prefix else ResourcePatternType.LITERAL
    resource = (_KINDS[rule.kind], rule.name, pattern, f"User:{user}", _EVERYWHERE)
    return [AclBinding(*resource, _OPERATIONS[one], AclPermissionType.ALLOW) for one in rule.operations]


def _all_of(user: str) -> AclBindingFilter:
    resource = (ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None)
    return AclBindingFilter(*resource, AclOperation.ANY, AclPermissionType.ANY)


def _exactly(binding: AclBinding) -> AclBindingFilter:
    resource = (binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host)
    return AclBindingFilter(*resource, binding.operation, binding.permission_type)

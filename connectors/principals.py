"""The principals of Kafka: one for each kind of process, one for producers from outside; and the rules of each.

Derived from the catalogue of topics: a process may write what the catalogue says that it writes, with the dead letters of what it
reads. Invariants: a process reads every topic of the product (each of them reads all of it in PostgreSQL anyway); a producer from
outside reads nothing and writes the topics of outsiders alone; only the operator's own user changes topics, rules or passwords.

A rule that is no longer listed is removed by the next `highwater init`, so remove a right one version after its last use:
during a rolling upgrade processes of the former version still run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from highwater.connectors.kafka.acls import Rule
from highwater.connectors.kafka.groups import KAFKA_GROUP_PREFIX, WORKER_KAFKA_GROUP
from highwater.connectors.run import resolve_names
from highwater.schemas.errors import ConfigurationError
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, Topic, all_topics
from highwater.streams.processes import API, PRINCIPALS, PROCESSES, PRODUCER, WORKER

EVERY = "*"  # Kafka's own sign for every name


def rules_of(principal: str) -> tuple[Rule, ...]:
    """Return the rights of one of `PRINCIPALS`, each resource once."""
    if principal == PRODUCER:
        return tuple(Rule("topic", topic.name, ("Write",)) for topic in all_topics() if may_write(principal, topic))
    return tuple(_of_process(principal))


def _of_process(principal: str) -> Iterator[Rule]:
    if principal == API:  # it shows the topics and groups of other applications too
        yield Rule("topic", EVERY, ("Read", "DescribeConfigs"))
        yield Rule("group", EVERY, ("Read",))
        yield Rule("cluster", "kafka-cluster", ("Describe",))
    else:
        for prefix in sorted({topic.name.partition(".")[0] for topic in all_topics()}):
            yield Rule("topic", f"{prefix}.", ("Read", "DescribeConfigs"), is_prefix=True)
        yield Rule("topic", KAFKA_GROUP_PREFIX, ("Read", "DescribeConfigs"), is_prefix=True)
        yield Rule("group", KAFKA_GROUP_PREFIX, ("Read",), is_prefix=True)
    if principal == WORKER:  # the changelogs of its tables
        yield Rule("topic", f"{WORKER_KAFKA_GROUP}-", ("Create", "Write"), is_prefix=True)
    for topic in all_topics():
        if may_write(principal, topic):
            yield Rule("topic", topic.name, ("Write", "Delete") if may_delete(principal, topic) else ("Write",))


def may_write(principal: str, topic: Topic) -> bool:
    """Return whether a principal may append to a topic of the catalogue, or to one of its dead letters."""
    if principal == PRODUCER:
        return topic.outsider and not topic.is_grant
    if principal == API:  # it sends dead letters again to any topic with readers, and changes them
        return API in topic.producers or bool(topic.consumers)
    return bool(set(_names_in(principal)) & set(topic.producers))


@cache
def _names_in(process: str) -> Sequence[str]:
    """Return the catalogue's names of what runs in a process."""
    command, *names = PROCESSES[process]
    return resolve_names(names) if command == "connect" else [command]


def may_delete(principal: str, topic: Topic) -> bool:
    """Return whether it may delete records: dead letters that somebody drops on the dashboard or by the API."""
    return principal == API and topic.name.endswith(DEAD_LETTER_SUFFIX)


def passwords_of(setting: str) -> Mapping[str, str]:
    """Return the passwords by principal from `name:password,…` (`HIGHWATER_KAFKA_PRINCIPALS`).

    Raises:
        ConfigurationError: a principal is missing, unknown or without a password: a missing one would be the operator.
    """
    found = dict(one.strip().partition(":")[::2] for one in setting.split(","))
    if set(found) != set(PRINCIPALS) or not all(found.values()):
        names = ", ".join(PRINCIPALS)
        raise ConfigurationError(
            f"HIGHWATER_KAFKA_PRINCIPALS must be name:password, separated by commas, for each of {names}"
        )
    return found

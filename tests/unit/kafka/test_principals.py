"""The users of Kafka: what is listed for each, and which lists of passwords are refused."""

from __future__ import annotations

import pytest

from highwater.connectors.principals import may_write, passwords_of, rules_of
from highwater.schemas.errors import ConfigurationError
from highwater.schemas.topics import TOPICS
from highwater.streams.processes import PRINCIPALS, PROCESSES

ALL = ",".join(f"{name}:secret" for name in PRINCIPALS)


def test_every_topic_has_the_writers_of_the_catalogue() -> None:
    """Each producer of the catalogue is somewhere: a topic that only outsiders write excepted, a process may write it."""
    for topic in TOPICS.values():
        writers = {name for name in PROCESSES if may_write(name, topic)}
        assert bool(writers) == bool(set(topic.producers) - {"outside"}), topic.name
    assert not [topic for topic in TOPICS.values() if may_write("producer", topic) and not topic.outsider]
    assert {name for name in PROCESSES if may_write(name, TOPICS["streams.tick"])} == {"worker", "api"}


@pytest.mark.parametrize("name", PRINCIPALS)
def test_a_resource_is_listed_once_for_an_operation(name: str) -> None:
    """Kafka joins the rules of a user; two that say the same would hide which one counts."""
    rights = [
        (rule.kind, rule.name, rule.is_prefix, operation) for rule in rules_of(name) for operation in rule.operations
    ]
    assert len(rights) == len(set(rights))


@pytest.mark.parametrize(
    "setting", [ALL.replace("api:secret", "api:"), ALL.replace("worker:secret,", ""), f"{ALL},other:x", "x"]
)
def test_an_incomplete_list_is_refused(setting: str) -> None:
    """A process that is missing would be the operator."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_KAFKA_PRINCIPALS must be name:password"):
        passwords_of(setting)
    assert set(passwords_of(ALL)) == set(PRINCIPALS)

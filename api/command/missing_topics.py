"""Says that the broker does not have a topic, with the names that may be meant: of the catalogue and of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import click

from highwater.api.command.command import CommandFailedError, nearest
from highwater.schemas.topic_kinds import kind_of
from highwater.schemas.topics import Topic, all_topics


def missing_topic(topic: Topic, client: Mapping[str, str]) -> Exception:
    """The error of a command that cannot read a topic.

    Raises:
        UnavailableError: the broker does not answer.
    """
    from highwater.connectors.kafka.admin import Admin

    return missing_error(topic, asyncio.run(Admin(dict(client)).partition_counts()))


def missing_error(topic: Topic, on_broker: Iterable[str]) -> Exception:
    """A wrong use where the name is nobody's; else the product was not set up."""
    if topic.is_catalogued:
        return CommandFailedError(f"{topic.name} is not on the broker; run `highwater init`")
    others = [name for name in on_broker if kind_of(name) != "internal"]
    known = dict.fromkeys([*(one.name for one in all_topics()), *others])
    hint = nearest(topic.name, known) or "; `highwater topics --all` lists the topics"
    return click.UsageError(
        f"there is no topic {topic.name!r} on the broker{hint}", click.get_current_context(silent=True)
    )

"""A topic's name with the type of its events: connects a topic to its schema for the type checker.

The names are beside the records in `schemas/<subsystem>.py`, generated from the catalogue. At run time a name is a
plain `str`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

# Any of the generated records.
EventT = TypeVar("EventT", bound=Mapping[str, object])
EventT_co = TypeVar("EventT_co", bound=Mapping[str, object], covariant=True)


class ReadTopic(str, Generic[EventT_co]):
    """The name of a topic whose events are among `EventT_co`: a reader of several topics reads the union of their records."""

    __slots__ = ()


class TopicName(ReadTopic[EventT], Generic[EventT]):
    """The name of a topic whose events are exactly `EventT`, so that no other record is sent to it."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _event: Any) -> type[str]:
            """Return a plain string type: code that takes a name need not know this class."""
            return str


def event_of(name: TopicName[EventT], topic: str, value: Mapping[str, object]) -> EventT | None:
    """Return the value of an event of `topic`, as the record of the topic `name`; None if that is another topic."""
    return cast("EventT", value) if topic == name else None

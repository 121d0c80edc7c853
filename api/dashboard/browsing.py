"""The search of the topic browser: the address of the page contains all of it, so that a link gives the same results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from highwater.api.core.errors import UnprocessableError
from highwater.api.records.searches import topic_named
from highwater.connectors.replay.cursors import Search

BROWSE_PATH, EXPORT_PATH = "/browse", "/browse/export"
TOPIC_DEFAULT = "feeds.insight-ingested"
NEWEST, OLDEST = "newest", "oldest"


@dataclass(frozen=True, slots=True)
class Browsing:
    """The parameters of the page, as text. `since` and `until` are `from` and `to`; without `search` the topic is
    followed.

    `columns` are fields separated by commas; `record` is a position in the topic, `partition/offset`, that is shown in
    full.
    """

    topic: str = TOPIC_DEFAULT
    since: str = ""
    until: str = ""
    order: str = NEWEST
    partition: str = ""
    key: str = ""
    text: str = ""
    where: str = ""
    columns: str = ""
    cursor: str = ""
    search: str = ""
    record: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """Return the parameters of an address; unknown ones are ignored."""
        return cls(**{one.name: parameters[one.name] for one in fields(cls) if parameters.get(one.name)})

    def address(self, path: str = BROWSE_PATH, **changes: str) -> str:
        """Return the address of a page, with some parameters changed."""
        changed = replace(self, **changes)
        given = {one.name: getattr(changed, one.name) for one in fields(self)}
        return f"{path}?{urlencode({name: value for name, value in given.items() if value})}"

    @property
    def shown_columns(self) -> list[str]:
        """Return the fields with a column of their own; none: the event is shown as a whole."""
        return [name for name in self.columns.split(",") if name]

    @property
    def search_of_topic(self) -> Search:
        """Return the search.

        Raises:
            NotFoundError: the topic does not exist.
            UnprocessableError: the partition is not a number.
        """
        if self.partition and not (self.partition.isascii() and self.partition.isdigit() and len(self.partition) < 7):
            raise UnprocessableError(f"{self.partition[:100]!r} is not a partition number", field="partition")
        return Search(
            topic_named(self.topic),
            self.since or None,
            self.until or None,
            int(self.partition) if self.partition else None,
            self.key or None,
            self.where.strip() or None,
            self.text or None,
            self.order != OLDEST,
        )


def whole(topic: str, partition: int | None = None) -> str:
    """The address of a search of a topic, or of one of its partitions."""
    return Browsing(topic=topic, partition="" if partition is None else str(partition), search="1").address()


def unread(topic: str, partition: int, offset: int | None) -> str:
    """The address of what is in a partition from an offset on; None: from its beginning."""
    since = "" if offset is None else f"{partition}/{offset}"
    return Browsing(topic=topic, since=since, partition=str(partition), order=OLDEST, search="1").address()


def of_key(topic: str, key: str) -> str:
    """The address of a search for the events of a key."""
    return Browsing(topic=topic, key=key, search="1").address()

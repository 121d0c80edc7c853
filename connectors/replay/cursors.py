"""The parameters of a search of a topic, and the cursor of its next page.

Invariant: a cursor holds the unread offsets, fixed when the search began. So a following page repeats and omits no
record, even if records were appended meanwhile; a cursor of another search is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from highwater.connectors.replay.selection import Bound, parse_bound
from highwater.connectors.replay.shares import Share
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import Topic

_FORM = 1


class InvalidCursorError(HighwaterError):
    """The cursor is invalid, or belongs to another search. Begin the search again without it."""


@dataclass(frozen=True, slots=True)
class Search:
    """Which records of one topic are wanted, and in which order.

    Attributes:
        begin: the first record, `end` where to stop, as `selection.FORMS` describes; None: the whole log.
        key: None: any; else searched in every partition, since producers may use any partitioner.
        condition: in CEL (`where.py`).
        words: text that some value of the event contains, ignoring case.
        is_newest_first: in descending order of arrival over all partitions, else ascending.
    """

    topic: Topic
    begin: str | None = None
    end: str | None = None
    partition: int | None = None
    key: str | None = None
    condition: str | None = None
    words: str | None = None
    is_newest_first: bool = True

    @property
    def fingerprint(self) -> str:
        """Return the hash of the search that its cursors carry."""
        asked = [self.topic.name, self.begin, self.end, self.partition, self.key, self.condition, self.words]
        text = json.dumps([*asked, self.is_newest_first])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The rest of a search: the unread offsets by partition, their original number, and the number of records found."""

    spans: Mapping[int, Share]
    total: int
    found: int = 0

    @property
    def unread(self) -> int:
        """Return the number of unread offsets."""
        return sum(span.high - span.low for span in self.spans.values())

    def text(self, search: Search) -> str:
        """Return it as URL-safe text."""
        spans = [[partition, span.low, span.high] for partition, span in sorted(self.spans.items())]
        raw = json.dumps([_FORM, search.fingerprint, self.total, self.found, spans], separators=(",", ":"))
        return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def parse_places(search: Search, cursor: str | None, now_ms: int) -> tuple[list[Bound | None], Cursor | None]:
    """Parse where a search begins and ends, and its cursor; the broker is not asked.

    Raises:
        InvalidSelectionError: the text of a position has none of the forms, or is one of another topic.
        InvalidCursorError: the cursor is invalid, or of another search.
    """
    bounds = [
        None if text is None else parse_bound(text, topic=search.topic.name, now_ms=now_ms)
        for text in (search.begin, search.end)
    ]
    return bounds, None if cursor is None else parse_cursor(cursor, search)


def parse_cursor(text: str, search: Search) -> Cursor:
    """Parse the result of `Cursor.text`.

    Raises:
        InvalidCursorError: it is invalid, or of another search.
    """
    try:
        form, fingerprint, total, found, spans = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        read = {int(partition): Share(int(low), int(high)) for partition, low, high in spans}
        cursor = Cursor(read, int(total), int(found))
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise InvalidCursorError("this is not a search cursor; begin the search without it") from error
    if form != _FORM or fingerprint != search.fingerprint:
        raise InvalidCursorError("the cursor belongs to another search; begin this one without it")
    if any(not 0 <= span.low <= span.high for span in read.values()) or cursor.unread > cursor.total:
        raise InvalidCursorError("the cursor has impossible offsets; begin the search without it")
    return cursor

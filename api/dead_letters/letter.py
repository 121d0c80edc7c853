"""A dead letter, the actions on it, and the record that resends it. No I/O.

Invariants: a resent record has the original key, bytes and headers, except for edited fields; headers that the
dead-letter topic added are removed, and its headers name the origin, the user and the time.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from highwater.connectors.kafka.records import Record
from highwater.schemas.envelope import Headers, added_attributes, header, iso_from_ms, iso_or_number, ms_from_iso
from highwater.schemas.errors import HighwaterError, InvalidEventError
from highwater.schemas.json_events import event_from_json, event_to_json
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic, dead_letter_topic
from highwater.streams import relay_epochs
from highwater.streams.wording import counted

HEADER_PREFIX = "dlq_"
REDRIVEN_FROM = "dlq_redriven_from"
REDRIVEN_BY = "dlq_redriven_by"
REDRIVEN_AT = "dlq_redriven_at"
REDRIVES = "dlq_redrives"
EDITED = "dlq_edited"
# What an edit changes if it changes no single field.
WHOLE_VALUE, KEY = "value", "key"


class RefusedLetterError(HighwaterError):
    """A dead letter cannot be sent again as it is. Inspect it with `highwater dlq show TOPIC`, then edit it."""


class Action(StrEnum):
    """An action on a dead letter."""

    REDRIVEN = "redriven"
    EDITED = "edited"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Handling:
    """One action, as the topic `streams.dead-letter-handled` reports it."""

    letter: Position
    action: Action
    position: Position | None
    by: str
    note: str | None
    handled_at: int
    changed: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "action": self.action.value,
            "position": None if self.position is None else str(self.position),
            "by": self.by,
            "note": self.note,
            "handled_at": iso_from_ms(self.handled_at),
            "changed": list(self.changed),
        }


def handling_of(event: Mapping[str, Any]) -> Handling:
    """Parse the action in an event of `streams.dead-letter-handled`, given as JSON.

    Raises:
        InvalidEventError: a position in it is invalid.
        ValueError: the action is unknown, or has no time.
    """
    return Handling(
        letter=parse_position(event["letter"]),
        action=Action(event["action"]),
        position=None if event["position"] is None else parse_position(event["position"]),
        by=event["by"],
        note=event["note"],
        handled_at=ms_from_iso(str(event["handled_at"])),
        changed=tuple(event["changed"]),
    )


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of a dead-letter topic with the actions on it, oldest first."""

    record: Record
    handlings: tuple[Handling, ...] = ()

    @property
    def position(self) -> Position:
        """Return its position in the dead-letter topic."""
        return self.record.position

    @property
    def topic(self) -> str:
        """Return the topic of the event."""
        return self.record.topic.removesuffix(DEAD_LETTER_SUFFIX)

    @property
    def reason(self) -> str | None:
        """Return the short name of the reason."""
        return header(self.record.headers, "dlq_reason")

    @property
    def origin(self) -> Position | None:
        """Return the original position; None if its header is missing or malformed, or its topic is not in the catalogue."""
        found = _position(header(self.record.headers, "dlq_origin"))
        return found if found is not None and found.topic in TOPICS else None

    @property
    def omitted_bytes(self) -> str | None:
        """Return the size of bytes that were too large to be copied and exist only at the origin; None if the letter is
        complete.
        """
        return header(self.record.headers, "dlq_omitted_bytes") if self.record.value is None else None

    @property
    def redrives(self) -> int:
        """Return how often the event had been resent before it became this letter."""
        text = header(self.record.headers, REDRIVES) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0

    @property
    def is_open(self) -> bool:
        """Return whether nobody has resent it."""
        return all(one.action is Action.DROPPED for one in self.handlings)

    def document(self) -> dict[str, Any]:
        """Return it as JSON, without its value."""
        return {
            "position": str(self.position),
            "arrived_at": iso_or_number(self.record.arrived_ms),
            "reason": self.reason,
            "detail": header(self.record.headers, "dlq_detail"),
            "origin": None if self.origin is None else str(self.origin),
            "group": header(self.record.headers, "dlq_group"),
            "key": None if self.record.key is None else self.record.key.decode("utf-8", "backslashreplace"),
            "open": self.is_open,
            "redrives": self.redrives,
            "redriven_from": header(self.record.headers, REDRIVEN_FROM),
            "omitted_bytes": self.omitted_bytes,
            "handled": [one.document() for one in self.handlings],
        }

    def bytes_base64(self) -> str | None:
        """Return the original value, which may be any bytes."""
        return None if self.record.value is None else base64.b64encode(self.record.value).decode()


def _position(text: str | None) -> Position | None:
    try:
        return None if text is None else parse_position(text)
    except InvalidEventError:
        return None


def dead_letters_of(topic: Topic) -> Topic:
    """Return the dead-letter topic for either name."""
    return topic if topic.name.endswith(DEAD_LETTER_SUFFIX) else dead_letter_topic(topic)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one field by an edit; None: absent."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """The key and value that are sent in place of a letter's."""

    key: bytes | None
    value: bytes | None
    changes: tuple[Change, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the fields that it changes."""
        return tuple(change.field for change in self.changes)


@dataclass(frozen=True, slots=True)
class Sending:
    """A record to be produced: with `partition` None the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def plan_sending(
    letter: Letter, replacement: Replacement | None, partitions: Mapping[str, int], *, by: str, now_ms: int
) -> Sending:
    """Return the record that resends a letter, unchanged or edited.

    It goes to the partition it came from, whichever partitioner chose it, since the order of its key is that
    partition's; an edited letter with another key goes where that key belongs.

    Raises:
        RefusedLetterError: it does not name its origin, or does not contain the bytes.
    """
    origin = letter.origin
    if origin is None:
        raise RefusedLetterError(f"{letter.position} does not name its origin")
    if replacement is None and letter.omitted_bytes is not None:
        raise RefusedLetterError(
            f"{letter.position} was too large to be stored ({letter.omitted_bytes} bytes): the event is only at {origin}"
        )
    record = letter.record
    key, value = (record.key, record.value) if replacement is None else (replacement.key, replacement.value)
    stays = key == record.key and origin.partition < partitions.get(origin.topic, 0)
    # The epoch of the relay that published the letter does not apply to a record that an operator sends.
    left_out = {relay_epochs.HEADER} | added_attributes(record.headers)
    headers = [
        (name, raw) for name, raw in record.headers if not name.startswith(HEADER_PREFIX) and name not in left_out
    ]
    headers += [
        (REDRIVEN_FROM, str(letter.position).encode()),
        (REDRIVEN_BY, by.encode()),
        (REDRIVEN_AT, iso_from_ms(now_ms).encode()),
        (REDRIVES, str(letter.redrives + 1).encode()),
    ]
    if replacement is not None:
        # A new event with a new id: a consumer that skips known ids must not skip it.
        headers = [(name, _edited_id(raw, now_ms) if name == "ce_id" else raw) for name, raw in headers]
        headers.append((EDITED, ",".join(replacement.changed).encode()))
    return Sending(origin.topic, origin.partition if stays else None, key, value, headers)


def _edited_id(raw: bytes | None, now_ms: int) -> bytes:
    return b"%b-edited-%d" % (raw or b"", now_ms)


def apply_edit(
    document: Mapping[str, Any], assigned: Iterable[tuple[str, Any]], removed: Iterable[str]
) -> dict[str, Any]:
    """Return a document with fields set and removed."""
    edited = {**document, **dict(assigned)}
    for name in removed:
        edited.pop(name, None)
    return edited


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the fields that differ, in the order of the second document; removed ones last."""
    names = [*after, *(name for name in before if name not in after)]
    return tuple(
        Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def canonical(topic: str, document: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the event of an edited document, and the document as it will be shown.

    Raises:
        InvalidEventError: names the field that is unknown, missing or malformed.
    """
    event = event_from_json(topic, document)
    return event, event_to_json(topic, event)


def edited_key(topic: Topic, event: Mapping[str, Any], original: bytes | None) -> bytes | None:
    """Return the key of an edited event: its field's value; for a topic without a key field, the original key."""
    return topic.key_of(event).encode() if topic.key else original


def hex_lines(raw: bytes, *, bytes_max: int) -> Sequence[str]:
    """Return bytes as offset, hexadecimal and text, 16 per line; the rest beyond `bytes_max` is counted."""
    lines = []
    for start in range(0, min(len(raw), bytes_max), 16):
        row = raw[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {text}")
    if len(raw) > bytes_max:
        lines.append(f"… {counted(len(raw) - bytes_max, 'more byte')}")
    return lines

"""The history of a run: the invocation and the completion of every operation, in real-time order, one JSON document a line.

Invariant: an invocation is written before its request is sent, and a completion after its response was read. So an
operation whose completion stands before the invocation of another one has happened before it, in any process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from pathlib import Path
from typing import Any, Self, TypeAlias

import orjson

from highwater.schemas.errors import ConfigurationError

FORMAT = 1
_POSITION_LOST = "position-lost"
_NS_PER_SECOND = 1_000_000_000


class HistoryError(ConfigurationError):
    """A file is not a history of `highwater history-check`. Name one that `--history` has written."""


@unique
class Action(StrEnum):
    """What an operation does. A read of these has the state of its resource in its completion."""

    WRITE_INSIGHT = "write-insight"
    RETRACT_INSIGHT = "retract-insight"
    READ_INSIGHT = "read-insight"
    READ_CHANNEL = "read-channel"
    REPLACE_SUBSCRIPTIONS = "replace-subscriptions"
    ERASE_USER = "erase-user"
    REPORT_ACTIVITY = "report-activity"
    READ_SUBSCRIPTIONS = "read-subscriptions"
    READ_FEED = "read-feed"
    READ_CLUSTERS = "read-clusters"
    SUBMIT_QUERY = "submit-query"
    READ_QUERIES = "read-queries"
    WRITE_MATCH = "write-match"
    READ_PAGE = "read-page"


READS = frozenset(action for action in Action if action.startswith("read-"))


@dataclass(frozen=True, slots=True)
class Invocation:
    """The begin of an operation. A client is a session: it invokes nothing before its last operation is completed.

    `value` is what a write stores, unique among all writes except the repeats of one; `api` is the address of the API
    process, or `kafka`. A final operation follows the run: it reads what the run has left.
    """

    number: int
    client: str
    api: str
    action: Action
    resource: str
    at_ns: int
    value: str = ""
    condition: str | None = None
    min_positions: tuple[str, ...] = ()
    idempotency_key: str | None = None
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of an operation; without a status it was not answered, and its effect is unknown.

    `body_hash` is of the decoded body; `content` has the members of it that a check needs; `problem` names the reason of a 410.
    """

    number: int
    at_ns: int
    status: int | None
    body_hash: str | None = None
    etag: str | None = None
    version: int | None = None
    caused_by: str | None = None
    positions: tuple[str, ...] = ()
    encoding: str | None = None
    is_stale: bool = False
    problem: str = ""
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def is_retracted(self) -> bool:
        """Whether an insight is said to be retracted; a 410 may also say that the log lost a position."""
        return self.status == 410 and self.problem != _POSITION_LOST

    @property
    def is_acknowledged(self) -> bool:
        """Whether a write was taken."""
        return self.status is not None and 200 <= self.status < 300


Event: TypeAlias = Invocation | Completion
_REFUSED = "{path} is not a history (line {line}: {why}); name a file that --history has written"
_TUPLES = ("min_positions", "positions")


class Recorder:
    """Appends to a history. Operations of all threads get numbers and times in the order of the lines."""

    def __init__(self, path: Path, *, seed: int, apis: Iterable[str]) -> None:
        self._file = path.open("xb")
        self._lock = threading.Lock()
        self._number = 0
        self._write({"history": FORMAT, "seed": seed, "apis": list(apis)})

    def __enter__(self) -> Self:
        """Do nothing: it is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        with self._lock:
            self._file.close()

    @property
    def count(self) -> int:
        """How many operations were invoked."""
        return self._number

    def invoke(self, client: str, api: str, action: Action, resource: str, **more: Any) -> Invocation:
        """Record the begin of an operation."""
        with self._lock:
            self._number += 1
            made = Invocation(self._number, client, api, action, resource, time.monotonic_ns(), **more)
            self._write({"type": "invocation", **_members(made)})
        return made

    def complete(self, invocation: Invocation, status: int | None, **more: Any) -> Completion:
        """Record the end of an operation."""
        with self._lock:
            made = Completion(invocation.number, time.monotonic_ns(), status, **more)
            self._write({"type": "completion", **_members(made)})
        return made

    def _write(self, document: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))


def _members(event: Event) -> dict[str, Any]:
    """Return the members of an event that have a value."""
    named = ((name, getattr(event, name)) for name in event.__dataclass_fields__)
    return {
        name: value for name, value in named if value is not None and value is not False and value not in ("", (), {})
    }


def read_history(path: Path) -> Iterator[Event]:
    """Yield the events of a history.

    Raises:
        HistoryError: the file is not a history.
    """
    try:
        with path.open("rb") as lines:
            head = _document(next(lines, b""), path, 1)
            if head.get("history") != FORMAT:
                raise HistoryError(_REFUSED.format(path=path, line=1, why=f"it is not of format {FORMAT}"))
            for number, line in enumerate(lines, start=2):
                if line.endswith(b"\n"):  # a run that was killed leaves a part of a line
                    yield event_of(_document(line, path, number), path, number)
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror}") from error


def _document(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise HistoryError(_REFUSED.format(path=path, line=number, why=error)) from error
    if not isinstance(document, dict):
        raise HistoryError(_REFUSED.format(path=path, line=number, why="it is not a JSON object"))
    return document


def event_of(document: dict[str, Any], path: Path, number: int) -> Event:
    """Return the event of a line.

    Raises:
        HistoryError: it is not an event.
    """
    members = {name: value for name, value in document.items() if name != "type"}
    members |= {name: tuple(members[name]) for name in _TUPLES if name in members}
    try:
        if document["type"] == "invocation":
            return Invocation(**{**members, "action": Action(members["action"])})
        return Completion(**{"status": None, **members})
    except (TypeError, KeyError, ValueError) as error:
        raise HistoryError(_REFUSED.format(path=path, line=number, why=error)) from error


def with_moved(events: Iterable[Event], moved: Mapping[str, str]) -> Iterator[Event]:
    """Yield the events as if each record had always been at the position that a repair of the log gave it.

    `moved`: new positions by former ones, as `highwater repair-log --json` prints them. What was read of an insight at its
    former position has no version: the repair changes the position in the body, under the same version.
    """
    for event in events:
        if isinstance(event, Invocation):
            yield replace(event, min_positions=tuple(moved.get(one, one) for one in event.min_positions))
            continue
        positions = tuple(moved.get(one, one) for one in event.positions)
        former = event.content.get("position", "")
        if former in moved:
            yield replace(
                event, positions=positions, version=None, content={**event.content, "position": moved[former]}
            )
        else:
            yield replace(event, positions=positions)


def seconds_of(at_ns: int) -> str:
    """Return a time of a history for a reader, in seconds of the monotonic clock."""
    return f"{at_ns / _NS_PER_SECOND:.6f} s"

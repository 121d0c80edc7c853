"""Replays records into another topic: which targets are allowed, the speed, and the headers of the copies.

Invariant: bytes and key stay unchanged; a copy's headers name the position and time of the original. Nothing that the
product acts on is published without explicit permission.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from highwater.connectors.kafka.records import Record
from highwater.connectors.replay.subject import source_of
from highwater.schemas.envelope import Headers, iso_or_number
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic
from highwater.streams import relay_epochs
from highwater.streams.clock import monotonic_seconds

ORIGIN, ORIGIN_TIME = "replay_origin", "replay_time"
# Outsiders may publish to these, and each event has an effect: work, erasure, a bill.
_COMMAND_ENDINGS = ("-submitted", "-requested", "-demanded", "-controlled", "-erased", ".control")
# Waits are split so that Ctrl-C and the progress bar are served.
_WAIT_SECONDS_MAX = 0.2


class RefusedError(HighwaterError):
    """A replay into this topic would do harm. Choose another topic, or use --i-know."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A record to be published."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def check_target(source: Topic, into: str, *, i_know: bool) -> None:
    """Refuse a topic whose records the product acts on, or whose events have another schema.

    Raises:
        RefusedError: it is one, and --i-know was not given.
    """
    reason = None if i_know else _objection(source, into)
    if reason is not None:
        raise RefusedError(f"{into} {reason}; --i-know replays into it anyway")


def _objection(source: Topic, into: str) -> str | None:
    target = TOPICS.get(into)
    if target is None:
        is_inner = into.endswith(("-changelog", DEAD_LETTER_SUFFIX)) or into.startswith("__")
        return "belongs to the product's own bookkeeping" if is_inner else None
    if target.schema != source_of(source).schema:
        return f"holds {target.schema}, not the {source_of(source).schema} of {source.name}"
    if into.endswith(_COMMAND_ENDINGS):
        return "is a command topic: the product acts upon every record in it"
    if not target.outsider and target.consumers:
        return f"is written by the product alone and read by {', '.join(target.consumers)}"
    return None


def copy_of(record: Record, partitions: int, source_partitions: int) -> Copy:
    """Return the copy of a record: in the same partition if the topics have equally many, else in the key's partition."""
    kept = [header for header in record.headers if header[0] not in (ORIGIN, ORIGIN_TIME, relay_epochs.HEADER)]
    return Copy(
        record.partition if partitions == source_partitions else -1,
        record.key,
        record.value,
        [
            *kept,
            (ORIGIN, str(record.position).encode()),
            (ORIGIN_TIME, str(iso_or_number(record.arrived_ms)).encode()),
        ],
    )


class Pace:
    """Waits so that records keep their intervals, divided by `speed`; a speed of None does not wait."""

    def __init__(
        self,
        speed: float | None,
        seconds: Callable[[], float] = monotonic_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._speed = speed
        self._seconds = seconds
        self._sleep = sleep
        self._began: tuple[float, int] | None = None

    def wait(self, arrived_ms: int) -> None:
        """Wait until the record that arrived then is due. One that arrived before the first is due at once."""
        if self._speed is None:
            return
        if self._began is None:
            self._began = (self._seconds(), arrived_ms)
        began_seconds, began_ms = self._began
        due = began_seconds + (arrived_ms - began_ms) / 1000 / self._speed
        while (left := due - self._seconds()) > 0:
            self._sleep(min(left, _WAIT_SECONDS_MAX))

"""Compares two states of the log by key: a state is the latest value of each key, and a tombstone is the absence of a value.

Invariant: a key whose events are equal field by field in both states is not a difference, even if they were
written with other schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from highwater.connectors.kafka.foreign_values import with_prefix
from highwater.connectors.replay.reading import Batch
from highwater.schemas.envelope import text_of
from highwater.schemas.errors import HighwaterError

# Keys and values of both states; for small ones Python takes as much again.
BYTES_MAX = 256 << 20

Event = Any


class StateTooLargeError(HighwaterError):
    """The states do not fit in memory. Narrow them with `--key`, `--where` or `--from`."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One key: `added`, `removed`, or `changed` with the fields that differ, before and after."""

    key: str
    kind: str
    fields: Mapping[str, tuple[Any, Any]]


class State:
    """The latest value of each key among the records that were added."""

    def __init__(self) -> None:
        self._latest: dict[bytes, tuple[tuple[int, int, int], bytes | None]] = {}
        self._bytes = 0
        self.without_key = 0

    def add(self, batch: Batch) -> None:
        """Add records: the latest one by arrival, then by position, is the key's value.

        Raises:
            StateTooLargeError: there are too many.
        """
        places = zip(batch.times_ms.tolist(), batch.partitions.tolist(), batch.offsets.tolist(), strict=True)
        for at, (key, place) in enumerate(zip(batch.keys, places, strict=True)):
            if key is None:
                self.without_key += 1
                continue
            before = self._latest.get(key)
            if before is None or before[0] < place:
                value = with_prefix(batch.values[at], batch.headers[at])
                held = len(before[1] or b"") if before is not None else -len(key)
                self._bytes += len(value or b"") - held
                self._latest[key] = (place, value)
        if self._bytes > BYTES_MAX:
            raise StateTooLargeError(
                f"the latest values by key take more than {BYTES_MAX >> 20} MiB; narrow them with --key, --where or --from"
            )

    def values(self) -> dict[bytes, bytes | None]:
        """Return the value of each key; None: a tombstone."""
        return {key: value for key, (_, value) in self._latest.items()}


def differences(
    left: Mapping[bytes, bytes | None],
    right: Mapping[bytes, bytes | None],
    decode_left: Callable[[bytes], Event],
    decode_right: Callable[[bytes], Event],
    ignored: Collection[str] = (),
) -> Iterator[Difference]:
    """Yield the keys that differ, in order."""
    for key in sorted(left.keys() | right.keys()):
        before, after = left.get(key), right.get(key)
        if before is None and after is None:
            continue
        shown = text_of(key) or ""
        if before is None or after is None:
            yield Difference(shown, "added" if before is None else "removed", {})
            continue
        fields = _changed(_fields(decode_left(before)), _fields(decode_right(after)), ignored)
        if fields:
            yield Difference(shown, "changed", fields)


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of an event; a value of another application that is not an object is one field."""
    return value if isinstance(value, Mapping) else {"value": value}


def _changed(
    before: Mapping[str, Any], after: Mapping[str, Any], ignored: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys((*before, *after))
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if name not in ignored and before.get(name) != after.get(name)
    }

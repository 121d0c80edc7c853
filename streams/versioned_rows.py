"""Rows of tables as JSON, with the version of their form: a row of a newer release is refused, not misread.

A row is read in both forms: by name, `{"version": 1, "current_seq": 7, …}`, and by position, `[1, 7, …]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

# The form that is written. Releases up to 0.2 read rows by position alone, and a worker of such a release may return after
# an upgrade to this one. The next release writes names, which this one reads.
WRITES_NAMES = False


def pack(names: Sequence[str], facts: Sequence[Any]) -> Any:
    """Return facts in the written form; the last ones may be left out."""
    return dict(zip(names, facts, strict=False)) if WRITES_NAMES else facts


def unpack(names: Sequence[str], found: Any) -> Sequence[Any]:
    """Return the facts of either form, in the order of their names; the last ones may be missing.

    Raises:
        ValueError: a name is unknown, or one is missing before the last of them.
    """
    if isinstance(found, list):
        return found
    if unknown := found.keys() - set(names):
        raise ValueError(f"a row with {', '.join(sorted(unknown))}: it was written by a newer release")
    if missing := [name for name in names[: len(found)] if name not in found]:
        raise ValueError(f"a row without {', '.join(missing)}: it is damaged")
    return [found[name] for name in names[: len(found)]]


@dataclass(frozen=True, slots=True)
class RowForm:
    """The form of a table's rows.

    `names`: of its facts, in the order of rows by position. `version`: of the form; `oldest`: the oldest that is read.
    `facts_min`: the number of facts that each row has; the others, at its end, may be left out.
    """

    version: int
    names: tuple[str, ...]
    oldest: int = 0
    facts_min: int = 0

    def encode(self, facts: Sequence[Any]) -> bytes:
        """Return a row in the written form."""
        packed = pack(self.names, facts)
        return orjson.dumps(
            {"version": self.version, **packed} if isinstance(packed, dict) else [self.version, *packed]
        )

    def decode(self, data: bytes) -> Sequence[Any]:
        """Return what a row holds, in the order of the names.

        Raises:
            ValueError: the row has another form.
        """
        found = orjson.loads(data)
        version = found.pop("version", None) if isinstance(found, dict) else found.pop(0)
        if not (self.oldest or self.version) <= (version or 0) <= self.version:
            raise ValueError(f"a row of version {version}, not {self.version}: it was written by a newer release")
        facts = unpack(self.names, found)
        if not (self.facts_min or len(self.names)) <= len(facts) <= len(self.names):
            raise ValueError(f"a row of {len(facts)} facts, not {len(self.names)}: it is damaged")
        return facts

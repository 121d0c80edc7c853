"""Which version of a user's clusters a page shows: the newest, or an earlier one that its address names. Pure.

Invariant: a version that is not stored is never replaced by another without a notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from highwater.api.dashboard import figures
from highwater.schemas.envelope import ms_from_iso


class StoredVersion(NamedTuple):
    """A stored version: its time, and the position of the event that caused it."""

    version: int
    made_ms: int
    position: str


class Choice(NamedTuple):
    """The version to show, None: the newest; and a notice if it differs from the requested one."""

    version: int | None
    problem: str = ""


def stored_versions(rows: Sequence[Mapping[str, Any]]) -> list[StoredVersion]:
    """Return the rows of `versions` of the dashboard's read model, the oldest first."""
    return sorted(StoredVersion(row["cluster_version"], row["updated_at"], row["caused_by"]) for row in rows)


def choose(kept: Sequence[StoredVersion], version: str, at: str) -> Choice:
    """Return the version that an address requests: by its number, or the one that was current at a time (ISO 8601)."""
    if version:
        return _by_number(kept, version)
    return _by_time(kept, at) if at else Choice(None)


def _by_number(kept: Sequence[StoredVersion], version: str) -> Choice:
    number = int(version) if version.isascii() and version.isdigit() and len(version) < 19 else 0
    if any(one.version == number for one in kept):
        return Choice(None if number == kept[-1].version else number)
    if not kept or number < 1 or number > kept[-1].version:
        return Choice(None, f"There is no version {version}; the newest is shown.")
    return Choice(None, f"Version {number} is no longer kept: {_range(kept)}. The newest is shown.")


def _by_time(kept: Sequence[StoredVersion], at: str) -> Choice:
    try:
        at_ms = ms_from_iso(at)
    except ValueError:
        return Choice(None, f"{at} is not an ISO 8601 time; the newest version is shown.")
    found = [one for one in kept if one.made_ms <= at_ms]
    if not found:
        return Choice(None, f"No version from that time is kept: {_range(kept)}. The newest is shown.")
    return Choice(None if found[-1] == kept[-1] else found[-1].version)


def _range(kept: Sequence[StoredVersion]) -> str:
    if not kept:
        return "none is kept yet"
    first, last = kept[0], kept[-1]
    return f"versions {first.version} to {last.version} are, made since {figures.moment(first.made_ms)} UTC"


def described(kept: Sequence[StoredVersion], version: int | None) -> str:
    """Return a description of the displayed version."""
    if not kept:
        return "No version yet: the first rebuild creates one."
    shown = kept[-1] if version is None else next(one for one in kept if one.version == version)
    state = "now" if version is None else f"as of then; version {kept[-1].version} is the newest"
    return f"Version {shown.version} ({state}), made {figures.moment(shown.made_ms)} UTC"

"""Whether a database lost writes that the log already knows: a standby that was promoted behind, a copy of its folder.

An outbox row is committed before it is published, and PostgreSQL loses only the end of its history. So every number
in the log must be in the database, and one counterexample proves that it went back. What a
consumer had read when it stored its position was published before, so only records from the stored positions on can be
such counterexamples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from highwater.schemas.positions import Position
from highwater.streams.relay_epochs import Stamp

Place = tuple[str, int]

# Newest records of a partition that are compared: what a lost database published last is among them, and a consumer
# that is far behind does not delay a start (about 50 ms per partition of this length).
RECORDS_MAX = 1_000
# By how much versions rise above every known one. A version may have been read before its event was published; a
# resource changes at most about once a second, so this covers a relay that published nothing for two hours.
UNPUBLISHED_VERSIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Published:
    """The numbers in one record of the outbox, which its database had assigned; None where the record has none.

    `version`: a resource with its version.
    """

    position: Position
    outbox_id: int | None = None
    stamp: Stamp | None = None
    cause: Position | None = None
    version: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """The numbers of the database. `next`: the highest position of any group, by partition; `versions`: of published keys."""

    outbox_id: int
    version_floor: int
    relay_epochs: Mapping[int, int] = field(default_factory=dict)
    next: Mapping[Place, int] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)


def find_lost_write(stored: Stored, published: Iterable[Published]) -> str | None:
    """Return the first proof that the database lost a write, as a sentence's end; None if there is none."""
    for one in published:
        found = _contradiction(stored, one)
        if found is not None:
            return f"{one.position} in the log has {found}"
    return None


def _contradiction(stored: Stored, one: Published) -> str | None:
    if one.outbox_id is not None and one.outbox_id > stored.outbox_id:
        return f"row {one.outbox_id} of the outbox, the database assigned {stored.outbox_id} last"
    if one.stamp is not None and one.stamp.epoch > stored.relay_epochs.get(one.stamp.shard, 0):
        epoch = stored.relay_epochs.get(one.stamp.shard, 0)
        return f"epoch {one.stamp.epoch} of the relay of shard {one.stamp.shard}, the database knows {epoch}"
    if one.version is not None:
        key, version = one.version
        held = stored.versions.get(key, stored.version_floor)  # an erased key's versions are below the floor
        if version > held:
            return f"version {version} of {key}, the database knows {held}"
    # Agents publish to some topics of the outbox, and read ahead of the consumers whose positions are stored.
    if one.cause is not None and one.outbox_id is not None:
        next_ = stored.next.get(one.cause[:2])
        if next_ is not None and one.cause.offset >= next_:
            return f"an effect of {one.cause}, which no consumer has stored"
    return None


def plan_starts(next_: Mapping[Place, int], ranges: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
    """Return from where records can contradict the database, within each partition's range of offsets.

    A partition that no group reads is left out: a start with nothing to read takes 30 ms, with one record 200 ms more, and
    what such partitions hold was published beside records of others.
    """
    return {
        place: min(max(next_.get(place, high), low, high - RECORDS_MAX), high) for place, (low, high) in ranges.items()
    }

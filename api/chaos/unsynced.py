"""What a power loss takes from a broker: the records that it has not synced, cut from the files of its log.

A killed process loses nothing, since the kernel keeps what was written; a machine without power loses what Kafka has not synced.
`recovery-point-offset-checkpoint` says up to which offset each partition was. The broker must not run meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

Place = tuple[str, int]  # topic, partition

_CHECKPOINT = "recovery-point-offset-checkpoint"
# Base offset and length of a batch, which come before its other fields.
_HEADER = struct.Struct(">qi")
# The log of the controllers is synced before it is acknowledged.
_SYNCED = "__cluster_metadata"
# The file of a last batch of which the disk has only the beginning.
_TORN_BYTES = 7


def recovery_points(log_dir: Path) -> dict[Place, int]:
    """Return the offset of each partition up to which its log was synced."""
    found: dict[Place, int] = {}
    for line in (log_dir / _CHECKPOINT).read_text(encoding="ascii").splitlines()[2:]:
        topic, partition, offset = line.split()
        found[topic, int(partition)] = int(offset)
    return found


def lose_unsynced(log_dir: Path, keep: Mapping[Place, int] | None = None) -> dict[Place, int]:
    """Cut every partition where it was synced last, or `keep` alone at its offsets; return the first lost offset of each."""
    points = recovery_points(log_dir) if keep is None else keep
    ends = {place: cut(log_dir / f"{place[0]}-{place[1]}", offset) for place, offset in points.items()}
    (log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return {place: end for place, end in ends.items() if end is not None}


def cut(folder: Path, offset: int) -> int | None:
    """Cut a partition's log at the batch that holds an offset; return the first lost offset, None if nothing was lost."""
    if folder.name.startswith(_SYNCED):
        return None
    segments = sorted(folder.glob("*.log"))
    first_lost: int | None = None
    for segment in segments:
        at, base = _batch_of(segment, offset)
        if base is None:
            continue
        first_lost = base if first_lost is None else first_lost
        if segment is segments[0] or at:
            size = segment.stat().st_size
            with segment.open("r+b") as file:
                file.truncate(min(at + _TORN_BYTES, size))
        else:
            for path in folder.glob(f"{segment.stem}.*"):
                path.unlink()
    return first_lost


def _batch_of(segment: Path, offset: int) -> tuple[int, int | None]:
    """Return where the first batch begins that holds an offset or later ones, and its base offset."""
    at = 0
    with segment.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            base, length = _HEADER.unpack(header)
            if length <= 0:
                break
            # The delta of the last offset follows the epoch, the magic, the checksum and the attributes.
            fields = file.read(15)
            if base + struct.unpack(">i", fields[11:])[0] >= offset:
                return at, base
            at += _HEADER.size + length
            file.seek(at)
    return at, None

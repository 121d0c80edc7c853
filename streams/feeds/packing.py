"""Packs the subscribers of a channel into records, one target partition each, limited in bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

# A record stays well below the broker's default of 1 MiB and below the 256 KB that the user-side agent applies at once.
RECORD_BYTES_MAX = 200_000
# Avro writes a string as its length and its bytes.
_LENGTH_BYTES = 3


def pack_users(
    users: Iterable[str], *, partition_of: Callable[[str], int], bytes_max: int = RECORD_BYTES_MAX
) -> Iterator[tuple[int, list[str]]]:
    """Yield (partition, users) with at most `bytes_max` of ids in each, in the given order within a partition."""
    waiting: dict[int, list[str]] = defaultdict(list)
    size: dict[int, int] = defaultdict(int)
    for user_id in users:
        partition = partition_of(user_id)
        user_bytes = len(user_id.encode()) + _LENGTH_BYTES
        if waiting[partition] and size[partition] + user_bytes > bytes_max:
            yield partition, waiting.pop(partition)
            size[partition] = 0
        waiting[partition].append(user_id)
        size[partition] += user_bytes
    for partition in sorted(waiting):
        if waiting[partition]:
            yield partition, waiting[partition]

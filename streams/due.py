"""An index of keys by due time, oldest first.

Invariant: at most one time per key; taking costs only what is taken, never a scan of all keys. The index is derived
from table rows and only in memory: stored due times would be a second truth, outdated after a change of policy, and
would cost a changelog record per change.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

# Keys share a bucket per second, so the heap holds at most one number per second (86,400 for a day) and rescheduling
# leaves no stale entries; exact times are stored separately and compared when the last bucket is opened.
_BUCKET_MS = 1000


class DueIndex:
    """Keys with a time in milliseconds. Not thread-safe; owned by the agent of one partition."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._buckets: dict[int, set[str]] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def at(self, key: str) -> int | None:
        """Return when the key is due; None if it is not in the index."""
        return self._at.get(key)

    def put(self, key: str, at_ms: int) -> None:
        """Set the time of a key, replacing an earlier one."""
        self.drop(key)
        self._at[key] = at_ms
        number = at_ms // _BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = {key}
            heapq.heappush(self._heap, number)
        else:
            bucket.add(key)

    def drop(self, key: str) -> None:
        """Remove a key; an unknown one is not an error. The bucket stays, perhaps empty, until its time has come."""
        at_ms = self._at.pop(key, None)
        if at_ms is not None:
            self._buckets[at_ms // _BUCKET_MS].discard(key)

    def take(self, now_ms: int, most: int) -> list[str]:
        """Remove and return up to `most` keys that are due at `now_ms`, oldest first, ties in order of the key."""
        taken: list[str] = []
        for number in self._open_buckets(now_ms):
            bucket = self._buckets[number]
            due = sorted((self._at[key], key) for key in bucket if self._at[key] <= now_ms)
            for _, key in due[: most - len(taken)]:
                bucket.remove(key)
                del self._at[key]
                taken.append(key)
            if len(taken) >= most:
                break
        return taken

    def _open_buckets(self, now_ms: int) -> Iterator[int]:
        """Yield numbers of buckets that may hold due keys, ascending; an empty bucket is removed."""
        kept: int | None = None
        while self._heap and self._heap[0] * _BUCKET_MS <= now_ms and kept is None:
            number = self._heap[0]
            yield number
            if self._buckets[number]:
                kept = number  # only the newest bucket keeps keys whose exact time is in the future
            else:
                del self._buckets[number]
                heapq.heappop(self._heap)

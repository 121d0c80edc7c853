"""How long former texts of chunks are kept, and which times a search may request.

Invariant: a search as of a time from `known_from_ms` on finds exactly the texts that were stored then. For an earlier
time the former texts are unknown, and it finds the current ones.
"""

from __future__ import annotations

from highwater.streams.chunks.passports import Removal
from highwater.streams.chunks.scoring import DAY_MS

# A quarter: within it people ask what an answer or a deck was based on. A document that is rewritten daily keeps 90
# texts, so the table is limited to that multiple of the chunks.
FORMER_DAYS = 90
FORMER_MS = FORMER_DAYS * DAY_MS


def known_from_ms(removal: str, created_ms: int, history_since_ms: int | None, now_ms: int) -> int | None:
    """Return the time from which the texts of a namespace are known; None if it keeps no replaced texts.

    Args:
        removal: of its passport; with `hard`, removed and replaced texts are erased.
        created_ms: when the namespace was created.
        history_since_ms: since when its former texts are kept, if that is later.
        now_ms: former texts are kept for `FORMER_DAYS` before it.
    """
    if removal != Removal.SOFT:
        return None
    return max(created_ms if history_since_ms is None else history_since_ms, now_ms - FORMER_MS)

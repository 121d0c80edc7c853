"""What is kept of texts that chunks no longer have, and which times a search may ask for.

Invariant: a search as of a time from `known_from_ms` on finds exactly the texts that were stored then. Of an earlier time the
former texts are not known, and it finds the texts of now.
"""

from __future__ import annotations

from highwater.streams.chunks.passports import Removal
from highwater.streams.chunks.scoring import DAY_MS

# A quarter: within it somebody asks what an answer or a deck was based on. A document that is rewritten every day keeps 90 texts,
# so the table is bounded by that multiple of the chunks.
FORMER_DAYS = 90
FORMER_MS = FORMER_DAYS * DAY_MS


def known_from_ms(removal: str, created_ms: int, history_since_ms: int | None, now_ms: int) -> int | None:
    """From when on the texts of a namespace are known; None where it keeps none that were replaced.

    Args:
        removal: of its passport; where it is `hard`, what is taken out is erased, and so is what is replaced.
        created_ms: when the namespace was made.
        history_since_ms: since when its former texts are kept, if that is later.
        now_ms: former texts are kept for `FORMER_DAYS` before it.
    """
    if removal != Removal.SOFT:
        return None
    return max(created_ms if history_since_ms is None else history_since_ms, now_ms - FORMER_MS)

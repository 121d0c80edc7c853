"""Sums of words: compares `chunk_words` with the sums over the texts of the chunks.

Invariant. Both are read in one snapshot of the live database. The log is not needed: triggers update the sums in the
transaction that changes chunks, so they are right or wrong at any time.
"""

from __future__ import annotations

from typing import Any

from highwater.connectors.verify.live import Rows
from highwater.connectors.verify.patience import PART_SECONDS_MAX, TimeLimit
from highwater.connectors.verify.report import Checked, Difference
from highwater.connectors.verify.statements import QUERIES

# The word of a whole namespace's sums, as the report shows it.
_ALL_CHUNKS = "(all chunks)"


async def verify_word_sums(live: Any, part: str, patience: TimeLimit) -> Checked:
    """Compare the sums, by namespace and word. `live`: a snapshot."""
    patience.at("words of chunks, counted from their texts")
    checked = Checked(part, "chunk_words")
    rows = Rows(live, QUERIES["verify_chunk_words"], seconds_max=PART_SECONDS_MAX)
    while (row := await rows.next()) is not None:
        patience.check()
        checked.compared += 1
        ns, word, *sums = row
        expected, found = sums[:2], sums[2:]
        for field, one, other in zip(("chunks", "octets"), expected, found, strict=True):
            if (one or 0) != (other or 0):
                checked.differs(Difference(f"{ns}|{word or _ALL_CHUNKS}", field, one, other, None))
    return checked

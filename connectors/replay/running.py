"""Owns a replay from the log to a writer: read, choose, decode, write, batch by batch.

Law: one batch is in hand at a time; what is counted as written was handed to the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.words import mentioning
from highwater.connectors.replay.writers import Writer

if TYPE_CHECKING:
    from highwater.connectors.replay.where import Where


class Chooser:
    """What is kept of what is read: the records of one key, those that meet a condition, or all.

    A key is looked for in every partition: anybody may publish, by whatever partitioner.
    """

    def __init__(
        self,
        topic: str,
        decoder: Decoder,
        counts: Counts,
        *,
        key: bytes | None = None,
        condition: str | None = None,
        words: str | None = None,
    ) -> None:
        """`condition` is one in CEL; `words` is what some value of the event contains, in any case of letters.

        Raises:
            WhereError: it is no condition over a record of this topic.
        """
        self._decoder = decoder
        self._counts = counts
        self._key = key
        self._where = None if condition is None else _where(condition, decoder, topic)
        self._words = None if words is None else words.casefold()

    def decoded(self, batch: Batch) -> Decoded:
        """What is kept of a batch, decoded; all of it counts as read."""
        found = self._decoder.decode(self._of_key(batch))
        if self._where is not None:
            kept = self._where.kept(found)
            self._counts.unanswered = self._where.failed
            self._counts.first_failure = self._where.first_failure
            found = found if len(kept) == len(found) else found.only(kept)
        return found if self._words is None else found.only(mentioning(found, self._words))

    def undecoded(self, batch: Batch) -> Batch:
        """What is kept of a batch as it came; decoded only where the condition or the words must be looked for."""
        return self._of_key(batch) if self._where is None and self._words is None else self.decoded(batch).batch

    def _of_key(self, batch: Batch) -> Batch:
        self._counts.read += len(batch)
        if self._key is None:
            return batch
        return batch.only([place for place, key in enumerate(batch.keys) if key == self._key])


def _where(condition: str, decoder: Decoder, topic: str) -> Where:
    from highwater.connectors.replay.where import Where  # noqa: PLC0415 - the language is loaded where there is a condition

    where = Where(condition, decoder.arrow_type, topic, is_open=decoder.is_open)
    where.require_condition()
    return where


def write_batches(
    batches: Iterable[Decoded], writer: Writer, counts: Counts, on_progress: Callable[[int], None]
) -> None:
    """Write the batches. `on_progress` is told how many records were read."""
    for decoded in batches:
        if len(decoded):
            writer.write(decoded)
        counts.written += len(decoded)
        counts.undecodable += len(decoded.problems)
        on_progress(counts.read)

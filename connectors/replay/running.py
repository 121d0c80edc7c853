"""Runs a replay from the log to a writer: read, filter, decode, write, batch by batch.

Invariant: one batch is in memory at a time; a record counted as written was passed to the file.
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


# Records that are read, in a second or two, for one that shows whether the condition is one.
JUDGED_RECORDS_MAX = 50_000


class Chooser:
    """Filters what is read: the records of one key, those that match a condition, or all.

    A key is searched in every partition: producers may use any partitioner.
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
        """`condition` is in CEL; `words` is text that some value of the event contains, ignoring case.

        Raises:
            WhereError: it is not a condition over a record of this topic.
        """
        self._decoder = decoder
        self._counts = counts
        self._key = key
        self._where = None if condition is None else _where(condition, decoder, topic)
        self._words = None if words is None else words.casefold()

    @property
    def has_answered(self) -> bool:
        """Return whether the condition was true or false for some record, or there is none."""
        return self._where is None or self._where.answered > 0

    def decoded(self, batch: Batch) -> Decoded:
        """Return the kept part of a batch, decoded; all of it counts as read."""
        found = self._decoder.decode(self._of_key(batch))
        if self._where is not None:
            kept = self._where.kept(found)
            self._counts.unanswered = self._where.failed
            self._counts.first_failure = self._where.first_failure
            found = found if len(kept) == len(found) else found.only(kept)
        return found if self._words is None else found.only(mentioning(found, self._words))

    def undecoded(self, batch: Batch) -> Batch:
        """Return the kept part of a batch undecoded; decodes only if a condition or words require it."""
        return self._of_key(batch) if self._where is None and self._words is None else self.decoded(batch).batch

    def _of_key(self, batch: Batch) -> Batch:
        self._counts.read += len(batch)
        if self._key is None:
            return batch
        return batch.only([place for place, key in enumerate(batch.keys) if key == self._key])


def first_answered(batches: Iterable[Decoded], chooser: Chooser, counts: Counts) -> list[Decoded]:
    """Return the first batch for which the condition was true or false; none if no batch is left. The batches before
    it contain nothing that the condition keeps.

    Raises:
        WhereError: its result is not true or false.
    """
    for decoded in batches:
        if chooser.has_answered or counts.read >= JUDGED_RECORDS_MAX:
            return [decoded]
    return []


def _where(condition: str, decoder: Decoder, topic: str) -> Where:
    from highwater.connectors.replay.where import Where  # noqa: PLC0415 - the language is loaded where there is a condition

    where = Where(condition, decoder.arrow_type, topic, is_open=decoder.is_open)
    where.require_condition()
    return where


def write_batches(
    batches: Iterable[Decoded], writer: Writer, counts: Counts, on_progress: Callable[[int], None]
) -> None:
    """Write the batches. `on_progress` gets the number of records read."""
    for decoded in batches:
        if len(decoded):
            writer.write(decoded)
        counts.written += len(decoded)
        counts.undecodable += len(decoded.problems)
        on_progress(counts.read)

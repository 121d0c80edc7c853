"""Owns a replay from the log to a writer: read, decode, choose, write, batch by batch.

Law: one batch is in hand at a time; what is counted as written was handed to the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from connectors.replay.decoding import Decoder
from connectors.replay.reading import Batch
from connectors.replay.where import Where
from connectors.replay.writers import Writer


@dataclass(slots=True)
class Counts:
    """What a replay has done so far."""

    read: int = 0
    written: int = 0
    undecodable: int = 0


def chooser(decoder: Decoder, where: Where | None, counts: Counts) -> Callable[[Batch], Batch]:
    """A function that gives what the condition keeps of a batch, undecoded, and counts what it was given as read."""

    def keep(batch: Batch) -> Batch:
        counts.read += len(batch)
        return batch if where is None else batch.only(where.kept(decoder.decode(batch)))

    return keep


def write_batches(
    batches: Iterable[Batch],
    decoder: Decoder,
    where: Where | None,
    writer: Writer,
    counts: Counts,
    on_progress: Callable[[int], None],
) -> None:
    """Write what the batches hold and the condition keeps. `on_progress` is told how many records were read."""
    for batch in batches:
        decoded = decoder.decode(batch)
        if where is not None:
            kept = where.kept(decoded)
            decoded = decoded if len(kept) == len(batch) else decoded.only(kept)
        if len(decoded):
            writer.write(decoded)
        counts.read += len(batch)
        counts.written += len(decoded)
        counts.undecodable += len(decoded.problems)
        on_progress(counts.read)

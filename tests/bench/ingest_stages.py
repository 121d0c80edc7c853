"""CPU of one process for an insight from its record to COPY, stage by stage, beside the same done one by one.

No service takes part, and each figure is the least of its batches, so a busy machine changes it little. What PostgreSQL, the
fetching thread of librdkafka and the sockets take comes on top (`bench ingest`).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from highwater.connectors.feeds.bases import ActiveBasis
from highwater.connectors.feeds.sink_insights import encoded_rows, made_vectors
from highwater.connectors.kafka.chains import begin_batch
from highwater.connectors.kafka.records import Event, Record
from highwater.schemas.codec import Codec
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import to_datetime
from highwater.streams.feeds.basis import fit_basis, terms_of
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.sequencing import number_insights
from highwater.streams.feeds.terms import terms_of_all
from highwater.streams.feeds.validation import are_plain_insights, check_feeds_event
from tests.bench.figures import Figure, figure
from tests.bench.ingest import SAMPLE, TOPIC, events
from tests.bench.ingest_process import DIMENSIONS

T = TypeVar("T")

OURS, PEER = "highwater, batch by columns", "the same, event by event"
BATCH, BATCHES = 5_000, 4
FITTED_ON = 20_000
_TEXTS = 300  # as many as the embedder takes at once


class _Stages:
    """Seconds of the thread by stage and system, of each batch."""

    def __init__(self) -> None:
        self._least: dict[tuple[str, str], float] = defaultdict(lambda: float("inf"))

    def timed(self, stage: str, system: str, run: Callable[[], T]) -> T:
        began = time.thread_time()
        found = run()
        key = stage, system
        self._least[key] = min(self._least[key], (time.thread_time() - began) / BATCH * 1e6)
        return found

    def figures(self) -> Mapping[tuple[str, str], float]:
        """Microseconds an event."""
        return dict(self._least)


def _one_pass(stages: _Stages, codec: Codec, values: Sequence[bytes], embedders: Mapping[str, TextEmbedder]) -> None:
    records = [Record(TOPIC, 0, i, 1_700_000_000_000, b"k", value, []) for i, value in enumerate(values)]
    stages.timed("note causes", OURS, lambda: begin_batch("bench", records))
    stages.timed("decode", PEER, lambda: [codec.decode(TOPIC, value) for value in values])
    decoded: Any = stages.timed("decode", OURS, lambda: codec.decode_many(TOPIC, values))
    stages.timed(
        "check", PEER, lambda: [check_feeds_event(TOPIC, one, embedding_dimensions=DIMENSIONS) for one in decoded]
    )
    stages.timed("check", OURS, lambda: are_plain_insights(decoded))
    texts = [one["text"] for one in decoded]
    stages.timed("tokenize", PEER, lambda: [terms_of(text) for text in texts])
    stages.timed("tokenize", OURS, lambda: [terms_of_all(texts[i : i + _TEXTS]) for i in range(0, BATCH, _TEXTS)])
    ingested = [Event(record, one) for record, one in zip(records, decoded, strict=True)]
    for name, embedder in embedders.items():
        vectors = stages.timed(f"embed, {name}", OURS, lambda e=embedder: made_vectors(ingested, {e.basis_id: e}))
        active = ActiveBasis(embedder.basis_id, None)
    pairs = [(one["insight_id"], one["channel_id"]) for one in decoded]
    heads = {channel: 0 for _, channel in pairs}
    numbered = stages.timed("number", OURS, lambda: number_insights(pairs, known={}, heads=heads))
    stages.timed("rows", PEER, lambda: [_row(event, i) for i, event in enumerate(ingested)])
    rows = stages.timed("rows and their encoding", OURS, lambda: encoded_rows(ingested, active, vectors))
    seqs = [seq if isinstance(seq, int) else None for seq in numbered.seqs]
    stages.timed("number the rows", OURS, lambda: rows.numbered(seqs))


def _row(event: Event[Any], seq: int) -> tuple[Any, ...]:
    """As the driver's COPY takes it, which encodes it for 3 us more."""
    record, value = event
    return (
        value["insight_id"], value["channel_id"], seq, to_datetime(value["ts"]), to_datetime(record.arrived_ms), value["text"],
        value["url"], value["embedding"], value["embedding_model"], None, None, record.partition, record.offset,
    )  # fmt: skip


def run(runs: int = 3) -> list[Figure]:
    """The least of `runs` passes over the batches, without and with a fitted basis."""
    folder = os.environ.get("HW_DATA")
    rows = events(Path(folder) / "commits.jsonl.gz" if folder else SAMPLE, FITTED_ON)
    codec = Codec({topic: number for number, topic in enumerate(TOPICS, start=1)})
    values = [codec.encode(TOPIC, row) for row in rows[: BATCH * BATCHES]]
    basis = fit_basis([row["text"] for row in rows[:FITTED_ON]])
    embedders = {"unfitted basis": TextEmbedder()}
    if basis is not None:
        embedders["fitted basis"] = TextEmbedder(basis)
    stages = _Stages()
    for _ in range(runs):
        for first in range(0, len(values), BATCH):
            _one_pass(stages, codec, values[first : first + BATCH], embedders)
    return [
        {**figure(f"ingest: {stage}", system, "us an event", [round(least, 2)]), "runs": runs}
        for (stage, system), least in stages.figures().items()
    ]

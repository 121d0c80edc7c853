"""The common part of commands that read a topic in bulk: the records between two positions, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import click

from highwater.api.command.connection import kafka_client
from highwater.api.command.missing_topics import missing_topic
from highwater.api.command.terminal import progress, warn
from highwater.schemas.topics import Topic

if TYPE_CHECKING:
    from highwater.connectors.replay.decoding import Decoded, Decoder
    from highwater.connectors.replay.reading import Batch
    from highwater.connectors.replay.running import Chooser
    from highwater.connectors.replay.selection import Ranges
    from highwater.connectors.replay.shares import Span
    from highwater.streams.settings import Settings


class Selecting:
    """The selected records of one topic."""

    def __init__(self, settings: Settings, topic: Topic) -> None:
        from highwater.connectors.replay.counts import Counts
        from highwater.connectors.replay.spans import fetch_ranges, open_transactions

        self._settings = settings
        self._client = kafka_client(settings)
        self.topic = topic
        self.counts = Counts()
        self._ranges = fetch_ranges(self._client, topic.name)
        if not self._ranges:
            raise missing_topic(topic, self._client)
        for sentence in open_transactions(topic.name, self._ranges):
            warn(f"highwater: {sentence}")
        self.decoder = self._make_decoder()

    def _make_decoder(self) -> Decoder:
        from highwater.connectors.replay.foreign import decoder_of

        return decoder_of(self.topic, self._settings.registry_access())

    def spans(self, begin: str | None, end: str | None) -> Ranges:
        """Return the offsets between two positions; None: the first record, or the current end.

        Raises:
            click.UsageError: one of them is not a position.
            InvalidSelectionError: an offset is not in the topic.
        """
        from highwater.connectors.replay.selection import InvalidSelectionError, parse_bound
        from highwater.connectors.replay.spans import fetch_spans
        from highwater.streams.clock import ProductClock

        now_ms = ProductClock(self._settings.clock_file)()
        try:
            bounds = [
                None if one is None else parse_bound(one, topic=self.topic.name, now_ms=now_ms) for one in (begin, end)
            ]
        except InvalidSelectionError as error:
            raise click.UsageError(str(error), click.get_current_context()) from error
        return fetch_spans(self._client, self.topic.name, self._ranges, *bounds)

    def decoded(
        self, spans: Mapping[int, Span], *, condition: str | None = None, key: str | None = None
    ) -> Iterator[Decoded]:
        """Yield the records of the spans that match the condition and have the key.

        Raises:
            WhereError: the condition cannot be parsed.
            UnavailableError: the broker became unavailable.
        """
        chooser = self._chooser(condition, key)
        return map(chooser.decoded, self._read(spans))

    def undecoded(
        self, spans: Mapping[int, Span], *, condition: str | None = None, key: str | None = None
    ) -> Iterator[Batch]:
        """Yield the same records undecoded; errors as of `decoded`."""
        chooser = self._chooser(condition, key)
        return map(chooser.undecoded, self._read(spans))

    def _chooser(self, condition: str | None, key: str | None) -> Chooser:
        from highwater.connectors.replay.running import Chooser

        raw_key = None if key is None else key.encode("utf-8", "surrogateescape")
        return Chooser(self.topic.name, self.decoder, self.counts, key=raw_key, condition=condition)

    def _read(self, spans: Mapping[int, Span]) -> Iterator[Batch]:
        from highwater.connectors.replay.consumer import open_reader
        from highwater.connectors.replay.reading import read_batches

        total = sum(span.high - span.low for span in spans.values())
        with progress(self.topic.name, total) as bar, closing(open_reader(self._client)) as reader:
            for batch in read_batches(reader, self.topic.name, spans):
                yield batch
                bar.update(self.counts.read)

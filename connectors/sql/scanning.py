"""A topic in DuckDB's view: columns, and a scan that reads the log for each use in a query.

Invariant: a scan returns exactly the records of the log that match its condition, as of the start of the query. It
counts its reads, ends at the query's deadline, and keeps its error, since an error loses its class in DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from highwater.connectors.replay.consumer import offsets_at, open_reader
from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.reading import Batch, read_batches
from highwater.connectors.replay.selection import Ranges
from highwater.connectors.replay.shares import Share
from highwater.connectors.replay.spans import fetch_ranges, open_transactions
from highwater.connectors.replay.table import header_column
from highwater.connectors.replay.text import key_column
from highwater.connectors.sql.datasets import ds
from highwater.connectors.sql.pruning import Condition, prune
from highwater.connectors.sql.query_task import QueryTimeoutError
from highwater.connectors.sql.tables import RECORD_COLUMNS, columns_of
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import foreign_topic
from highwater.streams.clock import monotonic_seconds


class MissingTopicError(HighwaterError):
    """The broker does not have the topic. Run `highwater init`, if it is one of the product."""


@dataclass(slots=True)
class Scanned:
    """How much of one topic a query read: `held` is the size of the log, `selected` what the conditions left to read.

    `open_transactions`: a sentence about each partition of which a part could not be read.
    """

    topic: str
    held: int = 0
    selected: int = 0
    scanned: int = 0
    open_transactions: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Progress:
    """The reads of one query's scans, and their deadline, on the machine's clock."""

    deadline_seconds: float
    on_progress: Callable[[Progress], None] | None = None
    by_table: dict[str, Scanned] = field(default_factory=dict)
    failure: BaseException | None = None

    def check(self) -> None:
        """End the scan if the time is over.

        Raises:
            QueryTimeoutError: it is.
        """
        if monotonic_seconds() >= self.deadline_seconds:
            raise QueryTimeoutError
        if self.on_progress is not None:
            self.on_progress(self)

    def scanned(self) -> list[dict[str, Any]]:
        """Return the reads of each topic so far."""
        return [{"table": name, **asdict(one)} for name, one in sorted(self.by_table.items())]


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """A topic that DuckDB scans as an Arrow data set; of that class only `schema` and `scanner` are used."""

    def __init__(
        self,
        name: str,
        topic: str,
        client: Mapping[str, str],
        decoder: Decoder,
        progress: Progress,
        *,
        is_in_order: bool = True,
    ) -> None:
        """`is_in_order`: the broker sets the times of the records, so that they only grow."""
        self._is_in_order = is_in_order
        self._name = name
        self._topic = topic
        self._client = client
        self._decoder = decoder
        self._progress = progress
        self._columns = columns_of(decoder.arrow_type)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self._columns

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: object) -> Scan:  # noqa: A002 - Arrow's own name
        """Return one use of the table: these columns of the records that match the condition."""
        return Scan(self, list(columns or self._columns.names), filter)

    @cached_property
    def ranges(self) -> Ranges:
        """Return the offsets of each partition; fixed by the first scan of a query.

        Raises:
            MissingTopicError: the broker does not have the topic.
            UnavailableError: the broker does not answer.
        """
        ranges = fetch_ranges(self._client, self._topic)
        if not ranges:
            is_ours = foreign_topic(self._topic).is_catalogued
            raise MissingTopicError(
                f"{self._topic} is not on the broker" + ("; run `highwater init`" if is_ours else "")
            )
        return ranges

    def batches(self, names: list[str], condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield the result of a scan; keep its error, too."""
        try:
            yield from self._read(names, condition)
        except GeneratorExit:  # the caller needs no more
            raise
        except BaseException as error:  # Ctrl-C too: in DuckDB it would become an error of the query
            self._progress.failure = self._progress.failure or error
            raise

    def _read(self, names: list[str], condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        self._progress.check()
        with closing(open_reader(self._client)) as reader:
            spans = self._spans(condition, lambda ms: offsets_at(reader, self._topic, list(self.ranges), ms))
            counted = self._progress.by_table.setdefault(self._name, Scanned(self._topic))
            counted.held = sum(span.high - span.low for span in self.ranges.values())
            counted.open_transactions = open_transactions(self._topic, self.ranges)
            counted.selected += sum(span.high - span.low for span in spans.values())
            if not spans:
                return
            chosen = Chosen(self._decoder, self._columns, names, condition)
            for batch in read_batches(reader, self._topic, spans):
                self._progress.check()
                counted.scanned += len(batch)
                yield from chosen.of(batch)

    def _spans(self, condition: pc.Expression | None, at: object) -> dict[int, Share]:
        if condition is None:
            return {p: Share(span.low, span.high) for p, span in self.ranges.items() if span.low < span.high}
        meant = Condition(condition, self._columns)
        return prune(meant, self.ranges, at, is_in_order=self._is_in_order)  # type: ignore[arg-type]


class Scan:
    """One use of a table in a query, with the two members of Arrow's scanner that DuckDB uses."""

    def __init__(self, table: TopicTable, names: list[str], condition: pc.Expression | None) -> None:
        self._table = table
        self._names = names
        self._condition = condition
        self.projected_schema = pa.schema([table.schema.field(name) for name in names])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the records, read as they are requested."""
        return pa.RecordBatchReader.from_batches(
            self.projected_schema, self._table.batches(self._names, self._condition)
        )


class Chosen:
    """The requested columns of the records that match a condition.

    Values are decoded only if a column or the condition needs them: counting and searching for a key do not.
    """

    def __init__(self, decoder: Decoder, columns: pa.Schema, names: list[str], condition: pc.Expression | None) -> None:
        self._names = names
        self._columns = columns
        self._condition = condition
        of_record = set(RECORD_COLUMNS.names) - {"_undecodable"}
        self._is_of_record = condition is None or _is_over(condition, of_record, columns)
        is_of_chosen = self._is_of_record or (
            condition is not None and _is_over(condition, of_record.union(names), columns)
        )
        self._decoder = decoder.narrowed(names) if is_of_chosen else decoder
        self._needs_values = not of_record.issuperset(names)

    def of(self, batch: Batch) -> list[pa.RecordBatch]:
        """Return the selected part of a batch."""
        if self._is_of_record:
            if self._condition is not None:
                numbered = self._of_record(batch).append_column("", pa.array(range(len(batch)), pa.int64()))
                kept = numbered.filter(self._condition).column("").to_pylist()
                batch = batch if len(kept) == len(batch) else batch.only(kept)
            if not len(batch):
                return []
            table = self._whole(self._decoder.decode(batch)) if self._needs_values else self._of_record(batch)
        else:
            table = self._whole(self._decoder.decode(batch)).filter(self._condition)
        found: list[pa.RecordBatch] = table.select(self._names).to_batches()
        return found

    def _of_record(self, batch: Batch) -> pa.Table:
        """Return the columns that need no value."""
        return pa.table(
            {
                "_partition": pa.array(batch.partitions),
                "_offset": pa.array(batch.offsets),
                "_timestamp": pa.array(batch.times_ms * 1_000).cast(RECORD_COLUMNS.field("_timestamp").type),
                "_key": key_column(batch.keys),
                "_headers": header_column(batch.headers),
            }
        )

    def _whole(self, decoded: Decoded) -> pa.Table:
        """Return all columns."""
        value = decoded.column  # first, because it may find more problems
        count, problems = len(decoded), decoded.problems
        reasons = [problems.get(place) for place in range(count)] if problems else [None] * count
        table = self._of_record(decoded.batch)
        # `flatten` and not `field`: below a tombstone each field is null too.
        columns = [*table.columns, pa.array(reasons, pa.string()), *value.flatten()]
        return pa.Table.from_arrays(columns, schema=self._columns)


def _is_over(condition: pc.Expression, names: set[str], columns: pa.Schema) -> bool:
    """Return whether a condition uses only these columns."""
    empty = pa.table({name: pa.array([], columns.field(name).type) for name in sorted(names)})
    try:
        empty.filter(condition)
    except pa.ArrowInvalid:  # it names a column that does not exist
        return False
    return True

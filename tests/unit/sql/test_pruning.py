"""Which offsets a condition leaves to read, over a log of which only the times are known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.sql.pruning import Condition, Interval, prune
from highwater.connectors.sql.tables import RECORD_COLUMNS

SCHEMA = pa.schema([*RECORD_COLUMNS, ("seq", pa.int64()), ("text", pa.string())])
PARTITION, OFFSET, TIME, SEQ = (pc.field(name) for name in ("_partition", "_offset", "_timestamp", "seq"))
# In each partition the record at offset n arrives at the second n; offsets 10 to 99 are held.
RANGES = {0: LogRange(10, 100), 1: LogRange(10, 100), 2: LogRange(10, 10)}


def at(second: float) -> pa.Scalar:
    """A moment."""
    return pa.scalar(datetime.fromtimestamp(second, UTC), pa.timestamp("us", "UTC"))


def offsets_at(ms: int) -> dict[int, int]:
    """The first record then or later."""
    return {partition: min(held.high, max(held.low, -(-ms // 1_000))) for partition, held in RANGES.items()}


def pruned(expression: pc.Expression) -> dict[int, tuple[int, int]]:
    """The ranges left to read, by partition."""
    return {p: tuple(span) for p, span in prune(Condition(expression, SCHEMA), RANGES, offsets_at).items()}


def member(field: pc.Expression, kind: pa.DataType, *values: int) -> pc.Expression:
    """`IN`, as DuckDB writes it."""
    found = pc.is_in(field, value_set=pa.array(values, kind))
    return pc.if_else(field.is_valid(), found, pa.scalar(None, pa.bool_()))


BOTH = {0: (10, 100), 1: (10, 100)}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ((at(20) <= TIME) & (at(30) > TIME), {0: (20, 100), 1: (20, 100)}),
        ((at(20) <= TIME) & (PARTITION == 1), {1: (20, 100)}),
        (at(30) > TIME, BOTH),
        (at(-5) > TIME, BOTH),
    ],
)
def test_times_that_producers_set_end_nothing(expression: pc.Expression, expected: dict[int, tuple[int, int]]):
    """A record that comes later may have an earlier time; before the first of the interval nothing can be."""
    found = prune(Condition(expression, SCHEMA), RANGES, offsets_at, is_in_order=False)
    assert expected == {partition: tuple(span) for partition, span in found.items()}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (SEQ == 3, BOTH),
        (PARTITION == 1, {1: (10, 100)}),
        (member(PARTITION, pa.int32(), 0, 7), {0: (10, 100)}),
        ((PARTITION == 1) | (SEQ == 3), BOTH),
        ((PARTITION == 5), {}),
        (OFFSET == 42, {0: (42, 43), 1: (42, 43)}),
        ((OFFSET > 42) & (OFFSET <= 50) & (PARTITION == 0), {0: (43, 51)}),
        ((OFFSET < 5) & (SEQ == 1), {}),
        (at(90) <= TIME, {0: (90, 100), 1: (90, 100)}),
        (at(90) < TIME, {0: (90, 100), 1: (90, 100)}),
        ((at(20) <= TIME) & (at(30) > TIME), {0: (20, 30), 1: (20, 30)}),
        ((at(20) <= TIME) & (at(30) >= TIME), {0: (20, 31), 1: (20, 31)}),
        ((at(20) > TIME) & (at(30) < TIME), {}),
        ((at(20) > TIME) | (at(80) < TIME), BOTH),
        ((at(20) > TIME) | (PARTITION == 1), BOTH),
        (((at(20) > TIME) & (PARTITION == 0)) | ((at(30) > TIME) & (PARTITION == 1)), {0: (10, 30), 1: (10, 30)}),
        ((at(2_000_000_000) <= TIME), {}),
        (pc.field("_key") == "a", BOTH),
        (~(PARTITION == 1), {0: (10, 100)}),
    ],
)  # fmt: skip
def test_what_a_condition_leaves_to_read(expression, expected):
    """The least span of each partition that holds every record for which the condition may be true."""
    assert expected == pruned(expression)


def test_a_condition_on_times_is_exact_to_the_millisecond():
    """Both ends belong to it, with any microseconds."""
    assert Condition(at(20.0015) <= TIME, SCHEMA).interval() == Interval(20_001, None)
    assert Condition((at(20) < TIME) & (at(21.0005) >= TIME), SCHEMA).interval() == Interval(20_000, 21_000)
    assert Condition(SEQ > 3, SCHEMA).interval() == Interval(None, None)


LEAVES = st.one_of(
    st.integers(0, 3).map(lambda p: p == PARTITION),
    st.tuples(st.sampled_from(["<", ">="]), st.integers(5, 105)).map(
        lambda one: one[1] > OFFSET if one[0] == "<" else one[1] <= OFFSET
    ),
    st.tuples(st.sampled_from(["<", ">="]), st.integers(5, 105)).map(
        lambda one: at(one[1]) > TIME if one[0] == "<" else at(one[1]) <= TIME
    ),
    st.integers(0, 3).map(lambda n: n == SEQ),
)


def _joined(one: Any, other: Any) -> Any:
    return st.tuples(one, other, st.booleans()).map(lambda made: made[0] & made[1] if made[2] else made[0] | made[1])


# Every shape of up to four comparisons.
PAIRS = LEAVES | _joined(LEAVES, LEAVES)
CONDITIONS = PAIRS | _joined(PAIRS, PAIRS) | _joined(_joined(PAIRS, LEAVES), LEAVES)


@given(CONDITIONS)
def test_no_record_that_a_condition_holds_for_is_left_out(expression):
    """This holds for any combination of comparisons with AND and OR."""
    places = [(p, offset) for p, held in RANGES.items() for offset in range(held.low, held.high)]
    table = pa.table(
        {
            "_partition": pa.array([p for p, _ in places], pa.int32()),
            "_offset": pa.array([offset for _, offset in places], pa.int64()),
            "_timestamp": pa.array([offset * 1_000_000 for _, offset in places]).cast(pa.timestamp("us", "UTC")),
            "seq": pa.array([offset % 4 for _, offset in places], pa.int64()),
        }
    )
    found = table.filter(expression).select(["_partition", "_offset"]).to_pylist()
    spans = pruned(expression)
    for one in found:
        low, high = spans[one["_partition"]]
        assert low <= one["_offset"] < high

"""Which process reads which partitions, and when one is enough."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.replay.shares import PROCESSES_MAX, SHARE_RECORDS_MIN, shares_of

SPANS = st.dictionaries(
    st.integers(0, 20),
    st.tuples(st.integers(0, 10), st.integers(0, 3 * SHARE_RECORDS_MIN)).map(lambda ends: LogRange(ends[0], sum(ends))),
    max_size=12,
)


@given(SPANS, st.integers(1, 64))
def test_every_partition_is_read_once(spans: dict[int, LogRange], cores: int):
    """All of each partition, by exactly one of at most as many processes as there are cores, and as memory allows."""
    shares = shares_of(spans, cores)
    read = [(partition, span.low, span.high) for share in shares for partition, span in share.items()]
    assert sorted(read) == sorted((partition, span.low, span.high) for partition, span in spans.items())
    assert 1 <= len(shares) <= min(cores, PROCESSES_MAX)


@given(SPANS, st.integers(1, 64))
def test_a_process_is_started_only_where_it_pays(spans: dict[int, LogRange], cores: int):
    """With several processes, each has more to read than it could have read during its start."""
    shares = shares_of(spans, cores)
    sizes = [sum(span.high - span.low for span in share.values()) for share in shares]
    assert len(shares) == 1 or min(sizes) >= SHARE_RECORDS_MIN


def test_shares_are_even():
    """The largest partitions are dealt out first."""
    spans = {p: LogRange(5, 5 + SHARE_RECORDS_MIN * size) for p, size in enumerate([1, 5, 2, 2])}
    assert [sorted(share) for share in shares_of(spans, 2)] == [[1], [0, 2, 3]]
    assert len(shares_of({0: LogRange(0, 10 * SHARE_RECORDS_MIN)}, 2)) == 1
    assert len(shares_of(spans, 1)) == 1

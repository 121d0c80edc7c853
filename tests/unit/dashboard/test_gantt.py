"""The geometry of timelines: bars are inside their track, in proportion, and always seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.api.dashboard.gantt import WIDTH_PERCENT_MIN, Span, bars, extent, gantt_html, ticks

NOW = 10_000
_MS = st.integers(0, 20_000)
SPANS = st.lists(st.builds(Span, st.just("call"), _MS, st.none() | _MS), max_size=8)


def test_bars_are_in_proportion():
    """A stage in the second quarter of ten seconds; a running one reaches to now."""
    spans = [Span("analyzer", 2_500, 5_000), Span("responder", 5_000, None)]
    first, second = bars(spans, 0, NOW)
    assert (first.left_percent, first.width_percent) == (25, 25)
    assert (second.left_percent, second.width_percent) == (50, 50)


def test_a_short_call_is_seen_at_the_end_too():
    """A millisecond of ten seconds has the least width, and stays inside."""
    whole, call = bars([Span("in all", 0, NOW), Span("call 1", 9_999, 10_000)], 0, NOW)
    assert whole.width_percent == 100
    assert round(call.width_percent, 6) == WIDTH_PERCENT_MIN
    assert call.left_percent + call.width_percent <= 100 + 1e-9


@given(SPANS, _MS, _MS)
def test_every_bar_is_inside_its_track(spans, begin_ms, now_ms):
    """This holds for any times, also if a step ends before it begins."""
    for bar in bars(spans, begin_ms, now_ms):
        assert bar.left_percent >= 0
        assert bar.width_percent + 1e-9 >= WIDTH_PERCENT_MIN
        assert bar.left_percent + bar.width_percent <= 100 + 1e-9


@given(SPANS, _MS, _MS)
def test_the_axis_holds_every_span(spans, begin_ms, now_ms):
    """It begins with the first and ends with the last; it is never empty."""
    begin, end = extent(spans, begin_ms, now_ms)
    assert begin < end
    assert all(begin <= one.begin_ms for one in spans)
    assert all((now_ms if one.end_ms is None else one.end_ms) <= end for one in spans)


@given(st.integers(1, 10**10))
def test_labels_are_few_and_round(duration_ms):
    """Up to five, the first at the begin, none past the end."""
    found = ticks(duration_ms)
    assert 1 <= len(found) <= 5
    assert found[0] == (0, "0 s")
    assert all(0 <= place <= 100 for place, _ in found)


def test_labels_of_seven_seconds():
    """Every two seconds."""
    assert [label for _, label in ticks(7_000)] == ["0 s", "2 s", "4 s", "6 s"]


def test_names_are_escaped():
    """The name of a step comes from the event's producer."""
    assert "<b>" not in gantt_html([Span("<b>", 0, 1)], 0, 1)

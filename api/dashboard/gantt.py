"""A timeline as bars over one axis, with the rows of the equivalent table: stages or steps, and the calls within them.

Invariant: pure functions of spans and of `now_ms`. A bar is inside its track and wide enough to be seen, even if
clocks disagree: a span that ends before it begins, or that begins after the last end, is drawn at the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from highwater.api.dashboard import figures

# A call of a few ms in a run of minutes is still a visible line.
WIDTH_PERCENT_MIN = 0.6
# Labels below the axis; more would overlap on a phone.
_TICKS = 4
# Steps of the axis in ms, so that its labels are round.
_TICK_STEPS_MS = tuple(base * 10**power for power in range(11) for base in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time; `end_ms` None: in progress. `tone` is a CSS class, `about` is shown beside its name."""

    name: str
    begin_ms: int
    end_ms: int | None
    tone: str = ""
    about: str = ""
    is_inner: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """The place of a span, in percent of the axis."""

    span: Span
    left_percent: float
    width_percent: float


def extent(spans: Sequence[Span], begin_ms: int, now_ms: int) -> tuple[int, int]:
    """Return the axis: from the first begin to the last end; unfinished spans end now. At least 1 ms."""
    begin = min([begin_ms, *(one.begin_ms for one in spans)])
    ends = [now_ms if one.end_ms is None else one.end_ms for one in spans]
    return begin, max([begin + 1, *ends])


def bars(spans: Sequence[Span], begin_ms: int, now_ms: int) -> list[Bar]:
    """Return a bar for each span, in their order."""
    begin, end = extent(spans, begin_ms, now_ms)
    scale = 100 / (end - begin)
    found = []
    for one in spans:
        until = now_ms if one.end_ms is None else one.end_ms
        left = min(max(0.0, (one.begin_ms - begin) * scale), 100 - WIDTH_PERCENT_MIN)
        width = max(WIDTH_PERCENT_MIN, (until - one.begin_ms) * scale)
        found.append(Bar(one, left, width))
    return found


def ticks(duration_ms: int) -> list[tuple[float, str]]:
    """Return up to five places on the axis in percent with their labels: round times from the beginning."""
    step = next((one for one in _TICK_STEPS_MS if one * _TICKS >= duration_ms), _TICK_STEPS_MS[-1])
    return [(100 * at / duration_ms, figures.seconds(at / 1000)) for at in range(0, duration_ms + 1, step)]


def gantt_html(spans: Sequence[Span], begin_ms: int, now_ms: int) -> str:
    """Return the bars as HTML. A screen reader skips them: the table beside them contains the same."""
    begin, end = extent(spans, begin_ms, now_ms)
    lines = "".join(
        f'<div class="hw-gantt-name{" inner" if one.span.is_inner else ""}">{escape(one.span.name)}</div>'
        f'<div class="hw-gantt-track"><i class="{one.span.tone}" '
        f'style="left:{one.left_percent:.2f}%;width:{one.width_percent:.2f}%"></i></div>'
        f'<div class="hw-gantt-took">{took(one.span)}</div>'
        for one in bars(spans, begin_ms, now_ms)
    )
    axis = "".join(f'<span style="left:{place:.2f}%">{label}</span>' for place, label in ticks(end - begin))
    return f'<div class="hw-gantt" aria-hidden="true">{lines}<div class="hw-gantt-axis">{axis}</div></div>'


def took(span: Span) -> str:
    """Return its duration."""
    return "running" if span.end_ms is None else figures.seconds(max(0, span.end_ms - span.begin_ms) / 1000)

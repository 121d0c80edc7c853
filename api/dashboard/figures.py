"""Numbers, times and small pictures as text: the same on every page.

Invariant: all external text is escaped here before it becomes part of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from highwater.schemas.envelope import iso_from_ms

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_UNITS = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s"))
DASH = "-"
_SPARK_WIDTH, _SPARK_HEIGHT = 90, 22


def rate(per_second: float | None) -> str:
    """Return events per second in readable form: three significant digits."""
    if per_second is None:
        return DASH
    if per_second == 0:
        return "0/s"
    if per_second < 0.1:
        return "<0.1/s"
    return f"{per_second:,.1f}/s" if per_second < 100 else f"{per_second:,.0f}/s"


def count(number: int | None) -> str:
    """Return a number with thousands separators."""
    return DASH if number is None else f"{number:,}"


def short_count(number: float) -> str:
    """Return a number in about four characters."""
    for limit, divisor, unit in ((10_000, 1, ""), (1_000_000, 1_000, " k"), (1_000_000_000, 1_000_000, " M")):
        if number < limit:
            return f"{number / divisor:,.0f}{unit}"
    return f"{number / 1e9:,.1f} G"


def size(size_bytes: int) -> str:
    """Return a number of bytes in its largest unit."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= limit:
            return f"{size_bytes / limit:,.1f} {unit}"
    return f"{size_bytes} B"


def seconds(value: float | None) -> str:
    """Return a duration in its two largest units."""
    if value is None:
        return DASH
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < _MINUTE:
        return f"{value:.1f} s" if value < 10 and value != int(value) else f"{value:.0f} s"
    for size, unit, smaller, its_unit in _UNITS:
        if value >= size:
            rest = int(value % size // smaller)
            return f"{value // size:.0f} {unit}" + (f" {rest} {its_unit}" if rest else "")
    return f"{value:.0f} s"


def rough(value: float) -> str:
    """Return a duration in its largest unit."""
    return " ".join(seconds(value).split(" ")[:2])


def moment(ms: int | None) -> str:
    """Return a time in UTC to the second; the page states that it is UTC."""
    return DASH if ms is None else iso_text(iso_from_ms(ms))


def iso_text(iso: str | None) -> str:
    """Return a time of the API, to the second."""
    return DASH if not iso else iso[:19].replace("T", " ")


def ago(ms: int | None, now_ms: int) -> str:
    """Return how long ago, or how far in the future."""
    if ms is None:
        return "never"
    gap = (now_ms - ms) / 1000
    return f"{rough(round(gap))} ago" if gap >= 0 else f"in {rough(round(-gap))}"


def spark_points(values: Sequence[float]) -> str:
    """Return the points of a line through values, for an SVG of 90 by 22."""
    if len(values) < 2:
        return ""
    top = max(*values, 1e-9)
    step = _SPARK_WIDTH / (len(values) - 1)
    usable = _SPARK_HEIGHT - 4
    return " ".join(f"{index * step:.0f},{2 + usable * (1 - value / top):.1f}" for index, value in enumerate(values))


def spark(values: Sequence[float], label: str) -> str:
    """Return a line through values as an SVG; the highest is the top."""
    return (
        f'<svg class="hw-spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none"><polyline points="{spark_points(values)}"/></svg>'
    )

"""Charts: lines break at gaps, the axis holds every value, the highest lines are drawn, nothing from outside is markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from highwater.api.dashboard.charts import HEIGHT, LINES_MAX, WIDTH, draw, lines_of, runs, top_of


def document(*series: tuple[str, list[float | None]], unit: str = "events/s") -> dict:
    """An answer of the API."""
    return {
        "metric": "rate",
        "title": "Events per second",
        "about": "What it counts",
        "unit": unit,
        "label": "topic",
        "begin": "2026-11-20T12:00:00Z",
        "end": "2026-11-20T13:00:00Z",
        "step_seconds": 60,
        "series": [{"name": name, "values": values} for name, values in series],
    }


def test_a_line_breaks_at_a_gap() -> None:
    """Two runs are two lines; a value alone between gaps is a dot."""
    values = [1.0, 2.0, None, 3.0, None, 4.0, 5.0]
    assert [[place for place, _ in run] for run in runs(values)] == [[0, 1], [3], [5, 6]]
    picture = draw(document(("a", values)))
    assert (picture.count("<polyline"), picture.count("<circle")) == (2, 1)
    for points in re.findall(r'points="([^"]+)"', picture):
        for x, y in (pair.split(",") for pair in points.split()):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


def test_the_axis_ends_at_a_round_number_above_every_value() -> None:
    """Not at the value itself, and not far above it."""
    tops = [top_of(value, 0.1) for value in (0.0, 0.03, 1.0, 2.2, 7.0, 990.0, 1_001.0)]
    assert tops == pytest.approx([1, 0.1, 1, 3, 8, 1_000, 2_000])


@pytest.mark.parametrize("unit", ["events", "events/s", "s", "ratio"])
def test_no_label_of_an_axis_is_repeated_or_rounded(unit: str) -> None:
    """Small counts have whole numbers, such as 0 and 1; a label stands where its number is."""
    for highest in (*range(1, 40), 0.003, 0.04, 0.11, 0.5, 1.3, 250, 9_999, 10_001, 25_000, 1_234_567):
        if unit == "events" and highest != int(highest):
            continue
        picture = draw(document(("a", [0.0, float(highest)]), unit=unit))
        labels = re.findall(r'text-anchor="end">([^<]*)</text>', picture)[:-1]  # the last one is of the time
        assert len(labels) == len(set(labels)) > 1, (highest, labels)
        if unit.startswith("events") and highest < 5_000:
            _, *half, top = (float(label.replace(",", "").removesuffix("/s")) for label in labels)
            assert half in ([], [top / 2]), (highest, labels)
    few = draw(document(("a", [0.0, 1.0]), unit="events"))
    assert re.findall(r'text-anchor="end">([^<]*)</text>', few)[:-1] == ["0", "1"]


def test_the_lines_with_the_highest_peaks_are_drawn_and_the_others_are_counted() -> None:
    """A hundred topics are no chart."""
    series = [(f"t{n}", [float(n), None]) for n in range(LINES_MAX + 3)]
    shown = document(*series)
    assert [line.name for line in lines_of(shown["series"])][:2] == [f"t{LINES_MAX + 2}", f"t{LINES_MAX + 1}"]
    assert "3 more" in draw(shown)


def test_no_sample_is_said_and_what_comes_from_outside_is_no_markup() -> None:
    """An empty chart is a sentence; names are escaped."""
    assert "<svg" not in draw(document())
    assert "Nothing was recorded" in draw(document(("a", [None, None])))
    picture = draw(document(("<b>x</b>", [1.0, 2.0])))
    ET.fromstring(re.search(r"<svg.*</svg>", picture)[0])
    assert "<b>x" not in picture


def test_a_line_leads_to_what_it_counts() -> None:
    """To the page of its topic or its consumer; a cache has none. Names are escaped in addresses too."""
    shown = document(('a"/b', [1.0, 2.0]))
    assert 'href="/topics/a%22%2Fb"' in draw(shown)
    assert 'href="/groups/a%22%2Fb"' in draw({**shown, "label": "consumer"})
    assert "<a " not in draw({**shown, "label": "cache"})

"""How `bench week` detects growth, and how `bench overload` and `week` draw."""

import xml.etree.ElementTree as ET

import pytest

from tests.bench.graph import Curve, Panel, Phase, draw
from tests.bench.week import HOURS, RECORDS, levels


def samples_of(part: str, name: str, values: list[float]) -> list[dict[str, dict[str, float]]]:
    """Samples of one measure."""
    return [{"memory": {}, "rows": {}, "keys": {}, "disk": {}, part: {name: value}} for value in values]


@pytest.mark.parametrize(
    ("part", "name", "values", "grows"),
    [
        ("rows", "leases", [50.0] * HOURS, False),
        ("rows", "leases", [float(min(hour, 60) * 40) for hour in range(HOURS)], False),  # a level after two days and a half
        ("rows", "leases", [hour * 40.0 for hour in range(HOURS)], True),
        ("rows", "insights", [hour * 40.0 for hour in range(HOURS)], False),  # a record, with the load
        ("rows", "insights", [hour * hour * 4.0 for hour in range(HOURS)], True),  # and faster than it
        ("memory", "api", [100 + hour % 5 * 2.0 for hour in range(HOURS)], False),
        ("memory", "api", [100 + hour * 0.5 for hour in range(HOURS)], True),
        ("keys", "REDIS_URL kept", [hour * 10.0 for hour in range(HOURS)], True),
        ("rows", "leases", [hour * 40.0 for hour in range(30)], False),  # a day without any data
    ],
)  # fmt: skip
def test_growth_is_told_from_a_level(part: str, name: str, values: list[float], grows: bool):
    """The last two days are compared with the two before; of records, how fast they grow."""
    assert levels(samples_of(part, name, values))[f"{part} {name}"]["grows"] is grows


def test_each_record_says_why_it_is_kept():
    """A table that may grow has a reason."""
    assert all(RECORDS.values())


def test_a_graph_is_a_document_with_every_curve():
    """It is well-formed with any names; the points of each curve lie within the picture."""
    panel = Panel("a & b", [Curve("<x>", [(0, 0), (1, 5), (2, 2.5)]), Curve("none", [])])
    drawn = ET.fromstring(draw("t", [panel, panel], [Phase("p", 0, 1), Phase("q", 1, 2)], "minutes"))
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 0, 3, 0]
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    for point in lines[0].attrib["points"].split():
        x, y = map(float, point.split(","))
        assert (0 <= x <= width, 0 <= y <= height) == (True, True)

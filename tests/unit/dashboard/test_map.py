"""The map of clusters: every point in the drawing, no label on another, nothing from outside as markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from highwater.api.dashboard.map import POINTS_MAX, draw, points_of


def cluster(label: str, *places: tuple[float, float]) -> dict:
    """A cluster with an insight at each place."""
    ids = [f"{label}-{n}" for n in range(len(places))]
    return {"label": label, "insight_ids": ids, "positions": places, "position": places[0]}


def document(*clusters: dict, outside: tuple = ()) -> dict:
    """A version as the API serves it."""
    ids = [f"o{n}" for n in range(len(outside))]
    return {"clusters": list(clusters), "outside": {"insight_ids": ids, "positions": outside}}


def test_points_lie_within_the_drawing_and_keep_their_shape():
    """Both axes have one scale."""
    served = document(cluster("a", (0.0, 0.0), (10.0, 0.0)), cluster("b", (0.0, 1.0)), outside=((5.0, 0.5), None))
    found = points_of(served)
    assert (found.total, len(found.points)) == (4, 4)
    picture = draw(served, found, {})
    ET.fromstring(picture)
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)]
    assert all(0 <= x <= 900 and 0 <= y <= 520 for x, y in places)
    xs, ys = {x for x, _ in places}, {y for _, y in places}
    assert abs((max(xs) - min(xs)) / (max(ys) - min(ys)) - 10) < 0.1


def test_many_points_are_thinned_and_counted():
    """A browser draws a limited number; the page shows the total."""
    places = tuple((float(n), float(n % 7)) for n in range(3 * POINTS_MAX))
    found = points_of(document(cluster("a", *places)))
    assert found.total == 3 * POINTS_MAX
    assert len(found.points) <= POINTS_MAX


def test_what_comes_from_outside_is_no_markup():
    """Labels and texts of insights are escaped."""
    served = document(cluster("<b>x</b>", (0.0, 0.0), (1.0, 1.0)))
    picture = draw(served, points_of(served), {"<b>x</b>-0": "<script>alert(1)</script>"})
    ET.fromstring(picture)
    assert "<script>" not in picture
    assert "<b>" not in picture


def test_labels_that_find_no_room_are_left_out():
    """Ten clusters in one spot: at most one label above and one below."""
    served = document(*(cluster(f"label {n}", (0.0, 0.0), (1.0, 1.0)) for n in range(10)))
    assert draw(served, points_of(served), {}).count("<text") == 2

"""The history of clusters as a river: sizes last until they change, bands lie on each other, few bands, no markup."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree as ET

from highwater.api.dashboard.river import BANDS_MAX, HEIGHT, WIDTH, draw, river_of


def change(version: int, name: str, size: int, label: str = "") -> dict[str, Any]:
    """A row of the history."""
    return {"cluster_version": version, "cluster_id": name, "size": size, "label": label or name}


def no_page(_: str) -> None:
    """No band leads anywhere."""


def test_a_size_lasts_until_the_cluster_changes() -> None:
    """From its birth on, to its end; the label is the last one."""
    found = river_of([change(2, "a", 5), change(2, "b", 3), change(4, "a", 9, "A"), change(5, "b", 0)], 6)
    assert (found.first, found.versions, found.others) == (2, 5, 0)
    assert [(band.label, band.sizes) for band in found.bands] == [("A", (5, 5, 9, 9, 9)), ("b", (3, 3, 3, 0, 0))]
    assert [band.is_alive for band in found.bands] == [True, False]


def test_small_clusters_are_one_band() -> None:
    """Together they are as large as each of them was."""
    found = river_of([change(1, f"c{n:02}", 100 - n) for n in range(BANDS_MAX + 3)], 2)
    assert (len(found.bands), found.others) == (BANDS_MAX + 1, 3)
    assert found.bands[-1].sizes == (100 - 10 + 100 - 11 + 100 - 12,) * 2


def test_bands_lie_on_each_other_within_the_drawing() -> None:
    """At every version each begins where the one above it ends; so it is with a single version."""
    changes = [change(1, "a", 5), change(1, "b", 8), change(2, "a", 1), change(3, "c", 4), change(3, "b", 0)]
    for newest in (1, 3):
        found = river_of([row for row in changes if row["cluster_version"] <= newest], newest)
        picture = draw(found, newest, {"a": 0}, no_page)
        ways = [
            [tuple(map(float, point.split(","))) for point in points.split()]
            for points in re.findall(r'points="([^"]*)"', picture)
        ]
        assert len(ways) == len(found.bands)
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for way in ways for x, y in way)
        for above, below in itertools.pairwise(ways):
            half = len(above) // 2
            assert above[half:][::-1] == below[:half]


def test_what_comes_from_outside_is_no_markup_and_bands_lead_to_their_clusters() -> None:
    """Labels are escaped; the version that is shown is marked."""
    found = river_of([change(1, "a", 50, "<b>x</b>"), change(2, "a", 60, "<b>x</b>")], 2)
    picture = draw(found, 1, {"a": 0}, lambda name: f"/user?id=1&cluster={name}")
    ET.fromstring(picture)
    assert "<b>" not in picture
    assert 'href="/user?id=1&amp;cluster=a"' in picture
    assert picture.count('class="shown"') == 1
    assert 'class="shown"' not in draw(found, 9, {}, no_page)
    assert draw(river_of([], 0), 0, {}, no_page) == ""

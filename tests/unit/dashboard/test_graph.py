"""The graph of an explanation: boxes apart, links to pages, a limit, nothing from outside as markup."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

from highwater.api.dashboard.addresses import step_address
from highwater.api.dashboard.graph import BOX_HEIGHT, BOX_WIDTH, NODES_MAX, draw

INSIGHT = {"insight_id": "i/1", "channel_id": "c", "seq": 4}


def step(kind: str, *causes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A step as the API gives it."""
    return {"kind": kind, "about": kind, "numbers": {}, "causes": list(causes), **more}


def no_page(_: object) -> None:
    """No step has a page."""


def test_boxes_lie_apart_and_within_the_drawing() -> None:
    """This holds for any shape of the tree; there is one line per cause."""
    tree = step("served", step("bump", step("a", step("b"), step("c", step("d"))), step("e")), step("f"))
    picture = ET.fromstring(draw(tree, no_page))
    width, height = (float(number) for number in picture.attrib["viewBox"].split()[2:])
    places = [(float(one.attrib["x"]), float(one.attrib["y"])) for one in picture.iter("rect")]
    assert len(places) == 8
    assert all(0 <= x <= width - BOX_WIDTH and 0 <= y <= height - BOX_HEIGHT for x, y in places)
    apart = [
        abs(x - other_x) >= BOX_WIDTH or abs(y - other_y) >= BOX_HEIGHT
        for number, (x, y) in enumerate(places)
        for other_x, other_y in places[:number]
    ]
    assert all(apart)
    assert sum(one.attrib["class"] == "way" for one in picture.iter("g")) == 7


def test_a_large_graph_is_cut_and_counts_what_is_left_out() -> None:
    """The steps nearest to the served resource stay."""
    wide = [step("insight", about=f"number {n}") for n in range(NODES_MAX)]
    picture = draw(step("served", step("bump", *wide)), no_page)
    assert picture.count("<rect") == NODES_MAX
    assert "2 more in the list" in picture


def test_a_step_leads_to_its_page() -> None:
    """An insight and a match lead to their pages for every visitor; other events lead to their record if the visitor may read
    topics.
    """
    event = step("event", position="feeds.insight-ingested/3/17")
    assert step_address(step("insight", numbers=INSIGHT), sees_all=False) == "/insight?channel=c&id=i%2F1"
    assert step_address(step("change", numbers={"match_id": "m 1"}), sees_all=False) == "/match?id=m+1"
    assert step_address(event, sees_all=False) is None
    assert step_address(step("event", position="none"), sees_all=True) is None
    found = step_address(event, sees_all=True)
    assert found is not None
    assert re.match(r"/browse\?.*record=3%2F17", found)
    assert '<a href="/insight?channel=c&amp;id=i%2F1">' in draw(
        step("served", step("insight", numbers=INSIGHT)), lambda one: step_address(one, sees_all=False)
    )


def test_what_comes_from_outside_is_no_markup() -> None:
    """Texts of insights are escaped, and cut where they are long."""
    picture = draw(step("insight", about="<script>alert(1)</script> " * 9, missing="<b>"), no_page)
    ET.fromstring(picture)
    assert "<script>" not in picture
    assert "…</text>" in picture

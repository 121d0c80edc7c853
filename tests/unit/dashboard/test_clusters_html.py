"""A version of clusters in words: members in order, lists that say what they leave out, no markup from outside."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard import clusters_html
from highwater.api.dashboard.clusters_html import MEMBERS_MAX
from highwater.api.dashboard.zoom_map import SELECTED_MAX, Selection, selection_of

LABEL = "<i>label</i>"


def cluster(members: int) -> dict[str, Any]:
    """A cluster as the API serves it; the last of its insights is the representative, the first belongs to it most."""
    ids = [f"i{n:03}" for n in range(members)]
    numbers = {"size": members, "born_version": 1, "since": [1] * members}
    confidences = [1 - n / (2 * members) for n in range(members)]
    words = {"cluster_id": "c", "label": LABEL, "title": LABEL, "keywords": ["k"], "summary": "<u>s</u>"}
    return {**words, **numbers, "insight_ids": ids, "confidences": confidences, "representative_id": ids[-1]}


def rows(ids: list[str]) -> dict[str, dict[str, Any]]:
    """Their texts."""
    return {one: {"insight_id": one, "channel_id": "ch", "text": f"<b>{one}</b>", "ts": 0} for one in ids}


def test_the_representative_is_first_and_the_rest_is_counted() -> None:
    """Then those that belong to the cluster most; a retracted one, which has no text, is left out."""
    one = cluster(MEMBERS_MAX + 5)
    listed = clusters_html.listed(one)
    assert (listed[:3], len(listed)) == ([one["insight_ids"][-1], "i000", "i001"], MEMBERS_MAX)
    shown = clusters_html.cluster(one, rows(listed), 3)
    assert "and 5 more" in shown
    assert "/insight?channel=ch&amp;id=i000" in shown
    assert "i000" not in clusters_html.cluster(one, rows(listed[2:]), 3)


def test_what_comes_from_outside_is_no_markup() -> None:
    """In the cluster, in the feed, and in a selection."""
    one = cluster(2)
    document = {"clusters": [one], "cluster_version": 1, "updated_at": "2026-01-01T00:00:00Z", "noise": 0}
    shown = (
        clusters_html.cluster(one, rows(one["insight_ids"]), 1)
        + clusters_html.feed(document, lambda name: f"?{name}", is_now=False)
        + clusters_html.selection(["i000"], 1, rows(["i000"]))
    )
    assert "&lt;i&gt;" in shown
    assert not any(tag in shown for tag in ("<i>", "<u>", "<b>i"))


def test_a_selection_without_a_point_says_what_to_do() -> None:
    """And one of many says how many there are."""
    assert "Draw it around some" in clusters_html.selection([], 0, {})
    assert "and 899 more" in clusters_html.selection(["i000"], 900, rows(["i000"]))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"ids": ["a", "b"], "total": 2}, Selection(("a", "b"), 2)),
        ({"ids": ["a", 7, None, "x" * 600], "total": 4}, Selection(("a",), 4)),
        ({"ids": "abc", "total": "many"}, Selection((), 0)),
        (["a"], Selection((), 0)),
        (None, Selection((), 0)),
        ({"ids": ["a"] * 9_999, "total": 9_999}, Selection(("a",) * SELECTED_MAX, 9_999)),
    ],
)
def test_a_browser_may_send_anything(sent: object, expected: Selection) -> None:
    """Anything except ids and a number is ignored."""
    assert selection_of(sent) == expected

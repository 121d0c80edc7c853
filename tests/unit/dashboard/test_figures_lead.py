"""Every figure of the console leads to what it counts: the search for those that do not, and the builders of pages."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard import clusters_html, restarts
from highwater.api.dashboard.pages import chunks, group, groups, league, letters, topic
from highwater.api.dashboard.tables import Sorting, numbers, table_html
from highwater.api.dashboard.tiles import linked
from highwater.api.dashboard.view import facts
from highwater.api.dead_letters.selecting import ReasonGroup
from tests.browser.unlinked import unlinked

PARTITION = {
    "topic": "t", "partition": 3, "next": 7, "end": 12, "lag": 5, "first": 4, "leader": 1, "replicas": [1], "in_sync": [1],
    "size_bytes": 9, "stopped": None, "member": None,
}  # fmt: skip
GROUP = {"group": "g", "is_catalogued": True, "lag": 5, "state": "stable"}
NAMESPACE = {
    "ns": "n", "is_hot": False, "chunks": 9, "sources": 2, "hot": 1, "warm": 2, "cold": 3, "to_delete": 4, "archived": 5,
    "without_embedding": 6, "queries_per_day": 7.5, "passport": {"half_life_days": 30}, "switch": None,
}  # fmt: skip
INGEST = {
    "updated_at": 0, "status": "complete", "ns": "n", "slot": "s", "source_id": "a|b", "inserted": 1, "updated": 2,
    "unchanged": 3, "failures": 4, "orphaned": 5, "expected": 6,
}  # fmt: skip
DOCUMENT = {
    "document": "league:table:s", "state": "fresh", "tone": "hw-good", "version": 7, "made (UTC)": "", "expires": "1 s",
    "life": "2 s", "match window": "", "bytes": 900, "cause": "",
}  # fmt: skip
VERSION = {
    "cluster_version": 4, "updated_at": 0, "clusters": 3, "noise": 2, "dataset_size": 90, "caused_by": "",
    "preliminary": True, "regrouped": False,
}  # fmt: skip
TOPIC = {"topic": "t", "partitions": [PARTITION], "groups": [GROUP]}
PLAN = {
    "found": 1, "is_whole": True, "refusal": None, "reasons": [{"reason": "r", "jobs": 5}],
    "users": [{"user_id": "u", "count": 4}],
}  # fmt: skip


def plan() -> str:
    """The plan of a restart of failed jobs."""
    job = {"job_id": "j", "kind": "k", "user_id": "u", "failed_at": "", "steps_done": 1, "steps_total": 2, "error": "e"}
    return restarts.plan_html({**PLAN, "jobs": [job]}, restarts.Jobs(), "org")


@pytest.mark.parametrize(
    ("html", "found"),
    [
        (table_html(("events#",), f"<tr>{numbers('1,204')}</tr>"), [("events", "1,204")]),
        (table_html(("a", "events#"), f"<tr><td>x</td>{numbers(linked('7', '/x'))}</tr>"), []),
        (table_html(("events#", "b"), f"<tr>{numbers('0')}<td>12 of 14</td></tr>", sortable=("events",)), []),
        (table_html(("events#",), f"<tr>{numbers('7')}</tr>", sortable=("events",)), [("events", "7")]),
        (table_html(("offset#",), f"<tr>{numbers('7')}</tr>"), []),
        (facts({"members": "3", "state": "stable"}), [("members", "3")]),
        ('<div class="hw-tile"><b>12</b><span>jobs</span></div>', [("", "12")]),
        (table_html(("a",), '<tr aria-hidden="true"><td>7</td></tr>'), []),
    ],
)
def test_a_figure_without_a_link_is_found(html: str, found: list[tuple[str, str]]) -> None:
    """In a cell, beside its name and in a tile; a place in the log counts nothing, and of nothing there is nothing to see."""
    assert unlinked(html) == found


@pytest.mark.parametrize(
    "html",
    [
        pytest.param(groups._groups([GROUP]), id="groups"),
        pytest.param(group._partitions({"partitions": [PARTITION], "auto_offset_reset": "unknown"}), id="group"),
        pytest.param(topic._partitions(TOPIC) + topic._groups(TOPIC), id="topic"),
        pytest.param(chunks.namespaces_html([NAMESPACE], sees_all=True) + chunks._ingests([INGEST]), id="chunks"),
        pytest.param(letters._groups_html([ReasonGroup("t", "r", 5, 4, 0)], ""), id="dead letters"),
        pytest.param(letters._summary({"t": 4}, ""), id="topics with dead letters"),
        pytest.param(league.kinds_html({"league_table": {"memory": 7.0}}), id="kinds of documents"),
        pytest.param(league.documents_html([DOCUMENT], "", Sorting("", (), (), lambda: None)), id="documents"),
        pytest.param(clusters_html.versions([VERSION], 4, lambda version: f"/user?version={version}"), id="versions"),
        pytest.param(plan(), id="restarts"),
    ],
)
def test_every_figure_of_a_page_leads_somewhere(html: str) -> None:
    """Tables as pages make them; each has figures, and each of them a link."""
    assert unlinked(html) == []
    assert any(digit in html for digit in "456789")


def test_a_namespace_leads_nowhere_for_whom_topics_are_closed() -> None:
    """Changes of chunks are records of a topic."""
    assert "<a " not in chunks.namespaces_html([NAMESPACE], sees_all=False)


def documents(count: int) -> list[dict[str, Any]]:
    """Documents of as many seasons."""
    return [{**DOCUMENT, "document": f"league:table:{number:03}", "bytes": number} for number in range(count)]


def test_documents_are_found_sorted_and_cut() -> None:
    """The filter is on the key; the largest first; what does not fit is counted."""
    sorting = Sorting("-bytes", ("bytes",), ("bytes",), lambda: None)
    shown = league.documents_html(documents(120), "", sorting)
    assert shown.index("table:119") < shown.index("table:118")
    assert "and 20 more" in shown
    assert league.documents_html(documents(120), "TABLE:00", sorting).count("<tr data-key") == 10
    assert "None of the latest 120 documents" in league.documents_html(documents(120), "x", sorting)

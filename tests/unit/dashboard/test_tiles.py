"""Figures lead to what they count: a list that has as many lines as the figure says."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from highwater.api.dashboard.pages import jobs, overview, queries, user
from highwater.api.dashboard.tiles import linked_tile
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.groups import GroupLag, Standing
from highwater.streams.jobs.states import JobStatus
from highwater.streams.queries.states import Status

if TYPE_CHECKING:
    from highwater.connectors.kafka.stopped import Stopped


def job(status: JobStatus) -> dict[str, Any]:
    """A row of the list of jobs."""
    named = {"job_id": "j", "kind": "deck", "organization_id": "", "user_id": "", "status": status}
    return {
        **named,
        "cost_usd": 0,
        "progress_pct": 0,
        "steps_done": 0,
        "steps_total": 1,
        "created_at": 0,
        "completed_at": None,
        "approval_until_ms": None,
    }


def run(status: Status) -> dict[str, Any]:
    """A row of the list of queries."""
    return {"request_id": "r", "user_id": "", "query": "q", "status": status, "created_at": 0, "completed_at": None}


def test_a_figure_of_the_jobs_leads_to_as_many_jobs() -> None:
    """This holds for every status, also for two that are counted together; an unknown group shows all."""
    rows = [job(status) for number, status in enumerate(JobStatus) for _ in range(number + 1)]
    figures = re.findall(r'href="([^"]+)"><b class="">([\d,]+)</b>', jobs._tiles(rows))
    assert len(figures) == 4
    assert dict(figures)["/jobs?status=failed"] == "10"  # 4 failed, 6 expired
    for address, count in figures:
        assert jobs.JOBS.html(rows, address.rpartition("=")[2]).count("<tr data-key=") == int(count) > 0
    assert jobs.JOBS.html(rows, "none").count("<tr data-key=") == len(rows)


def test_every_query_is_completed_failed_or_waiting() -> None:
    """The three lists have each query once."""
    rows = [run(status) for status in Status]
    counts = [queries.QUERIES.html(rows, group).count("<tr data-key=") for group in ("completed", "failed", "waiting")]
    assert counts == [1, 1, len(rows) - 2]
    assert f"1 of the latest {len(rows)}: failed" in queries.QUERIES.html(rows, "failed")


def test_a_channel_leads_to_its_insights_for_who_may_read_topics() -> None:
    """For others it is text."""
    assert "/browse?topic=feeds.insight-ingested&amp;" in user._pending({"c&d": 2}, sees_all=True)
    assert "key=c%26d" in user._pending({"c&d": 2}, sees_all=True)
    assert "<a " not in user._pending({"c&d": 2}, sees_all=False)


def test_what_a_figure_says_is_no_markup() -> None:
    """Name, value and address are escaped."""
    assert "<i>" not in linked_tile("<i>", "<i>", '"><i>')


def overview_of(lags: tuple[GroupLag, ...]) -> Any:
    """The values that the overview reads for its figures."""
    rates = SimpleNamespace(per_second=lambda: {"a": 2.0}, total_history=lambda _: [1.0, 2.0])
    hub = SimpleNamespace(rates=rates, dead_letters=lambda: {"a.dlq": 3}, lags=lags, held=lambda: {"a": 9}, samples=1)
    return SimpleNamespace(sees_all=True, hub=hub)


def test_every_figure_of_the_overview_leads_to_what_it_counts() -> None:
    """Unread events lead to the groups, and the slowest route to the page of its group."""
    behind = GroupLag("a/b", (Standing("t", 0, 2, LogRange(0, 5)),), 90.0)
    shown = overview._tiles(overview_of((behind,)))
    assert re.findall(r'<a class="[^"]*" href="([^"]+)"', shown) == [
        "/topics", "/topics", "/groups", "/groups/a%2Fb", "/dead-letters",
    ]  # fmt: skip
    assert shown.count("<b ") == shown.count("<a ")
    assert overview._tiles(overview_of((GroupLag("a", (), None),))).count('href="/groups"') == 2


def test_a_stopped_partition_leads_to_its_group_and_topic() -> None:
    """Both have a page, where it is resumed and browsed."""
    stop = SimpleNamespace(
        group="posts", topic="t", partition=3, stopped_at_ms=0, dead=4, events=5, reason="x", command="highwater reset"
    )
    (line,) = re.findall(r"<p .*?</p>", overview.stopped_lines([cast("Stopped", stop)]))
    assert re.findall(r'href="([^"]+)"', line) == ["/groups/posts", "/topics/t"]

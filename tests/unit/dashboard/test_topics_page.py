"""The page of topics: a table for each subsystem with links, filter and order, and what a click on the head of a column does."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from highwater.api.dashboard.hub import Hub
from highwater.api.dashboard.pages.topics import consumers_html, others_html, topic_rows, topics_html
from highwater.api.dashboard.tables import Sort, Sorting, next_sort, table_html
from highwater.api.dashboard.tiles import linked
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.groups import GroupLag, Standing
from highwater.schemas.topics import TOPICS

FEEDS = [name for name in TOPICS if name.startswith("feeds.")]
NUMBERS = ("events",)


def hub() -> Hub:
    """The sampled values: the first topics of the feeds have events, one of them unread ones and a dead letter."""
    held = {name: number for number, name in enumerate(FEEDS)}
    rates = SimpleNamespace(per_second=lambda: dict.fromkeys(FEEDS, 2.5), history=lambda *_: [1.0, 2.0])
    found: Any = SimpleNamespace(
        rates=rates,
        held=lambda: held,
        topic_lags=lambda: {FEEDS[1]: (7, 90.0, "insights")},
        dead_letters=lambda: {FEEDS[1]: 3},
        lags=[GroupLag("<b>", (Standing(FEEDS[1], 0, 2, LogRange(0, 9)),), 90.0), GroupLag("posts", (), None)],
    )
    return cast("Hub", found)


def sorting(asked: str) -> Sorting:
    """As the page has it."""
    return Sorting(asked, ("topic", *NUMBERS), NUMBERS, lambda: None)


def shown(words: str = "", sort: str = "") -> list[str]:
    """The topics of a page in their order."""
    page = "".join(topics_html(topic_rows(hub()), words, sorting(sort)).values())
    return re.findall(r'<tr data-key="([^"]+)"', page)


def test_every_topic_stands_under_its_subsystem() -> None:
    """A subsystem has a heading and a table that is named after it; one without a topic that is sought has none."""
    sections = topics_html(topic_rows(hub()), "", sorting(""))
    assert sorted(shown()) == sorted(TOPICS)
    assert list(sections) == sorted({topic.partition(".")[0] for topic in TOPICS})
    for name, section in sections.items():
        assert section.startswith(f'<h2 class="hw">{name.capitalize()}</h2>')
        assert f'aria-label="Topics of {name}"' in section
    assert shown("INSIGHT-ingested") == ["feeds.insight-ingested"]
    found = topics_html(topic_rows(hub()), "insight-ingested", sorting(""))
    assert [name for name, section in found.items() if section] == ["feeds"]
    assert shown("no such words") == []


def test_topics_are_sorted_within_their_subsystem() -> None:
    """They are sorted by the largest number, or by name; an unknown column is ignored."""
    by_events = [name for name in shown(sort="-events") if name in FEEDS]
    assert by_events == FEEDS[::-1]
    assert [name for name in shown(sort="-topic") if name in FEEDS] == sorted(FEEDS, reverse=True)
    assert shown(sort="about") == shown()


def test_figures_lead_to_what_they_count() -> None:
    """Events to their search, unread ones to the consumer that is behind, dead letters to their page; none leads nowhere."""
    (row,) = [row["html"] for row in topic_rows(hub()) if row["topic"] == FEEDS[1]]
    assert re.findall(r'href="([^"]+)">([^<]+)</a>', row) == [
        (f"/topics/{FEEDS[1]}", FEEDS[1]), (f"/topics/{FEEDS[1]}", "2.5/s"),
        (f"/browse?topic={FEEDS[1]}&amp;order=newest&amp;search=1", "1"),
        ("/groups/insights", "7"), ("/groups/insights", "1 min 30 s"), ("/groups/insights", "insights"),
        (f"/dead-letters?topic={FEEDS[1]}", "3"),
    ]  # fmt: skip
    assert linked("0", "/topics") == "0"
    assert linked("-", "/topics") == "-"


def test_consumers_are_sorted_and_escaped() -> None:
    """Each leads to its page; HTML in a name is escaped."""
    page = consumers_html(hub(), Sorting("-time behind", ("time behind",), ("time behind",), lambda: None))
    assert re.findall(r'<td><a href="/groups/[^"]+">([^<]+)</a>', page) == ["&lt;b&gt;", "posts"]
    assert "<b>" not in page


def test_topics_of_others_are_folded_until_a_filter_is_set() -> None:
    """Dead letters and changelogs are counted in their headings; what a filter finds stands open."""
    one = {"subsystem": "other", "partitions": 8, "replicas": 1, "leaderless": 0, "out_of_sync": 2}
    topics = [{**one, "topic": "orders", "kind": "events"}, {**one, "topic": "orders.dlq", "kind": "dead letters"}]
    folded, opened = others_html(topics, is_open=False), others_html(topics, is_open=True)
    assert "<summary>Dead letters (1)</summary>" in folded
    assert ("<details open" in folded, "<details open" in opened) == (False, True)
    assert '<a href="/topics/orders">8</a>' in folded
    assert "2 copies behind" in folded


@pytest.mark.parametrize(
    ("column", "orders"), [("events", ["-events", "events", None]), ("topic", ["topic", "-topic", None])]
)
def test_clicks_on_a_head_go_around(column: str, orders: list[str | None]) -> None:
    """Numbers begin with the largest, names with A; a second click reverses the order, a third restores it. Another column
    starts over.
    """
    sort: Sort | None = Sort("rate")
    for expected in orders:
        sort = next_sort(sort, column, NUMBERS)
        assert (sort and sort.parameter) == expected


def test_the_head_of_a_sorted_column_says_so() -> None:
    """Screen readers get `aria-sort` on the clicked head only; a head that cannot be sorted is not a button."""
    head = table_html(
        ("topic", "events#", "kept"), "", sort=Sort("events", is_descending=True), sortable=("topic", "events")
    )
    assert re.findall(r'aria-sort="(\w+)"><button[^>]*data-sort="(\w+)"', head) == [("descending", "events")]
    assert head.count("<button") == 2

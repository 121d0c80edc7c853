"""A feed by theme, and its new items."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.readers import feed_pages
from highwater.api.readers.feed_pages import OTHER


def item(name: str, *keywords: str, size: int = 1, **more: Any) -> dict[str, Any]:
    """A cluster as the API returns it."""
    about = {"cluster_id": name, "title": name, "summary": "", "keywords": list(keywords), "size": size}
    return {**about, "born_version": 1, "changed_version": 1, "entered": [[1, size]], "insights": [], **more}


def test_clusters_are_under_the_keyword_that_most_have() -> None:
    """The theme of most insights comes first; clusters that share no keyword come last."""
    items = [
        item("a", "kafka", "broker", size=2),
        item("b", "css", "theme", size=90),
        item("c", "broker", "kafka", "lag", size=3),
        item("d", "kafka", size=1),
        item("e", "lag", size=8),
        item("f", size=1),
    ]
    found = {theme: [one["cluster_id"] for one in group] for theme, group in feed_pages.themes(items).items()}
    assert found == {"lag": ["e"], "kafka": ["a", "c", "d"], OTHER: ["b", "f"]}
    assert list(found) == ["lag", "kafka", OTHER]


@pytest.mark.parametrize(
    ("since", "born", "changed", "words"),
    [
        (None, 1, 9, ""),
        (9, 1, 9, ""),
        (8, 9, 9, "New"),
        (4, 1, 9, "7 new"),
        (8, 1, 9, "Changed"),
    ],
)
def test_what_is_new_of_a_cluster(since: int | None, born: int, changed: int, words: str) -> None:
    """Nothing before the first visit, the whole cluster, a number of insights, or only a change."""
    one = item("a", born_version=born, changed_version=changed, entered=[[1, 5], [5, 3], [7, 4]])
    assert feed_pages.mark(one, since) == words


def test_an_empty_feed_says_how_it_is_filled() -> None:
    """Before the first clusters."""
    assert "subscribed" in feed_pages.feed({"items": [], "built_at": None})


def test_texts_of_others_are_texts() -> None:
    """No text becomes HTML, and no address of a script a link."""
    bad = "<script>x</script>\"'"
    insight = {"insight_id": bad, "channel_id": bad, "ts": "2026-01-02T03:04:05Z", "text": bad, "url": "javascript:x()"}
    shown = feed_pages.feed(
        {"items": [item(bad, bad, title=bad, summary=bad, insights=[insight])], "built_at": "2026-01-02T03:04:05Z"},
        since=0,
        deck="/read/feed/deck?user=x",
    )
    assert "<script" not in shown
    assert "javascript:" not in shown
    linked = feed_pages.insights([{**insight, "url": "https://example.org/?a=1&b=2"}])
    assert 'href="https://example.org/?a=1&amp;b=2"' in linked

"""A feed by theme, and its new items."""
# ruff: noqa: RUF001 - Russian

from __future__ import annotations

import re
from typing import Any

import pytest

from highwater.api.readers import feed_pages
from highwater.api.readers.frame import sentence
from highwater.streams.messages import catalogue

ENGLISH, RUSSIAN = (catalogue().messages(language) for language in ("en", "ru"))


def item(name: str, *keywords: str, size: int = 1, **more: Any) -> dict[str, Any]:
    """A cluster as the API returns it."""
    about = {"cluster_id": name, "title": name, "summary": "", "keywords": list(keywords), "size": size}
    return {**about, "born_version": 1, "changed_version": 1, "arrived": [[1, size]], "insights": [], **more}


def heads(*items: dict[str, Any]) -> list[tuple[str, str]]:
    """Each section of a feed's page: its heading, and the names of its clusters."""
    page = feed_pages.feed({"items": items, "built_at": "2026-01-02T03:04:05Z"}, ENGLISH)
    sections = [part.partition("</h2>") for part in page.split("<section><h2>")[1:]]
    return [(head, "".join(re.findall(r"<h3>(\w+)", rest))) for head, _, rest in sections]


def test_a_cluster_is_under_the_theme_of_its_version() -> None:
    """The theme of most insights comes first; a cluster without one comes last, also if it is the largest."""
    items = [
        item("a", "kafka", size=2, theme="Broker"),
        item("b", "kafka", size=90),
        item("c", "kafka", size=3, theme="Broker"),
        item("d", "kafka", size=8, theme="Console <b>"),
    ]
    assert heads(*items) == [("Console &lt;b&gt;", "d"), ("Broker", "ac"), ("Other", "b")]


def test_what_is_left_over_comes_last() -> None:
    """Also if it has the most insights, and in any language."""
    items = [item("a", size=90, theme="Другое"), item("b", size=2, theme="Broker")]
    assert heads(*items) == [("Broker", "b"), ("Другое", "a")]


def test_a_feed_of_an_older_release_has_one_heading() -> None:
    """A document that was stored without themes is not grouped, and names no number of themes."""
    page = feed_pages.feed({"items": [item("a"), item("b")], "built_at": "2026-01-02T03:04:05Z"}, ENGLISH)
    assert heads(item("a"), item("b")) == [("Clusters", "ab")]
    assert "2 clusters · Updated" in page


def test_one_cluster_is_one() -> None:
    """Counts of one thing are in the singular."""
    page = feed_pages.feed({"items": [item("a", size=1, theme="t")], "built_at": "2026-01-02T03:04:05Z"}, ENGLISH)
    assert "1 cluster in 1 theme · Updated" in page
    assert "<small>1 insight</small>" in page


@pytest.mark.parametrize(
    ("since", "born", "changed", "words"),
    [
        (None, 1, 9, ""),
        (9, 1, 9, ""),
        (0, 9, 9, "New"),
        (4, 1, 9, "7 new"),
        (8, 1, 9, "Changed"),
        (8, 9, 9, "Changed"),
    ],
)
def test_what_is_new_of_a_cluster(since: int | None, born: int, changed: int, words: str) -> None:
    """Nothing before the first visit, the whole cluster, a number of insights, or only a change, as of a new cluster of insights
    that were there before.
    """
    one = item("a", size=12, born_version=born, changed_version=changed, arrived=[[1, 5], [5, 3], [7, 4]])
    assert feed_pages.mark(one, since, ENGLISH) == words
    note = "with news" in feed_pages.feed({"items": [one], "built_at": "2026-01-02T03:04:05Z"}, ENGLISH, since=since)
    assert note == (words not in ("", "Changed"))


def test_a_feed_in_russian() -> None:
    """Counts, dates and marks; the texts of others stay as they are."""
    insight = {"insight_id": "i", "channel_id": "c", "ts": "2026-05-03T09:05:00Z", "text": "Broker", "url": None}
    items = [item(name, "kafka", size=21, theme="Broker", insights=[insight]) for name in "abc"]
    page = feed_pages.feed({"items": items, "built_at": "2026-01-02T03:04:05Z"}, RUSSIAN, since=0)
    told = re.sub(r"<[^>]+>", "", page)
    assert (
        "3 кластера в 1 теме · Обновлено: пт, 2 января 2026, 03:04 UTC обновилось с вашего прошлого визита: 3" in told
    )
    assert "a Новый21 инсайт · kafkaПоследние инсайты: aBrokerc · вс, 3 мая 2026, 09:05 UTC" in told


def test_an_empty_feed_says_how_it_is_filled() -> None:
    """Before the first clusters."""
    assert "subscribed" in feed_pages.feed({"items": [], "built_at": None}, ENGLISH)


def test_texts_of_others_are_texts() -> None:
    """No text becomes HTML, and no address of a script a link."""
    bad = "<script>x</script>\"'"
    insight = {"insight_id": bad, "channel_id": bad, "ts": "2026-01-02T03:04:05Z", "text": bad, "url": "javascript:x()"}
    shown = feed_pages.feed(
        {"items": [item(bad, bad, title=bad, summary=bad, insights=[insight])], "built_at": "2026-01-02T03:04:05Z"},
        ENGLISH,
        since=0,
        deck="/read/feed/deck?user=x",
    )
    assert "<script" not in shown
    assert "javascript:" not in shown
    linked = feed_pages.insights([{**insight, "url": "https://example.org/?a=1&b=2"}], ENGLISH)
    assert 'href="https://example.org/?a=1&amp;b=2"' in linked


def digested(*sections: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A digest as the API returns it."""
    counts = {"new_count": sum(one["new_count"] for one in sections), "cluster_count": len(sections), "language": "en"}
    times = {"since": 4, "since_at": "2026-01-01T03:04:05Z", "updated_at": "2026-01-02T03:04:05Z"}
    return {"user_id": "u", "cluster_version": 5, "position": "t/0/1", **times, **counts, "sections": sections, **more}


def section(label: str, *texts: str, **more: Any) -> dict[str, Any]:
    """A section of a digest, with these examples."""
    about = {"cluster_id": label, "label": label, "theme": "", "is_new": False, "size": 9, "new_count": len(texts) + 1}
    counts = {"week": 3, "week_before": 2, "channels": [{"channel_id": "c", "count": 1}], "bumps": None}
    days = {"first_at": "2026-01-01T03:04:05Z", "last_at": "2026-01-02T03:04:05Z"}
    examples = [
        {"channel_id": "c", "text": one, "url": "https://example.org/", "alike_count": 2, "is_odd": False}
        for one in texts
    ]
    return {**about, **counts, **days, "examples": examples, **more}


def test_what_is_new_ends_with_one_action() -> None:
    """Each section with its examples and its line of bumps, how far it goes, and a deck of it if the reader may make one."""
    bumps = {"count": 2, "names": ["attrs", "black"]}
    page = feed_pages.digest(digested(section("Quotas", "add quotas", bumps=bumps)), ENGLISH, deck="/d?user=u")
    assert re.findall(r"<h[23]>([^<]*)", page) == ["What is new", "Quotas"]
    assert "2 new insights · 1 cluster · since 2026-01-01, 03:04 UTC" in page
    assert "2 new insights of 9 · 3 this week, 2 the week before · c · 2026-01-01\u20132026-01-02" in page
    assert (
        '<li><span class="said">add quotas</span><br><small>2 more like this · <a href="https://example.org/"' in page
    )
    assert "<li>2 version bumps: attrs, black</li>" in page
    assert page.index("version 5 (t/0/1)") < page.index('<a href="/d?user=u&amp;digest=4">Make a deck of this</a>')
    assert "Make a deck" not in feed_pages.digest(digested(section("Quotas", "add quotas")), ENGLISH)


def test_a_visit_without_news_says_so() -> None:
    """It has no section and no deck, in the language of the reader."""
    page = feed_pages.digest(digested(), RUSSIAN, deck="/d")
    assert "С 1 января 2026 года, 03:04 UTC ничего нового." in page
    assert "<h3>" not in page
    assert "/d?" not in page


def test_what_others_wrote_is_escaped_in_what_is_new() -> None:
    """No text, label, channel or name of a bump becomes HTML, and no address of a script a link."""
    bad = "<script>x</script>\"'"
    one = section(bad, bad, channels=[{"channel_id": bad, "count": 1}], bumps={"count": 1, "names": [bad]})
    one["examples"][0] |= {"url": "javascript:x()", "channel_id": bad}
    page = feed_pages.digest(digested(one, one), ENGLISH, deck="/d")
    assert "<script" not in page
    assert "javascript:" not in page


def test_a_deck_of_what_is_new_has_a_section_for_each_subject() -> None:
    """Its source is Markdown with a heading for each section; its subject names the first ones."""
    found = feed_pages.digest_subject(digested(*(section(name, f"text of {name}") for name in ("A", "B", "C", "D"))))
    assert (found.kind, found.name, found.title) == ("digest", "4", "What is new: A; B; C and 1 more")
    assert [line for line in found.source.splitlines() if line.startswith("#")] == [
        "# What is new: A; B; C and 1 more", "## A", "## B", "## C", "## D",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ("there is no season 'none'", "There is no season 'none'."),
        ("user_id is empty", "user_id is empty."),
        ("Reload the page.", "Reload the page."),
        ("", ""),
    ],
)
def test_a_problem_is_a_sentence(detail: str, shown: str) -> None:
    """Its beginning is a capital, unless it is a name."""
    assert sentence(detail) == shown

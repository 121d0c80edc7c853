"""The digest of a feed: its order, its examples, its version bumps, and the sentences about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from highwater.streams.feeds.digest import (
    SECTIONS_MAX,
    TEXT_CHARACTERS_MAX,
    ClusterNews,
    NewInsight,
    Reached,
    bumped_name,
    digest,
    examples,
    most_news,
    whole_sentences,
)
from highwater.streams.feeds.digest_text import headline, lines, not_shown, plain_text, subject
from highwater.streams.messages import catalogue

ENGLISH, RUSSIAN = catalogue().messages("en"), catalogue().messages("ru")
DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000
REACHED = Reached(7, NOW_MS, "feeds.rebuild-requested/0/12", 5, NOW_MS - DAY_MS)


def insights(*texts: str | None) -> tuple[NewInsight, ...]:
    """New insights of one channel, newest first."""
    return tuple(
        NewInsight(f"i{place}", "apache/kafka", NOW_MS - place * 60_000, text, None) for place, text in enumerate(texts)
    )


def news(cluster_id: str, label: str, *texts: str | None, **changes: Any) -> ClusterNews:
    """The news of a cluster."""
    found = insights(*texts)
    made = ClusterNews(
        cluster_id=cluster_id,
        label=label,
        theme="Kafka",
        is_new=False,
        size=len(found) + 30,
        new_count=len(found),
        arrived_version=7,
        week=12,
        week_before=7,
        channels={"apache/kafka": len(found)},
        first_ms=NOW_MS - 2 * DAY_MS,
        last_ms=NOW_MS,
        insights=found,
    )
    return replace(made, **changes)


def made(*sections: ClusterNews, **counts: int) -> dict[str, Any]:
    """A digest of these."""
    count = sum(one.new_count for one in sections)
    return digest("ada", REACHED, sections, **{"clusters": len(sections), "insights": count, **counts})


def labels(document: dict[str, Any]) -> list[str]:
    """The names of the sections, in order."""
    return [section["label"] for section in document["sections"]]


def shown(found: Sequence[dict[str, Any]]) -> list[tuple[str, int, bool]]:
    """Text, number of similar ones and oddness of examples."""
    return [(one["text"], one["alike_count"], one["is_odd"]) for one in found]


def test_what_has_a_subject_comes_first() -> None:
    """Subjects by the number of their news and by growth, those with bumps alone, "Mixed", and last what is in no cluster."""
    document = made(
        news("", "", "one thing", "other thing", "third thing", "fourth thing", "fifth thing"),
        news("a", "Mixed: cache, tests", "cache it", "test it", "name it", "drop it"),
        news("b", "Dependencies", "Bump attrs from 1 to 2", "Bump black from 1 to 2", "Bump vite from 1 to 2"),
        news("c", "Rebalance", "fix the rebalance"),
        news("e", "Topics", "name topics", week=40),
        news("d", "Quotas", "add quotas", "test quotas"),
    )
    assert labels(document) == ["Quotas", "Topics", "Rebalance", "Dependencies", "Mixed: cache, tests", ""]


def test_only_the_clusters_with_most_news_are_read() -> None:
    """The rest of them is counted; a cluster without a subject does not take the place of one with a subject."""
    counts = [("", "", 900), ("m", "Mixed", 800), *((f"c{n:02}", f"Subject {n:02}", 100 - n) for n in range(30))]
    found = most_news(counts)
    assert found == [f"c{n:02}" for n in range(SECTIONS_MAX)]
    assert most_news(counts[:3]) == ["c00", "m", ""]


def test_texts_that_are_alike_are_shown_once() -> None:
    """Three of one kind are one example with two more like it, and another thing is beside it."""
    found = examples(
        insights(
            "Fix the flaky test of the group coordinator",
            "Fix the flaky test of the share coordinator",
            "Fix the flaky test of the log coordinator",
            "Document quotas for tenants",
        )
    )
    assert [(count, is_odd) for _, count, is_odd in shown(found)] == [(2, False), (0, False)]
    assert found[1]["text"] == "Document quotas for tenants"


def test_the_third_example_is_the_odd_one() -> None:
    """Of more than three different texts the third is the one with the fewest words of the others; of three it is not marked."""
    usual = [
        "broker rejects stale epochs",
        "broker rejects stale leaders today",
        "stale epochs on every broker restart",
    ]
    odd = "translate menu into Portuguese"
    found = examples(insights(*usual[:2], odd, usual[2], "broker epochs wait for leaders"))
    assert [one["text"] for one in found if one["is_odd"]] == [odd]
    assert found[2]["text"] == odd
    assert not any(one["is_odd"] for one in examples(insights(*usual[:2], odd)))


def test_a_word_alone_is_not_the_odd_one() -> None:
    """A text that says almost nothing is unlike all others, and no example of anything."""
    texts = ["broker rejects stale epochs", "broker rejects leaders", "stale leaders on broker restart", "wip"]
    found = examples(insights(*texts))
    assert "wip" not in [one["text"] for one in found]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Bump cachetools from 5.3.2 to 5.3.3 in /requirements", "cachetools"),
        ("build(deps-dev): bump mypy from 1.6.0 to 1.6.1 (#882)", "mypy"),
        ("chore(deps): update dependency @types/node to v22.18.4 (#6576)", "@types/node"),
        ("chore(deps): update dependencies: ui docs to v8.43.0 (#6558)", "ui docs"),
        ("fix(deps): update dependency io.swagger:swagger-parser-v3 to v2.1.37", "io.swagger:swagger-parser-v3"),
        ("Bump the python-packages group across 1 directory with 3 updates", "python-packages"),
        ("Update pydantic-settings requirement from <2.11,>=2.3 to >=2.3,<2.12 (#1042)", "pydantic-settings"),
        ("KAFKA-15096: Update snappy-java to 1.1.10.1 (#13865)", "snappy-java"),
        ("build(deps): bump org.json:json in /system-tests (#3820)", "org.json:json"),
        ("python3Packages.httpx: 0.27.0 -> 0.28.1", "python3Packages.httpx"),
        ("Bump version to 2.10.0 (#477)", None),
        ("Update documentation (#995)", None),
        ("Update the reader to show 3 examples of each cluster", None),
        ("MINOR: Update KIP-890 note (#15244)", None),
        ("Bump ephemeral limit up to 15 minutes per table", None),
        ("Revert bump on `python-multipart` (#2737)", None),
    ],
)
def test_version_bumps_are_recognized(text: str, name: str | None) -> None:
    """As bots and people write them; a release, and an update of anything but a version, is news."""
    assert bumped_name(text) == name


def test_version_bumps_are_one_line() -> None:
    """They are counted by what has another version, and are no examples."""
    texts = [f"Bump {name} from 1.0 to 1.1" for name in ("attrs", "black", "attrs", "vite", "mypy", "ruff")]
    document = made(news("a", "Dependencies", *texts, "Drop the lock file"))
    (section,) = document["sections"]
    assert section["bumps"] == {"count": 6, "names": ["attrs", "black", "vite", "mypy", "ruff"]}
    assert [one["text"] for one in section["examples"]] == ["Drop the lock file"]
    assert "- 6 version bumps: attrs, black, vite and 2 more\n" in plain_text(document, ENGLISH)
    assert "- 6 обновлений версий: attrs, black, vite и ещё 2\n" in plain_text(document, RUSSIAN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Subject of a commit\n\nIts body says more.", "Subject of a commit"),
        ("A line\nthat was wrapped", "A line that was wrapped"),
        (f"One sentence that is not long. {'word ' * 80}", "One sentence that is not long."),
        (f"Version 3.5 is out. {'word ' * 80}", f"Version 3.5 is out. {'word ' * 51}word\u2026"),
        ("\u4e00" * 400, "\u4e00" * TEXT_CHARACTERS_MAX + "\u2026"),
    ],
)
def test_a_text_is_shown_in_whole_sentences(text: str, expected: str) -> None:
    """A paragraph as it is; of a long one the sentences that fit, and a word is not cut."""
    assert whole_sentences(text) == expected


def test_a_digest_reads_as_a_person_writes() -> None:
    """What is new and since when; of each cluster growth, channels and days; and where the next one begins."""
    texts = ("fix the rebalance of groups", "time out slow joins")
    first = news("a", "Rebalance", *texts, channels={"a/b": 1, "c/d": 1, "e/f": 1, "g/h": 1}, size=3)
    first = replace(first, is_new=True)
    document = made(
        first, news("b", "Quotas", "add quotas for all tenants", week_before=0, size=1), insights=9, clusters=4
    )
    assert plain_text(document, ENGLISH) == (
        "9 new insights · 4 clusters · since 2026-09-20, 14:13 UTC\n\n"
        "Rebalance\n"
        "2 new insights of 3 · a new cluster · 12 this week, 7 the week before · a/b, c/d, e/f and 1 more · "
        "2026-09-19\u20132026-09-21\n"
        "- fix the rebalance of groups · apache/kafka\n"
        "- time out slow joins · apache/kafka\n\n"
        "Quotas\n"
        "1 new insight · apache/kafka · 2026-09-19\u20132026-09-21\n"
        "- add quotas for all tenants\n\n"
        "6 more in other clusters\n\n"
        "Up to 2026-09-21, 14:13 UTC: version 7 (feeds.rebuild-requested/0/12). The next digest begins there.\n"
    )


def test_a_digest_says_how_its_version_was_made() -> None:
    """That clusters are to be replaced, or were regrouped: their names are others than before."""
    for change, words in (
        ({"is_preliminary": True}, "preliminary"),
        ({"is_regrouped": True}, "All clusters were regrouped"),
    ):
        told = plain_text(digest("ada", replace(REACHED, **change), [], clusters=0, insights=0), ENGLISH)
        assert words in told.split("\n\n")[1]
    assert plain_text(made(), ENGLISH).count("\n\n") == 1


def test_an_empty_day_says_so() -> None:
    """With the time since which nothing came and the position; a user without clusters has no digest yet."""
    empty = made()
    assert headline(empty, ENGLISH) == "Nothing new since 2026-09-20, 14:13 UTC."
    assert not_shown(empty, ENGLISH) == ""
    assert "(feeds.rebuild-requested/0/12)" in plain_text(empty, ENGLISH)
    outside = digest("ada", REACHED, [], clusters=0, insights=1)
    assert headline(outside, ENGLISH) == "1 new insight \u00b7 since 2026-09-20, 14:13 UTC"
    unknown = digest("ada", replace(REACHED, since_ms=None), [], clusters=0, insights=0)
    assert headline(unknown, ENGLISH) == "Nothing new since version 5."
    never = digest("new", Reached(0, None, "", 0, None), [], clusters=0, insights=0)
    assert plain_text(never, ENGLISH) == "Nothing yet.\n"


def test_a_digest_is_in_the_language_of_its_texts() -> None:
    """Its own words agree with most of what it quotes."""
    texts = ("Исправлена ошибка в балансировке группы потребителей", "Добавлены квоты для всех арендаторов кластера")
    assert made(news("a", "Квоты", *texts))["language"] == "ru"
    assert made(news("a", "Quotas", "Added quotas for all tenants of the cluster"))["language"] == "en"


def test_what_is_not_quoted_is_counted() -> None:
    """After the examples and the bumps: how many new insights are neither among them nor nearly the same."""
    texts = [
        "add quotas",
        "add quotas",
        "bound the cache",
        "drop the lock file",
        "name all topics",
        "Bump attrs from 1 to 2",
    ]
    (section,) = made(news("a", "Mixed", *texts, None))["sections"]
    assert list(lines(section, ENGLISH))[-2:] == ["1 version bump: attrs", "2 more"]


def test_a_subject_names_the_first_sections() -> None:
    """Without the examples in their names, each once; on a day without news it says so."""
    found = made(*(news(name, name, "text of it") for name in ("UI, e.g. page", "UI, e.g. menu", "A: b", "C, d", "E")))
    assert subject(found, ENGLISH) == "What is new: A: b; C, d; E and 1 more"
    assert subject(made(), ENGLISH) == headline(made(), ENGLISH)


def test_insights_without_text_are_counted_and_not_quoted() -> None:
    """They have nothing to show."""
    (section,) = made(news("a", "Quotas", None, "  ", "add quotas"))["sections"]
    assert (section["new_count"], len(section["examples"])) == (3, 1)

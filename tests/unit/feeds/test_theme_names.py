"""What themes are called: by words that most of their clusters contain, or by the subjects of their clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytest

from highwater.streams.feeds.clustering import cluster_embeddings
from highwater.streams.feeds.kinds import KINDS
from highwater.streams.feeds.label_words import is_other, without_more
from highwater.streams.feeds.labels import ClusterDescription, describe_clusters
from highwater.streams.feeds.redaction import SearchedTexts, parts_of
from highwater.streams.feeds.themes import theme_count
from highwater.streams.feeds.tokens import root_of, stem_of
from tests.unit.feeds import sample

FRUIT = ("apple", "pear", "plum", "cherry", "fig", "quince")


def described(
    *groups: Sequence[str], former_themes: Mapping[str, Collection[str]] | None = None
) -> list[ClusterDescription]:
    """The clusters of groups of texts, which all lie in one place; insights are named by their place."""
    texts = [text for group in groups for text in group]
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    vectors = np.ones((len(texts), 4), dtype=np.float32)
    ids = [f"id{place:03}" for place in range(len(texts))]
    found = describe_clusters(labels, np.ones(len(texts)), vectors, texts, ids, former_themes=former_themes)
    return sorted(found, key=lambda one: one.insight_ids)


def themes(*groups: Sequence[str]) -> list[str]:
    """The theme of each group of texts."""
    return [one.theme for one in described(*groups)]


def about(subject: str, count: int = 6) -> list[str]:
    """Texts with one subject."""
    return [f"{subject} {name}" for name in FRUIT[:count]]


OTHERS = [about("Zebra"), about("Walrus", 5), about("Yak", 4)]


def test_clusters_of_one_kind_are_a_theme_by_their_words() -> None:
    """Two words that a reader puts together; neither is in most of the clusters, so both are said."""
    found = themes(about("Readme of"), about("Docstring for", 5), *OTHERS)
    assert found[:2] == ["Readme, docstring"] * 2
    assert "Readme, docstring" not in found[2:]


def test_a_word_that_most_clusters_contain_is_the_name() -> None:
    """Half of the members of all say it, so the rule for labels names the theme, with examples."""
    found = themes(about("Kafka offsets"), about("Kafka topic", 5), about("Rebalance of kafka", 4), *OTHERS)
    assert set(found[:3]) == {"Kafka, e.g. offsets, topic"}


def test_a_shared_word_of_no_kind_is_a_theme() -> None:
    """Texts of any matter have themes, not only those of the lists."""
    found = themes(about("Giraffe feeding"), about("Giraffe house", 5), *OTHERS)
    assert found[0] == found[1]
    assert found[0].startswith("Giraffe")
    assert found[0] not in found[2:]


def test_what_is_left_over_beside_themes_says_so() -> None:
    """Clusters that are only close, more than a name lists: their theme has no words of texts. It has fewer members than
    the others: else its clusters are listed.
    """
    kafka = [about(f"Kafka {part}") for part in ("offsets", "topic", "group", "streams", "connect", "broker")]
    rest = [
        about(name, 5 - n // 4) for n, name in enumerate(("Zebra", "Walrus", "Yak", "Lynx", "Otter", "Mole", "Gnu"))
    ]
    found = themes(*kafka, *rest)
    assert set(found[:6]) == {"Kafka, e.g. offsets, topic"}
    assert set(found[6:]) == {"Other"}
    assert is_other("Other")
    assert not is_other("Kafka")
    assert parts_of("Other") == []
    assert "Other" not in themes(*kafka[:2], *rest)


def test_clusters_without_a_word_in_common_are_listed() -> None:
    """The subjects of the largest three, without those that have none, and how many more clusters there are."""
    mixed = [f"{left} {right}" for left, right in zip("abcdefg", "hijklmn", strict=True)]
    found = described(about("Zebra stripe"), about("Walrus", 5), about("Yak", 4), about("Lynx", 3), mixed)
    assert {one.theme for one in found} == {"Zebra stripe, walrus, yak and 2 more"}
    assert [one.label for one in found][-1] == "Mixed"


def test_a_large_cluster_does_not_name_the_others() -> None:
    """Half of all members say Zebra, but most of the clusters do not."""
    zebras = [f"Zebra {first} {second}" for first in FRUIT for second in FRUIT]
    assert set(themes(zebras, *OTHERS[1:], about("Lynx", 3), about("Otter", 3))) == {"Zebra, walrus, yak and 2 more"}


def test_no_part_of_a_hyphenated_word_is_a_theme() -> None:
    """Clusters of two words that begin with `pre` have no word in common."""
    found = themes(about("pre-commit"), about("pre-calc", 5), *OTHERS)
    assert set(found) == {"pre-commit, zebra, pre-calc and 2 more"}


def test_a_theme_keeps_its_name_while_it_is_true() -> None:
    """As a label does; a name that was never true goes, and so does a number of clusters that is no longer right."""
    groups = [about("Kafka offsets"), about("Kafka topic", 5), *OTHERS]
    first = described(*groups)
    theme = first[0].theme
    own = [insight_id for one in first[:2] for insight_id in one.insight_ids]
    for before, after in (("Kafka, e.g. topic", "Kafka, e.g. topic"), ("Kafka and 7 more", "Kafka"), ("Falcon", theme)):
        again = described(*groups, former_themes={before: own})
        assert {one.theme for one in again[:2]} == {after}


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Search, auth and 3 more", "Search, auth"),
        ("Search and 12 more (2)", "Search (2)"),
        ("Поиск, вход и ещё 3", "Поиск, вход"),
        ("Search and 3 more things", "Search and 3 more things"),
    ],
)
def test_the_number_of_other_clusters_is_no_word(name: str, plain: str) -> None:
    """So it is not looked up in texts, and no former name keeps it."""
    assert without_more(name) == plain


def test_words_of_kinds_are_different_words() -> None:
    """No root is in two kinds or twice in one: its clusters would be in either by chance."""
    roots = Counter(root_of(stem_of(word)) for words in KINDS for word in words.split())
    assert [root for root, times in roots.items() if times > 1] == []


def test_real_clusters_have_themes_of_their_words() -> None:
    """Each is in one theme, no two themes have one name, and all parts of a name stand in texts of the theme."""
    texts, ids = sample.texts(), [one["insight_id"] for one in sample.insights()]
    found = cluster_embeddings(sample.vectors())
    clusters = describe_clusters(found.labels, found.memberships, sample.vectors(), texts, ids)
    text_of = dict(zip(ids, texts, strict=True))
    sizes = Counter(one.theme for one in clusters)
    assert 2 <= len(sizes) <= theme_count(len(clusters)) < len(clusters)
    assert len({theme.lower() for theme in sizes}) == len(sizes)
    for theme in sizes:
        own = [one for one in clusters if one.theme == theme]
        said = SearchedTexts(text_of[insight_id] for one in own for insight_id in one.insight_ids)
        assert all(part in said for part in parts_of(theme))
        assert len(own) > 1 or theme == own[0].label

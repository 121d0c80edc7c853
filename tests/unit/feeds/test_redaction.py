"""Versions without retracted insights: ids with all beside them, and words that the remaining texts say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.feeds.redaction import (
    RETRACTED_LABEL,
    SearchedTexts,
    label_without,
    parts_of,
    redact_clusters,
    redact_outside,
    redact_words,
)
from tests.integration.api_server import cluster, old_cluster

TEXTS: dict[str, str | None] = {
    "i1": "Falcon merger announced",
    "i2": "fix css theme",
    "i3": "update css theme of buttons",
}


def _cluster(label: str, keywords: list[str], **more: Any) -> dict[str, Any]:
    return cluster(
        "a", ["i1", "i2", "i3"], **{"label": label, "keywords": keywords, "title": "T", "summary": "S", **more}
    )


def _left(*clusters: dict[str, Any], gone: str = "i1") -> list[dict[str, Any]]:
    return redact_clusters(clusters, frozenset({gone}), {name: text for name, text in TEXTS.items() if name != gone})


def test_a_member_goes_with_all_that_stands_beside_it() -> None:
    """The lists stay parallel, the size is theirs, and the surest of the rest speaks for the cluster."""
    (one,) = _left(
        _cluster("Css theme", ["css theme"], confidences=[1.0, 0.4, 0.9], since=[1, 2, 3], written_version=2)
    )
    assert (one["insight_ids"], one["confidences"], one["since"]) == (["i2", "i3"], [0.4, 0.9], [2, 3])
    assert (one["positions"], one["size"], one["representative_id"]) == ([[1.0, 1.5], [2.0, 1.5]], 2, "i3")
    assert (one["label"], one["title"], one["written_version"]) == ("Css theme", "Css theme", 0)
    assert "Falcon" not in one["summary"]
    assert "css theme" in one["summary"]


@pytest.mark.parametrize(
    ("label", "keywords", "expected"),
    [
        ("Falcon merger announced", ["falcon", "css"], "Css"),  # the keyword that is left
        ("Falcon merger announced", ["falcon"], "Fix css theme"),  # the beginning of a text that is left
        ("Css theme: buttons", ["css"], "Css theme: buttons"),  # all of its parts are said
        ("Theme announced", ["css", "theme"], "Css, theme"),  # said together by none that is left
        ("CssThemes", ["css"], "CssThemes"),  # another spelling of the same word
    ],
)
def test_words_that_only_retracted_texts_say_are_not_shown(label: str, keywords: list[str], expected: str) -> None:
    """A label stays while the remaining texts hold all of it."""
    (one,) = _left(_cluster(label, keywords))
    assert one["label"] == expected
    assert "falcon" not in str(one).casefold()


def test_what_held_nothing_else_is_gone_and_the_rest_stays_as_it_is() -> None:
    """A cluster without a remaining insight is not shown; one that lost none is not touched."""
    kept = cluster("b", ["i9"], nearby_ids=["i1", "i8"], nearby_confidences=[0.5, 0.25])
    (one,) = _left(cluster("a", ["i1"]), kept)
    assert one == {**kept, "nearby_ids": ["i8"], "nearby_confidences": [0.25]}


def test_clusters_from_before_they_had_an_identity_have_fewer_keys() -> None:
    """Nothing is made up beside the six keys."""
    (one,) = _left(old_cluster("a", ["i1", "i2"]) | {"label": "Falcon merger"})
    assert one.keys() == old_cluster("a", []).keys()
    assert (one["label"], one["insight_ids"], one["representative_id"], one["size"]) == (
        "Fix css theme",
        ["i2"],
        "i2",
        1,
    )


def test_two_clusters_never_share_a_label() -> None:
    """A rebuilt label is distinguished from the earlier ones."""
    first = cluster("b", ["i9"], label="Css")
    assert [one["label"] for one in _left(first, _cluster("Falcon", ["css"]))] == ["Css", "Css (2)"]


def test_the_next_rebuild_is_told_of_all_members() -> None:
    """It continues a cluster by those it had, and takes over no word and no title that only retracted insights say."""
    told = redact_words(_cluster("Falcon merger", ["falcon"], written_version=3), {"i2": TEXTS["i2"]}, {"i1"})
    assert told["insight_ids"] == ["i1", "i2", "i3"]
    assert (told["label"], told["title"], told["summary"], told["written_version"]) == (
        "Fix css theme", "Fix css theme", "fix css theme", 0,
    )  # fmt: skip


def test_what_is_in_no_cluster_loses_its_place_too() -> None:
    """Ids and places outside stay parallel."""
    outside = {"insight_ids": ["i1", "i2"], "positions": [[1.0, 1.0], None]}
    assert redact_outside(outside, frozenset({"i1"})) == {"insight_ids": ["i2"], "positions": [None]}


def test_a_theme_loses_what_only_retracted_texts_say_in_all_its_clusters() -> None:
    """Words that another cluster of the theme also contains stay; other themes are unchanged."""
    theme = "Mixed: falcon merger, css theme, kafka"
    clusters = [
        _cluster("Css theme", ["css theme"], theme=theme),
        cluster("b", ["i8"], label="Kafka", theme=theme),
        cluster("c", ["i9"], label="Falcon", theme="Falcon"),
    ]
    assert [one["theme"] for one in _left(*clusters)] == ["Mixed: css theme, kafka"] * 2 + ["Falcon"]
    assert [one["theme"] for one in _left(*clusters[1:])] == [theme, "Falcon"]


def test_what_is_left_of_a_label_claims_no_more_than_it_did() -> None:
    """An example is still none of the subjects, and a mixed label stays mixed."""
    label = "Update dependency, e.g. css, theme (2)"
    assert parts_of(label) == ["Update dependency", "css", "theme", "2"]
    assert label_without("Bump, e.g. css, theme", {"css"}) == "Bump, e.g. theme"
    assert label_without("Bump, e.g. css", {"Bump"}) == "Mixed: css"
    assert label_without("Mixed: css, theme", {"css"}) == "Mixed: theme"
    assert label_without("Mixed: css", {"css"}) == RETRACTED_LABEL


def test_a_label_loses_its_parts() -> None:
    """The rest of it remains, or a word that explains why it is empty."""
    assert parts_of("Update dependency: css, theme (kafka)") == ["Update dependency", "css", "theme", "kafka"]
    assert label_without("Update dependency: css, theme", {"Update dependency"}) == "css, theme"
    assert label_without("Falcon", {"Falcon"}) == RETRACTED_LABEL


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_a_text_says_what_it_holds(before: str, phrase: str, after: str) -> None:
    """This holds for any characters."""
    assert phrase in SearchedTexts([f"{before} {phrase} {after}"])

"""Labels, keywords and representatives of clusters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.feeds.clustering import cluster_embeddings
from streams.feeds.embedding import HashedTextEmbedder
from streams.feeds.labels import KEYWORDS_MAX, cluster_id_of, describe_clusters
from tests.unit.feeds import sample


def describe(groups, ids=None):
    """Each group of texts is one cluster."""
    texts = [text for group in groups for text in group]
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    vectors = HashedTextEmbedder().embed(texts)
    ids = ids or [f"id{i:03}" for i in range(len(texts))]
    return describe_clusters(labels, np.ones(len(texts)), vectors, texts, ids)


def test_a_label_is_a_phrase_that_the_texts_share():
    """Filing prefix, version and pull request number go; the shared run of words stays, as written."""
    (one,) = describe(
        [[f"chore(deps): update dependency typescript-eslint to v8.{i}.0 (#{8000 + i})" for i in range(5)]]
    )
    assert one.label == "Update dependency typescript-eslint"
    assert set(one.keywords) >= {"typescript", "eslint", "dependency"}


def test_real_subjects_read_well():
    """On the bundled sample every label is distinct, short, and made of words of the cluster's own texts."""
    vectors, texts = sample.vectors(), sample.texts()
    ids = [insight["insight_id"] for insight in sample.insights()]
    found = cluster_embeddings(vectors, min_cluster_size=6)
    described = describe_clusters(found.labels, found.probabilities, vectors, texts, ids)
    assert len(described) == found.cluster_count >= 15
    labels = [one.label for one in described]
    assert len({label.lower() for label in labels}) == len(labels)
    text_of = dict(zip(ids, texts, strict=True))
    for one in described:
        own = " ".join(text_of[insight] for insight in one.insight_ids).lower()
        phrase = one.label.split(":")[0].split(" (")[0].lower()
        assert all(word in own for word in phrase.split())
        assert 1 <= len(one.keywords) <= KEYWORDS_MAX
        assert not any(keyword.isdigit() for keyword in one.keywords)
    assert any("auto fixes from pre-commit.com hooks" in label.lower() for label in labels)


def test_keywords_tell_clusters_apart():
    """A word that all clusters share ranks below one that is this cluster's own."""
    one, other = describe(
        [["kafka broker crash", "kafka broker restart"] * 3, ["kafka ui login", "kafka ui logout"] * 3]
    )
    assert {one.keywords[0], other.keywords[0]} == {"broker", "ui"}


def test_the_order_is_by_size_then_representative():
    """Largest first; equal sizes by the representative's id, whatever the cluster numbers were."""
    groups = [["a apple"] * 2, ["b banana"] * 3, ["c cherry"] * 2]
    ids = ["z1", "z2", "m1", "m2", "m3", "a1", "a2"]
    assert [one.representative_id for one in describe(groups, ids)] == ["m1", "a1", "z1"]


def test_the_representative_is_nearest_the_centroid_and_ties_go_by_id():
    """The typical text stands for the cluster, not the odd one; of equal texts the lowest id."""
    (one,) = describe(
        [["consumer group lag", "lag consumer group oddity elsewhere", *["consumer group lag"] * 3]], list("edcba")
    )
    assert one.representative_id == "a"


def test_uncertain_members_pull_the_centroid_less():
    """A member of probability 0 does not move the centre."""
    vectors = np.array([[1, 0], [0.9, 0.1], [-1, 0], [-1, 0], [-1, 0]], np.float32)
    probabilities = np.array([1.0, 1.0, 0, 0, 0])
    described = describe_clusters(np.zeros(5, np.intp), probabilities, vectors, ["x word"] * 5, list("edcba"))
    assert described[0].representative_id in {"d", "e"}


def test_how_a_note_is_filed_is_no_label():
    """`chore(deps):` stands in all texts and says nothing; the label starts behind it."""
    (one,) = describe([[f"chore(deps): bump {name}" for name in ("apple", "pear", "plum")]])
    assert one.label.startswith("Bump")


@pytest.mark.parametrize("texts", [[None, None], ["", " "], ["!!!", "???"], ["12", "3.4"], ["a", "the"], ["#1", None]])
def test_clusters_without_words_still_have_a_label_and_a_keyword(texts):
    """The representative's own characters, else its id, stand in."""
    (one,) = describe([texts])
    assert one.label
    assert one.keywords
    assert all(one.keywords)


def test_namesakes_are_told_apart_by_a_keyword_or_a_number():
    """Two clusters with one label: the smaller adds its own keyword; without one, a number."""
    first, second, third = describe([["lock file maintenance"] * n for n in (9, 7, 5)])
    assert (first.label, second.label, third.label) == (
        "Lock file maintenance",
        "Lock file maintenance (2)",
        "Lock file maintenance (3)",
    )


def test_the_cluster_id_comes_from_the_content_alone():
    """The order of ids does not matter, their boundaries do."""
    assert cluster_id_of(["a", "b"]) == cluster_id_of(["b", "a"])
    assert cluster_id_of(["ab", "c"]) != cluster_id_of(["a", "bc"])
    assert len(cluster_id_of(["a"])) == 12


def test_noise_belongs_to_nothing_and_lengths_must_agree():
    """-1 is left out; only noise gives no description; a missing text is the caller's error."""
    vectors = sample.vectors()[:3]
    noise = np.full(3, -1)
    assert describe_clusters(noise, np.zeros(3), vectors, ["a"] * 3, list("abc")) == []
    assert describe_clusters(noise[:0], np.zeros(0), vectors[:0], [], []) == []
    with pytest.raises(ValueError, match="differ in length"):
        describe_clusters(noise, np.zeros(3), vectors, ["a"] * 2, list("abc"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=30)), min_size=1, max_size=5), min_size=1, max_size=4))
def test_any_texts_are_described_the_same_twice(groups):
    """Whatever the texts hold: no error, a label and a keyword each, all labels distinct, one outcome."""
    described = describe(groups)
    assert described == describe(groups)
    assert len({one.label.lower() for one in described}) == len(groups)
    assert all(one.label.strip() and one.keywords for one in described)

"""The measures of `bench cluster-quality` against values worked out by hand."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

from highwater.api.command.command import CommandFailedError
from tests import ROOT
from tests.bench import cluster_quality
from tests.bench.quality import (
    agreement,
    class_words,
    coverage,
    diversity,
    evaluate,
    members_of,
    softly_assigned,
    tokens_of,
    word_coverage,
)
from tests.bench.topic_peers import Topics

# The word a is in three of four texts, b and c in two; a and b meet in two, a and c in one, b and c in one.
TEXTS = ["aa bb", "aa bb cc", "aa", "cc"]


def test_diversity_is_the_share_of_distinct_words():
    """Six words, four of them distinct."""
    assert diversity({0: ["a", "b", "c"], 1: ["b", "c", "d"]}) == pytest.approx(4 / 6)
    assert math.isnan(diversity({0: []}))


def test_word_coverage_is_the_mean_share_of_members_that_hold_a_topics_words():
    """Both of two members contain the one word and one of them the other; a word in no text is 0; without words there is no
    coverage.
    """
    members = np.array([0, 0, 1, -1])
    texts = ["alpha beta", "alpha", "gamma", "beta"]
    assert word_coverage(members, texts, {0: ["alpha", "beta"], 1: ["delta"]}) == pytest.approx((0.75 + 0) / 2)
    assert math.isnan(word_coverage(members, texts, {0: [], 2: ["alpha"]}))


def test_coverage_counts_memberships_inclusively():
    """0.3, 0.5 and 0.7 are covered at their own level; a noise label covers nothing at any probability."""
    labels = np.array([0, 0, 1, 1, 1, -1, 2, 1])
    probabilities = np.array([0.3, 0.5, 0.7, 1.0, 0.29, 1.0, 0.1, np.nan])
    assert coverage(labels, probabilities) == {
        "clusters": 2,
        "noise": 3 / 8,
        "coverage_30": 5 / 8,
        "coverage_50": 4 / 8,
        "coverage_70": 3 / 8,
    }
    assert members_of(labels, probabilities).tolist() == [0, 0, 1, 1, -1, -1, -1, 1]


def test_class_words_are_ranked_by_class_based_tf_idf():
    """Two classes of 4 and 2 tokens, A = 3: aa 2/4 ln(1 + 3/3), bb 1/4 ln(1 + 3/1), cc 1/4 ln(1 + 3/2)."""
    texts = ["aa bb", "aa cc", "aa cc"]
    assert class_words(np.array([0, 0, 1]), texts) == {0: ("aa", "bb", "cc"), 1: ("cc", "aa")}
    assert 0.5 * math.log(2) == 0.25 * math.log(4)  # aa and bb tie, so the alphabet decides
    assert class_words(np.array([0, 0, 1]), texts, top=1) == {0: ("aa",), 1: ("cc",)}


def test_the_noise_class_counts_but_has_no_words():
    """As text of a third class it makes bb the rarer word of class 0: A = 8/3, aa is in 5 tokens, bb in 1."""
    texts = ["aa bb", "aa cc", "aa aa aa cc"]
    assert class_words(np.array([0, -1, -1]), texts) == {0: ("bb", "aa")}
    assert class_words(np.array([0, 0, 0]), texts) == {0: ("aa", "cc", "bb")}


def test_tokens_are_those_of_the_count_vectorizer():
    """Case, one-character words, underscores, digits, other scripts."""
    texts = ["Fix a topic_id (KAFKA-12) v2", "naïve ÉTÉ x y", "修复 消费者 bug", "don't", ""]
    analyse = CountVectorizer().build_analyzer()
    assert [tokens_of(text) for text in texts] == [analyse(text) for text in texts]
    assert tokens_of(None) == []


def test_evaluate_uses_the_first_words_only_and_tells_unknown_ones():
    """`top` cuts the system's own words; the share of words that occur in no text is reported."""
    labels = np.array([0, 0, 1, 1])
    found = evaluate(labels, np.ones(4), TEXTS, {0: ["aa", "bb", "zz"], 1: ["cc", "yy", "aa"]}, top=2)
    assert found["words"] == 2
    assert found["words_unknown"] == 1 / 4
    assert found["diversity"] == 1.0


def test_a_cluster_without_members_has_no_topic():
    """Words given for a cluster whose every membership is below 0.3 are not scored."""
    found = evaluate(np.array([0, 0, 1, 1]), np.array([1, 1, 0.2, 0.2]), TEXTS, {0: ["aa", "bb"], 1: ["yy", "zz"]})
    assert found["clusters"] == 1
    assert found["words_unknown"] == 0


def test_without_words_those_of_the_members_by_class_based_tf_idf_are_taken():
    """One word procedure for every system, over members only."""
    labels, probabilities = np.array([0, 0, 1, 1]), np.array([1, 1, 1, 0.1])
    assert evaluate(labels, probabilities, TEXTS) == evaluate(
        labels, probabilities, TEXTS, class_words(members_of(labels, probabilities), TEXTS)
    )


def test_nothing_but_noise_and_no_text_at_all_are_answered():
    """No cluster has no diversity; nothing divides by zero."""
    found = evaluate(np.full(4, -1), np.zeros(4), TEXTS)
    assert found["noise"] == 1
    assert math.isnan(found["diversity"])
    assert evaluate(np.zeros(0, dtype=int), np.zeros(0), [])["clusters"] == 0
    assert evaluate(np.zeros(2, dtype=int), np.ones(2), ["", None])["words"] == 0


def test_lengths_that_differ_are_refused():
    """A text too many is an error, not a shift."""
    with pytest.raises(ValueError, match="differ in length"):
        evaluate(np.zeros(3, dtype=int), np.ones(3), TEXTS)


def test_agreement_counts_noise_as_a_label():
    """The index of Hubert and Arabie worked out by hand, and 1 for the same groups under other names."""
    truth = np.array([0, 0, 1, 1, 2, 2])
    assert agreement(truth, np.array([5, 5, 3, 3, -1, -1])) == 1.0
    # 3 of 15 pairs are together in truth, 2 in the other and 2 in both; by chance 3 x 2 / 15, at most (3 + 2) / 2.
    assert agreement(truth, np.array([0, 0, 1, 1, -1, 2])) == pytest.approx((2 - 3 * 2 / 15) / (2.5 - 3 * 2 / 15))


def test_soft_assignment_takes_the_nearest_centroid_by_cosine():
    """Length does not matter, members stay, and without a cluster noise stays noise."""
    vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 2.0], [10.0, 9.0], [0.1, 0.2], [0.0, 0.0]])
    labels = np.array([4, 4, 2, -1, -1, -1])
    assert softly_assigned(vectors, labels).tolist() == [4, 4, 2, 4, 2, 2]
    assert labels.tolist() == [4, 4, 2, -1, -1, -1]
    assert softly_assigned(vectors, np.full(6, -1)).tolist() == [-1] * 6
    # The centroid of a short and a long member lies midway: 40 degrees are nearer to its 45 than to 0.
    lengths = np.array([[1.0, 0.0], [0.0, 100.0], [1.0, 0.0], [1.0, 0.839]])
    assert softly_assigned(lengths, np.array([0, 0, 1, -1])).tolist() == [0, 0, 1, 0]


def test_a_users_window_is_the_busiest_channels_of_the_last_sixty_days():
    """Five channels by what they had in the window, not before it; its first moment is inside."""
    rows = [{"channel_id": "old", "ts": "2026-01-01T00:00:00Z", "text": "before"}] * 9
    rows += [{"channel_id": name, "ts": "2026-05-02T00:00:00Z", "text": name} for name in "aabbccddeef"]
    rows += [{"channel_id": "old", "ts": "2026-07-01T00:00:00Z", "text": "now"}]
    assert cluster_quality.user_window(rows) == list(range(9, 19))
    assert cluster_quality.user_window([{**rows[9], "ts": "2026-05-01T23:59:59Z"}, rows[-1]]) == [1]


def test_without_umap_the_bench_says_how_to_install_it(monkeypatch):
    """One line, and nothing is measured."""
    monkeypatch.setattr(cluster_quality, "is_umap_installed", lambda: False)
    with pytest.raises(CommandFailedError, match=r"pip install 'highwater\[bench\]'"):
        cluster_quality.run(1)


def test_peak_memory_is_the_programs_own():
    """A child of a parent that holds 400 MB does not count them."""
    held = np.ones(50_000_000)
    told = subprocess.run(
        [sys.executable, "-c", "from tests.bench.cluster_quality import _peak_mb; print(_peak_mb())"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    assert 20 < float(told.stdout) < held.nbytes / 1e6


def test_a_result_survives_the_way_between_processes():
    """Labels, probabilities, words and soft labels come out of JSON as they went in."""
    topics = Topics(np.array([0, -1]), np.array([0.25, 0.0]), {0: ("aa", "bb")}, np.array([0, 0]))
    back = cluster_quality._from_json(json.loads(json.dumps(cluster_quality._to_json(topics))))
    assert back.labels.tolist() == [0, -1]
    assert back.probabilities.tolist() == [0.25, 0.0]
    assert dict(back.words) == {0: ["aa", "bb"]}
    assert back.soft is not None
    assert back.soft.tolist() == [0, 0]


def test_a_measurement_becomes_figures_and_a_table():
    """Both calls are scored, times once; what does not apply is left out; the table has each measure once."""
    truth = np.array([0, 0, 1, 1])
    data = cluster_quality.DataSet("four", np.eye(4, 2, dtype=np.float32), truth=truth)
    perfect, split = Topics(truth, np.ones(4)), Topics(np.array([0, 1, -1, -1]), np.ones(4))
    measured = [cluster_quality.Measurement(2.0, 1.0, 50.0, (perfect, split))]
    figures = {one["name"]: one for one in cluster_quality._figures(data, "highwater", measured)}
    assert figures["four: ARI, noise a label"]["max"] == 1.0
    assert (figures["four: noise, membership < 0.3"]["min"], figures["four: noise, membership < 0.3"]["max"]) == (0, 50)
    assert (figures["four: clusters"]["runs"], figures["four: warm"]["runs"]) == (2, 1)
    assert figures["four: same labels in all runs"]["value"] == 0
    assert not any("words" in name or "own soft" in name for name in figures)
    lines = cluster_quality.table(list(figures.values())).splitlines()
    assert len(lines) == 2 + len(figures)
    assert any(line.split() == ["noise,", "membership", "<", "0.3", "[%]", "25", "(0..50)"] for line in lines)


def test_what_is_kept_of_a_window_with_new_insights():
    """Two texts that repeat are two clusters, of which nothing new takes the id or an insight."""
    vectors = np.repeat(np.eye(2, 8, dtype=np.float32), 40, axis=0)
    assert cluster_quality.kept(vectors, ["kafka topic"] * 40 + ["docs"] * 40, seed=1) == (1.0, 1.0)


def test_a_result_without_clusters_gives_no_diversity():
    """A missing value is not reported as a number: NaN is not valid JSON."""
    data = cluster_quality.DataSet("four", np.eye(4, 2, dtype=np.float32), texts=TEXTS)
    scores = cluster_quality._scores(data, Topics(np.full(4, -1), np.zeros(4)))
    assert scores["noise, membership < 0.3", "%"] == 100
    assert not any("diversity" in measure for measure, _ in scores)

"""The labels of clusters: at least half of the members contain the words, or it is mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.labels import describe_clusters
from highwater.streams.feeds.tokens import root_of, stem_of

FRUIT = ("apple", "pear", "plum", "cherry", "fig", "quince")


def labels_of(*groups: Sequence[str], former: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """The label of each group of texts, which are a cluster each; insights are named by their place."""
    texts = [text for group in groups for text in group]
    numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    ids = [f"id{place:03}" for place in range(len(texts))]
    described = describe_clusters(
        numbers, np.ones(len(texts)), TextEmbedder().embed(texts), texts, ids, former=former or {}
    )
    return [one.label for one in sorted(described, key=lambda one: one.insight_ids)]


def test_a_verb_is_a_subject() -> None:
    """A verb in nearly all texts of a cluster and hardly elsewhere describes it, though it would fit most texts."""
    bumps = [f"Bump {name} from 1.0 to 1.{place}" for place, name in enumerate(FRUIT)]
    (label, _) = labels_of(bumps, [f"Broker {name} restarts" for name in FRUIT])
    assert label == "Bump"


def test_a_verb_that_all_clusters_share_is_none() -> None:
    """`fix` occurs everywhere, so it distinguishes no cluster; without another subject the label names that fact."""
    fixes = [f"Fix {name}" for name in FRUIT]
    (label, other) = labels_of([*fixes, "one", "two"], [f"Fix the broker {name}" for name in FRUIT])
    assert label == "Mixed"
    assert other.startswith("Broker")


def test_what_is_everywhere_in_a_window_is_no_subject() -> None:
    """All texts of the first cluster have the word of a third of the other six hundred; their next word is the subject."""
    rest = [f"{FRUIT[n % 6]}{'' if n % 3 else ' for python'} {n}" for n in range(600)]
    own = [f"python django {name}" for name in FRUIT]
    assert labels_of(own, rest)[0].startswith("Django")
    assert labels_of(own, rest[:60])[0].startswith("Python django")


def test_what_is_everywhere_is_a_subject_where_it_is_concentrated() -> None:
    """A fifth of the window's texts, nearly all in one cluster: they are about it."""
    (label, _) = labels_of([f"rebalance {n}" for n in range(130)], [f"{FRUIT[n % 6]} {n}" for n in range(500)])
    assert label.startswith("Rebalance")


def test_what_less_than_half_say_is_no_subject() -> None:
    """Two subjects of a third each are mixed, and both are said."""
    texts = [
        "cache lost",
        "cache full",
        "cache slow",
        "tests hang",
        "tests fail",
        "tests pass",
        "broken fig",
        "one plum",
    ]
    assert labels_of(texts, ["kafka broker"] * 5)[0] == "Mixed: cache, tests"


def test_a_part_of_hyphenated_words_is_no_subject() -> None:
    """`pre` of three tools is in all texts and names neither."""
    texts = [f"{tool} {name}" for tool in ("pre-commit", "pre-calc", "pre-push") for name in FRUIT[:4]]
    assert labels_of(texts, ["kafka broker"] * 5)[0].startswith("Mixed: pre-")


def test_a_subject_that_clusters_share_is_said_with_its_difference() -> None:
    """Both halves of a topic say what they are of, each half with what it holds and the other does not."""
    brokers = [f"kafka broker {name}" for name in FRUIT]
    actions = [f"Bump actions/{name} from 1 to 2" for name in FRUIT]
    snuba = [f"Bump snuba {name} from 1 to 2" for name in FRUIT]
    assert labels_of(actions, snuba, brokers)[:2] == ["Bump actions", "Bump snuba"]
    mixed = [
        [f"Bump {name}" for name in (*half * 2, *rest)]
        for half, rest in ((FRUIT[:2], FRUIT[2:4]), (FRUIT[4:], FRUIT[2:4]))
    ]
    first, second = labels_of(*mixed, brokers)[:2]
    assert first.startswith("Bump, e.g. ")
    assert second.startswith("Bump, e.g. ")
    assert "apple" in first
    assert "apple" not in second


@pytest.mark.parametrize(
    ("texts", "label"),
    [
        (["fix(ui): page of a", "fix(ui): the editor", "fix(ui): c", "UI of b"], "UI"),
        ([*(f"Release notes for {name}" for name in FRUIT), "Release plum", "a release", "releases"], "Release notes"),
        (["documentation of offsets", "documents offsets", "docs: offsets", "offset docs"], "Docs, offsets"),
        (["migrate the broker", "migration of a broker", "migrated broker", "Broker migrations"], "broker"),
    ],
)
def test_words_are_counted_in_all_their_forms_and_shown_as_they_are_written(texts: list[str], label: str) -> None:
    """Plurals, tenses and abbreviations are one word; abbreviations are shown in capitals where texts have them."""
    (found,) = labels_of(texts)
    assert label in found


def test_an_example_is_a_whole_word_and_not_a_part_of_one() -> None:
    """`fast` occurs in every text with FastAPI, and is not an example."""
    texts = [
        "FastAPI router",
        "a FastAPI app",
        "include fig",
        "include plum",
        "one pear",
        "a quince",
        "cherry",
        "apple",
    ]
    assert labels_of(texts, ["kafka broker"] * 5)[0] == "Mixed: FastAPI, include"


def test_a_word_of_manner_needs_more_than_half() -> None:
    """If half of a cluster contains `unused`, that is not its subject."""
    half = ["unused apple", "unused pear", "unused fig", "docker image", "docker build", "docker run"]
    brokers = [f"kafka broker {name}" for name in FRUIT]
    assert labels_of(half, brokers)[0].startswith("Docker")
    assert labels_of([*half[:5], "plum"], brokers)[0].startswith("Mixed")
    assert labels_of([*half[:4], "unused plum", "unused quince"], brokers)[0].startswith("Unused")


def test_an_example_of_a_namesake_is_its_own() -> None:
    """A word of both clusters distinguishes neither, even if it is the most frequent one beside the subject."""
    first = [*(f"Bump ruff {name}" for name in FRUIT[:2]), "Bump mypy", "Bump mypy now", "Bump uv", "Bump ty"]
    second = [*(f"Bump ruff {name}" for name in FRUIT[2:4]), "Bump vite", "Bump vite now", "Bump eslint", "Bump react"]
    both = labels_of(first, second, [f"kafka broker {name}" for name in FRUIT])[:2]
    assert all(label.startswith("Bump") and "ruff" not in label for label in both)
    assert both[0] != both[1]


def test_a_former_label_that_was_never_true_goes() -> None:
    """A label of a version before that half of the members do not say is replaced, however long it stood."""
    bumps = [f"Bump {name}" for name in FRUIT]
    ids = [f"id{place:03}" for place in range(len(FRUIT))]
    for before in ("Apple, pear, plum", "Quince"):
        assert labels_of(bumps, ["broker"] * 6, former={before: ids})[0] == "Bump"


def test_a_mixed_label_stays_until_there_is_a_subject() -> None:
    """Its words are still said by some; once half of the members share one, that one is the label."""
    texts = ["cache lost", "cache full", "tests hang", "tests fail", "broken fig", "one plum"]
    ids = [f"id{place:03}" for place in range(len(texts))]
    before = {"Mixed: tests, cache": ids}
    assert labels_of(texts, ["broker"] * 6, former=before)[0] == "Mixed: tests, cache"
    assert labels_of([*texts[:3], "cache d", "cache e", "cache f"], ["broker"] * 6, former=before)[0].startswith(
        "Cache"
    )


@pytest.mark.parametrize(
    ("words", "root"),
    [
        ("update updates updated updating", "updat"),
        ("docs documentation doc documents", "document"),
        ("logs log logging", "log"),
        ("configure configuration config", "configur"),
        ("deprecate deprecated", "deprec"),
        (
            "\u0444\u0430\u0439\u043b \u0444\u0430\u0439\u043b\u0430 \u0444\u0430\u0439\u043b\u043e\u0432",
            "\u0444\u0430\u0439\u043b",
        ),
    ],
)
def test_forms_of_a_word_have_one_root(words: str, root: str) -> None:
    """Forms that a reader takes for one word."""
    assert {root_of(stem_of(word)) for word in words.split()} == {root}


def test_other_words_have_other_roots() -> None:
    """Words that merely look alike."""
    words = ["string", "speed", "consumer", "consume", "thread", "status", "class", "release", "server", "\u6d88"]
    assert len({root_of(stem_of(word)) for word in words}) == len(words)

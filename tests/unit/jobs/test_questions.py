"""Which questions may share an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.streams.jobs.questions import may_share_answer, normalised

PAIRS = Path(__file__).with_name("question_pairs.tsv")

DIFFERENT = [
    ("Do not migrate from Redis to Kafka", "Migrate from Kafka to Redis"),
    ("Migrate from Redis to Kafka", "Migrate from Kafka to Redis"),
    ("migrate from redis to kafka", "migrate from kafka to redis"),
    ("Results of 2025", "Results of 2024"),
    ("Explain commit 9f8e7d6c", "Explain commit 1a2b3c4d"),
    ("Why should we use exactly-once?", "Why should we not use exactly-once?"),
    ("Why can we delete topics?", "Why can't we delete topics?"),
    ("Deploy with a registry", "Deploy without a registry"),
    ("Introduce Anna to the team", "Introduce Berta to the team"),
    ("Compare KRaft and ZooKeeper before 4.0", "Compare KRaft and ZooKeeper after 4.0"),
    ("Upgrade v1.2 to v1.3", "Upgrade v1.3 to v1.2"),
    ("Почему нам не нужен Redis", "Почему нам нужен Redis"),
]


@pytest.mark.parametrize(("asked", "answered"), DIFFERENT)
def test_questions_that_ask_something_else_share_nothing(asked: str, answered: str) -> None:
    """Another direction, number, name or negation, in both orders, however near the vectors are."""
    assert not may_share_answer(asked, answered)
    assert not may_share_answer(answered, asked)


@pytest.mark.parametrize("other", ["what is kraft", "What  is\nKRaft?", "WHAT IS KRAFT ?", "What is KRaft?!"])
def test_another_spelling_is_the_same_question(other: str) -> None:
    """Case, spaces and the mark at the end."""
    assert may_share_answer("What is KRaft?", other)
    assert normalised("What is KRaft?") == "what is kraft"


def pairs(verdict: str) -> list[tuple[str, str]]:
    """Pairs of requests for a deck: 100 that ask the `same` and 100 `different` from before the rule, 30 more against it."""
    rows = [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [(one, other) for kind, one, other in rows if kind == verdict]


def test_of_130_near_opposites_none_shares_an_answer() -> None:
    """Another direction, side, person, time or number, in both orders, at any cosine."""
    found = pairs("different")
    assert len(found) == 130
    assert [pair for pair in found if may_share_answer(*pair) or may_share_answer(*reversed(pair))] == []


def test_of_100_paraphrases_a_quarter_may_share_an_answer() -> None:
    """Those that differ in the opening, in articles or in a listed synonym; the others ask the model."""
    assert sum(may_share_answer(*pair) for pair in pairs("same")) >= 25


@pytest.mark.parametrize("other", ["Please describe KRaft in Kafka 4.0", "Make slides about KRaft in Kafka 4.0"])
def test_ways_to_ask_for_a_deck_ask_for_the_same(other: str) -> None:
    """Also without vectors of meaning."""
    assert may_share_answer("Explain KRaft in Kafka 4.0", other)


@pytest.mark.parametrize("other", ["Explain", "the", "?", ""])
def test_a_question_without_words_is_like_none(other: str) -> None:
    """An opening alone asks for nothing."""
    assert not may_share_answer("Please", other)

"""Which questions may share an answer."""

from __future__ import annotations

import pytest

from highwater.streams.jobs.questions import may_share_answer, normalised

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


@pytest.mark.parametrize("by_meaning", [True, False])
@pytest.mark.parametrize(("asked", "answered"), DIFFERENT)
def test_questions_that_ask_something_else_share_nothing(asked: str, answered: str, *, by_meaning: bool) -> None:
    """Another direction, number, name or negation, in both orders, however near the vectors are."""
    assert not may_share_answer(asked, answered, by_meaning=by_meaning)
    assert not may_share_answer(answered, asked, by_meaning=by_meaning)


@pytest.mark.parametrize("by_meaning", [True, False])
@pytest.mark.parametrize("other", ["what is kraft", "What  is\nKRaft?", "WHAT IS KRAFT ?", "What is KRaft?!"])
def test_another_spelling_is_the_same_question(other: str, *, by_meaning: bool) -> None:
    """Case, spaces and the mark at the end."""
    assert may_share_answer("What is KRaft?", other, by_meaning=by_meaning)
    assert normalised("What is KRaft?") == "what is kraft"


def test_other_words_share_an_answer_only_by_a_model_of_meaning() -> None:
    """With the same names, numbers and directions."""
    asked, answered = "Give an overview of KRaft in Kafka 4.0", "Please give a short overview of KRaft in Kafka 4.0"
    assert may_share_answer(asked, answered, by_meaning=True)
    assert not may_share_answer(asked, answered, by_meaning=False)

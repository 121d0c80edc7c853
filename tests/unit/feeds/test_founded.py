"""Whether a model's title is founded in what the model was given."""

from __future__ import annotations

import pytest

from highwater.streams.feeds.founded import is_founded

GIVEN = ("Fix the memory leak in RocksDBStore", "KAFKA-16089: Исправлена утечка памяти в хранилище")


@pytest.mark.parametrize(
    ("title", "summary", "is_right"),
    [
        ("Memory leaks of RocksDBStore", "A leak is fixed.", True),
        ("Memory leak improvements", "", True),  # half of it
        ("Утечка памяти", "", True),
        ("Broad performance improvements of memory", "", False),  # a quarter
        ("What is new", "", False),  # no word of it has a meaning
        ("Memory leak in 4.2", "", False),  # no text has the number
        ("Memory leak", "KAFKA-16090 is fixed.", False),
        ("Memory leak", "KAFKA-16089 is fixed.", True),
    ],
)
def test_a_title_has_words_of_the_texts(title: str, summary: str, is_right: bool):
    """Half of them at least, in any form, and each number of title and summary."""
    assert is_founded(title, summary, GIVEN) is is_right

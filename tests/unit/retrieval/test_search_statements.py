"""The texts of statements: one for each namespace and kind of search, with names as literals."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.retrieval.search_statements import PLAIN, near_statement, statement_of_all, where_of

NAMESPACE: Any = {"ns": "o'neill", "dimensions": 16, "embedding_model": "a'b\\c"}
BESIDE: Any = {"vectors_beside": True, "is_indexed_beside": True}


def test_one_text_for_each_namespace_and_kind():
    """The same search has the same text, so that its plan is made once; words and limits of sources are other kinds."""
    kinds = [
        near_statement(PLAIN, NAMESPACE, per_source, has_words=words, is_filtered=True)
        for per_source in (None, 2)
        for words in (False, True)
    ]
    assert len(set(kinds)) == 4
    assert near_statement(PLAIN, dict(NAMESPACE), 3, has_words=True, is_filtered=True) is kinds[-1]
    assert near_statement(PLAIN, {**NAMESPACE, "ns": "other"}, None, has_words=False, is_filtered=True) != kinds[0]


def test_names_are_quoted():
    """The expression of an index is the same in the text and in the index: namespace, length, and the model of vectors."""
    text = near_statement(where_of(BESIDE), NAMESPACE, None, has_words=False, is_filtered=False)
    assert "ns = 'o''neill'" in text
    assert "ns = $1" not in text
    assert "halfvec(16)" in text
    assert "halfvec(384)" not in text
    assert "v.model = 'a''b\\c'" in text


@pytest.mark.parametrize(
    ("now", "beside", "by_key"),
    [
        ({**BESIDE, "vectors_beside": False, "is_indexed_beside": False}, False, False),
        ({**BESIDE, "is_indexed_beside": False}, True, False),
        (BESIDE, True, True),
    ],
)
def test_vectors_are_read_where_they_are(now: Any, beside: bool, by_key: bool):
    """In `chunks`; while they stand beside, one by one, or by the index once there is one. To compare all needs none."""
    where = where_of(now)
    assert ("FROM chunk_next_vectors" in statement_of_all(where, None, has_words=False)) is beside
    near = near_statement(where, NAMESPACE, None, has_words=True, is_filtered=False)
    read = ("FROM chunk_next_vectors" in near, "LEFT JOIN chunk_next_vectors" in near)
    assert read == (beside and not by_key, by_key)

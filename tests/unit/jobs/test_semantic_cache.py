"""The question that the semantic cache compares, and the key of an entry."""

from __future__ import annotations

import re

import numpy as np
import pytest

from highwater.connectors.jobs.semantic_cache import Lookup, embedding_hash, entry_hash_of, nearest
from highwater.connectors.models.embeddings import BuiltInEmbedder


def vector(cosine: float) -> bytes:
    """A unit vector with this cosine to that of 1."""
    return np.array([cosine, np.sqrt(1 - cosine**2), 0, 0], dtype="<f4").tobytes()


def cosine(one: bytes, other: bytes) -> float:
    """That of two unit vectors."""
    return float(np.frombuffer(one, "<f4") @ np.frombuffer(other, "<f4"))


def test_the_nearest_is_found():
    """Places of 0.95 or more, the nearest first; none among none."""
    assert nearest(vector(1.0), [vector(0.5), vector(0.96), vector(0.94), vector(0.99)]) == [3, 1]
    assert nearest(vector(1.0), []) == []


@pytest.mark.requirement("R2.24")
def test_a_hash_is_32_digits_of_the_rounded_vector():
    """R2.24: what differs in the last bits is the same."""
    one, other = np.frombuffer(vector(0.6), "<f4"), np.frombuffer(vector(0.6), "<f4") + np.float32(1e-7)
    assert re.fullmatch("[0-9a-f]{32}", embedding_hash(one.tobytes()))
    assert embedding_hash(one.tobytes()) == embedding_hash(other.astype("<f4").tobytes())
    assert embedding_hash(vector(0.6)) != embedding_hash(vector(0.61))


@pytest.mark.requirement("R2.26")
@pytest.mark.parametrize("other", [Lookup("acme", "other", "q"), Lookup("umbrella", "docs", "q")])
def test_a_key_is_of_an_organization_and_its_documents(other: Lookup):
    """R2.26: the same question elsewhere is another entry."""
    assert entry_hash_of(Lookup("acme", "docs", "q"), vector(1)) != entry_hash_of(other, vector(1))


async def test_the_built_in_embedder_gives_unit_vectors():
    """The same for the same text, near for one worded alike."""
    embedder = BuiltInEmbedder()
    first, second, third = await embedder.embed(["What is KRaft?", "What is KRaft?", "Recipes for bread"])
    assert first == second
    assert nearest(first, [third, second]) == [1]
    assert cosine(first, second) == pytest.approx(1.0)
    assert cosine(first, third) < 0.5

"""Nearest neighbours: exact, independent of machine and order, and independent of the known neighbours passed in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from highwater.streams.feeds import neighbours as module
from highwater.streams.feeds.neighbours import (
    CANDIDATES_PER_NEIGHBOUR,
    DIMENSIONS_MAX,
    LENGTH,
    NEIGHBOURS,
    NOBODY,
    SPARES,
    Distinct,
    Neighbours,
    find_neighbours,
)
from tests.unit.feeds import sample


def brute_force(distinct, count):
    """Per point the others with a positive product, best first, ties by place."""
    whole = distinct.rounded.astype(np.int64)
    products = whole @ whole.T
    np.fill_diagonal(products, -1)
    found = []
    for row in products:
        order = np.lexsort((np.arange(len(row)), -row))[:count]
        found.append([(int(other), int(row[other])) for other in order if row[other] > 0])
    return found


def listed(found: Neighbours):
    """The same form, for the neighbours that were found."""
    return [
        [(int(o), int(p)) for o, p in zip(others, products, strict=True) if o != NOBODY]
        for others, products in zip(found.others, found.products, strict=True)
    ]


def assert_equal(one: Neighbours, other: Neighbours, count=NEIGHBOURS) -> None:
    """Assert equality of the first N neighbours; later ones depend on the known neighbours passed in."""
    one, other = one.first(count), other.first(count)
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.others, other.others)
    np.testing.assert_array_equal(one.products, other.products)


def steps(seed, n, width, levels):
    """Vectors of few levels: ties and copies nearly everywhere."""
    return np.random.default_rng(seed).integers(-levels, levels + 1, (n, width)).astype(np.float32)


vectors_with_ties = st.builds(
    steps, st.integers(0, 2**32 - 1), st.integers(0, 120), st.sampled_from([1, 2, 5, 40]), st.integers(1, 3)
)


@settings(max_examples=150, deadline=None)
@given(vectors=vectors_with_ties, count=st.integers(1, 20))
def test_lists_are_those_of_brute_force(vectors, count):
    """Every list equals the one by comparing all with all in whole numbers, order of ties included."""
    distinct = Distinct.of(vectors)
    found = find_neighbours(distinct, count=count)
    assert listed(found.first(count)) == brute_force(distinct, count)
    assert listed(found) == brute_force(distinct, count + SPARES)


def test_real_texts_get_the_lists_of_brute_force():
    """3,000 real commits, in several blocks and slices."""
    distinct = Distinct.of(sample.vectors())
    assert len(distinct) > module.BLOCK_ROWS * 2
    assert listed(find_neighbours(distinct)) == brute_force(distinct, NEIGHBOURS + SPARES)


def test_a_row_of_ties_is_cut_in_the_order_of_the_keys():
    """A point equally near to more others than a block may list still gets the first of them, and no more."""
    corner = np.zeros((1, 800), dtype=np.float32)
    corner[0, 0] = 1
    context = np.eye(800, dtype=np.float32)[1:]
    context[:, 0] = 1
    distinct = Distinct.of(np.concatenate([corner, context]))
    assert len(context) > CANDIDATES_PER_NEIGHBOUR * (NEIGHBOURS + SPARES)
    assert listed(find_neighbours(distinct)) == brute_force(distinct, NEIGHBOURS + SPARES)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 90),
    width=st.sampled_from([2, 6, 30]),
    levels=st.integers(1, 3),
    windows=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=4),
)
def test_what_was_known_changes_nothing(seed, n, width, levels, windows):
    """Over random histories of windows, lists taken over from the window before equal those searched from nothing."""
    vectors = steps(seed, n, width, levels)
    known = None
    for first, last in windows:
        distinct = Distinct.of(vectors[min(first, last) : max(first, last)])
        found = find_neighbours(distinct, known=known, count=5)
        assert_equal(found, find_neighbours(distinct, count=5), 5)
        everybody = brute_force(distinct, len(distinct))
        for row, (own, others) in enumerate(zip(listed(found), everybody, strict=True)):
            assert own == others[: len(own)]
            assert len(own) == len(others) or len(own) == found.others.shape[1] or found.products[row, -1] < 0
        known = Neighbours.from_bytes(found.to_bytes())


def test_a_window_with_little_new_searches_little(monkeypatch):
    """With 1 % new and 1 % gone, the lists of those that are new are searched and hardly any other, over ten windows."""
    vectors = sample.vectors()
    searched = []
    original = module._search
    monkeypatch.setattr(module, "_search", lambda r, d, places: (searched.append(len(places)), original(r, d, places)))
    known = None
    for first in range(0, 300, 30):
        distinct = Distinct.of(vectors[first : first + 2_700])
        known = find_neighbours(distinct, known=known)
    assert 0 < max(searched[1:]) < 60
    assert_equal(known, find_neighbours(distinct))


def test_lists_of_another_window_are_taken_over_as_far_as_they_go():
    """Whether they are shorter (of a small window, or of before lists had spares) or longer than those that are wanted."""
    vectors = sample.vectors()
    for length, count in ((8, 5), (1_000, 5), (1_000, NEIGHBOURS)):
        known = find_neighbours(Distinct.of(vectors[:length]), count=count)
        for stored in (known, known.first(count)):
            distinct = Distinct.of(vectors[5:1_005])
            assert_equal(find_neighbours(distinct, known=stored), find_neighbours(distinct))


def test_order_and_blas_threads_change_nothing():
    """Rows in another order and two BLAS threads give the same lists."""
    vectors = sample.vectors()[:1500]
    with threadpool_limits(1):
        expected = find_neighbours(Distinct.of(vectors))
    with threadpool_limits(2):
        found = find_neighbours(Distinct.of(vectors[np.random.default_rng(5).permutation(1500)]))
    assert_equal(found, expected)


def test_products_are_whole_numbers_that_float32_holds():
    """Longest rounded vectors stay below 2^12, so no product reaches 2^24, at any allowed width."""
    for width in (1, 3, 384, DIMENSIONS_MAX):
        vectors = np.random.default_rng(width).normal(size=(20, width)).astype(np.float32)
        rounded = Distinct.of(vectors).rounded.astype(np.int64)
        assert (rounded * rounded).sum(axis=1).max() < 2**24
    assert LENGTH + 0.5 * DIMENSIONS_MAX**0.5 < 2**12


def test_a_direction_counts_once_and_zero_rows_have_none():
    """Copies, multiples and -0.0 are one point; a zero row is not a point."""
    vectors = np.array([[0, 0], [1, 0], [2, -0.0], [0, 3], [1, 0]], dtype=np.float32)
    distinct = Distinct.of(vectors)
    assert len(distinct) == 2
    assert distinct.node_of_row[0] == NOBODY
    assert distinct.node_of_row[1] == distinct.node_of_row[2] == distinct.node_of_row[4] != distinct.node_of_row[3]
    assert sorted(distinct.copies.tolist()) == [1, 3]


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e20, 3e38])
def test_lengths_of_any_magnitude_are_as_good(scale):
    """Tiny and huge vectors point where they point."""
    vectors = np.array([[1, 2, 2], [2, 1, 0]], dtype=np.float32)
    scaled = (vectors.astype(np.float64) * scale).clip(-3e38, 3e38).astype(np.float32)
    if scale == 3e38:
        scaled = np.array([[1.5e38, 3e38, 3e38], [3e38, 1.5e38, 0]], dtype=np.float32)
    atol = 40 if scale == 1e-40 else 1  # denormal numbers hold few digits
    np.testing.assert_allclose(np.sort(Distinct.of(scaled).rounded, axis=None),
                               np.sort(Distinct.of(vectors).rounded, axis=None), atol=atol)  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(value):
    """One such value and nothing is compared."""
    vectors = np.ones((3, 4), dtype=np.float32)
    vectors[1, 2] = value
    with pytest.raises(ValueError, match="finite"):
        Distinct.of(vectors)


@pytest.mark.parametrize(
    "vectors", [np.ones(3, dtype=np.float32), np.ones((2, 2)), np.ones((1, DIMENSIONS_MAX + 1), "f4")]
)
def test_other_arrays_are_refused(vectors):
    """Only float32 (n, d) up to the widest allowed."""
    with pytest.raises(ValueError, match="float32"):
        Distinct.of(vectors)


@pytest.mark.parametrize("cut", [0, 5, -1])
def test_stored_lists_that_are_cut_off_are_refused(cut):
    """Stored lists are read back completely or not at all."""
    stored = find_neighbours(Distinct.of(sample.vectors()[:50])).to_bytes()
    with pytest.raises(ValueError, match="cut off"):
        Neighbours.from_bytes(stored[:cut])


def test_stored_lists_that_point_outside_are_refused():
    """A place beyond the end would read the list of another point."""
    found = find_neighbours(Distinct.of(sample.vectors()[:50]))
    found.others[3, 2] = 50
    with pytest.raises(ValueError, match="outside"):
        Neighbours.from_bytes(found.to_bytes())

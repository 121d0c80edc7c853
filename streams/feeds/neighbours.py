"""The distinct vectors of a window and each one's nearest others, by cosine.

Invariant: the lists are exact, and do not depend on the machine's BLAS, the order of the rows and earlier lists. Unit
vectors are rounded to integers so short that every product of two is an integer below 2^24: float32 represents it and
all its partial sums exactly, in any order of summation. Equal similarities are ordered by the vectors' content.

Lists of an earlier window are reused where possible (`known`), so that a window with little news costs little. The rest
of a list after members left is still exact as far as it goes, and newcomers nearer than its end are inserted. So a list
is found slightly longer than it is used: with one member in a hundred leaving and as many coming, a list of 15 would be
searched again in one window of seven, one of 24 in one of hundreds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.intp]
Float32Array = NDArray[np.float32]

NEIGHBOURS = 15  # as UMAP's default, for a window of hundreds: enough to connect a topic, few enough to keep it apart
NOBODY = -1
# This many more are found and kept, to replace those that leave.
SPARES = 9
# The product beside `NOBODY` where a list is known no further.
_UNKNOWN = -1
# Length of a rounded vector. With half a unit of rounding per coordinate, lengths stay below 4,096 and products below
# 2^24 up to DIMENSIONS_MAX coordinates. A coordinate of a 384-wide vector is about 200, rounded by at most a half.
LENGTH = 4_000
DIMENSIONS_MAX = 16_384
KEY_BYTES = 16
# Rows compared at once: 20,000 x 512 float32 is 41 MB, and a mask of it 10 MB.
BLOCK_ROWS = 512
# The maxima of this many slices of a row bound its k-th best from below: a fraction of the cost of sorting it.
SLICES = 32
# A row with more candidates than this many times k has many ties and is handled separately.
CANDIDATES_PER_NEIGHBOUR = 8

_HEADER = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Distinct:
    """The different directions among n vectors, in the order of their content.

    `keys` S16 (u,): hash of each, ascending; `rounded` float32 (u, d): integers, length about `LENGTH`; `copies` int
    (u,): rows with this direction; `node_of_row` int (n,): the direction of a row, `NOBODY` for a row without one (all
    zero).
    """

    keys: NDArray[np.bytes_]
    rounded: Float32Array
    copies: IntArray
    node_of_row: IntArray

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, vectors: Float32Array) -> Distinct:
        """Return the distinct directions of float32 (n, d).

        Raises:
            ValueError: not float32 (n, d) with d up to `DIMENSIONS_MAX`, or a value is not finite.
        """
        if vectors.ndim != 2 or vectors.dtype != np.float32 or vectors.shape[1] > DIMENSIONS_MAX:
            raise ValueError(f"vectors must be float32 (n, d <= {DIMENSIONS_MAX}), not {vectors.dtype} {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("vectors hold a value that is not finite")
        rows = _rounded(vectors)
        node_of_row = np.full(len(rows), NOBODY, dtype=np.intp)
        first_rows: dict[bytes, int] = {}
        place = np.empty(len(rows), dtype=np.intp)
        for row in np.flatnonzero(rows.any(axis=1)).tolist():
            key = blake2b(rows[row].tobytes(), digest_size=KEY_BYTES).digest()
            place[row] = first_rows.setdefault(key, row)
            node_of_row[row] = 0
        ordered = sorted(first_rows)
        keys = np.array(ordered, dtype=f"V{KEY_BYTES}")
        firsts = np.array([first_rows[key] for key in ordered], dtype=np.intp)
        node_of_first = np.empty(len(rows), dtype=np.intp)
        node_of_first[firsts] = np.arange(len(firsts))
        told = node_of_row == 0
        node_of_row[told] = node_of_first[place[told]]
        copies = np.bincount(node_of_row[told], minlength=len(keys)).astype(np.intp)
        return cls(keys, rows[firsts].astype(np.float32), copies, node_of_row)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The nearest others of u distinct vectors.

    `others` int32 (u, k): indexes, nearest first, `NOBODY` where fewer have a positive similarity; `products` int32 (u,
    k): the exact integer product with each, 0 beside `NOBODY`. `keys` as in `Distinct`. Negative products mark the end
    of a list that is known no further.
    """

    keys: NDArray[np.bytes_]
    others: NDArray[np.int32]
    products: NDArray[np.int32]

    @property
    def similarities(self) -> Float32Array:
        """Return cosines (u, k), 0 beside `NOBODY`; rounding of the vectors may lift one above 1, which is cut."""
        return np.minimum(self.products / np.float32(LENGTH * LENGTH), np.float32(1.0)).astype(np.float32)

    def first(self, count: int) -> Neighbours:
        """Return the `count` nearest of each, if they were found with this count."""
        return Neighbours(
            self.keys, np.ascontiguousarray(self.others[:, :count]), np.ascontiguousarray(self.products[:, :count])
        )

    def to_bytes(self) -> bytes:
        """Serialize for storage beside the version; read by `from_bytes`."""
        count, k = self.others.shape
        parts = (self.keys.tobytes(), self.others.astype("<i4").tobytes(), self.products.astype("<i4").tobytes())
        return _HEADER.pack(count, k) + b"".join(parts)

    @classmethod
    def from_bytes(cls, stored: bytes) -> Neighbours:
        """Parse what `to_bytes` wrote.

        Raises:
            ValueError: it is truncated or something else.
        """
        if len(stored) < _HEADER.size:
            raise ValueError("stored neighbours are cut off")
        count, k = _HEADER.unpack_from(stored)
        if len(stored) != _HEADER.size + count * (KEY_BYTES + 8 * k):
            raise ValueError("stored neighbours are cut off")
        keys = np.frombuffer(stored, dtype=f"V{KEY_BYTES}", count=count, offset=_HEADER.size)
        numbers = np.frombuffer(stored, dtype="<i4", offset=_HEADER.size + count * KEY_BYTES).astype(np.int32)
        others, products = numbers.reshape(2, count, k)
        if count and not (others.min(initial=0) >= NOBODY and others.max(initial=0) < count):
            raise ValueError("stored neighbours point outside")
        return cls(keys, others, products)


def find_neighbours(distinct: Distinct, *, known: Neighbours | None = None, count: int = NEIGHBOURS) -> Neighbours:
    """Return the `count` nearest others of every distinct vector (`first`), by exact products, ties in the order of the
    keys.

    Up to `SPARES` more follow, as far as they are known. `known`: the neighbours in an earlier window of the same
    basis; the `count` nearest are the same with it and without it.
    """
    u = len(distinct)
    k, width = (min(wanted, max(u - 1, 0)) for wanted in (count, count + SPARES))
    result = Neighbours(
        distinct.keys, np.full((u, width), NOBODY, dtype=np.int32), np.zeros((u, width), dtype=np.int32)
    )
    if k == 0:
        return result
    _search(result, distinct, np.arange(u) if known is None else _take_over(result, distinct, known, k))
    return result


def _rounded(vectors: Float32Array) -> NDArray[np.int16]:
    """Return integers int16 (n, d) in the direction of each row; zero rows stay zero."""
    rounded = np.zeros(vectors.shape, dtype=np.int16)
    height = max(1, BLOCK_ROWS * 1024 // max(vectors.shape[1], 1))
    for first in range(0, len(vectors), height):
        block = vectors[first : first + height].astype(np.float64)
        # Scaled first by the largest, so that squares neither overflow nor underflow.
        block /= np.maximum(np.abs(block).max(axis=1, initial=0.0, keepdims=True), np.finfo(np.float64).tiny)
        lengths = np.sqrt((block * block).sum(axis=1, keepdims=True))
        rounded[first : first + height] = np.rint(block * (LENGTH / np.maximum(lengths, 1.0)))
    return rounded


def _take_over(result: Neighbours, distinct: Distinct, known: Neighbours, count: int) -> IntArray:
    """Fill in the lists as far as they are known; return the indexes (m,) of those with fewer than `count`."""
    u, width = result.others.shape
    if not known.others.size:
        return np.arange(u)
    old_place = np.searchsorted(known.keys, distinct.keys)
    old_place[old_place == len(known.keys)] = 0
    stays = known.keys[old_place] == distinct.keys
    stayed, newcomers = np.flatnonzero(stays), np.flatnonzero(~stays)
    new_place = np.full(len(known.keys) + 1, NOBODY, dtype=np.int32)  # the last entry stands for NOBODY
    new_place[old_place[stayed]] = stayed
    lists, products = new_place[known.others[old_place[stayed]]], known.products[old_place[stayed]]
    row, column = np.nonzero(lists != NOBODY)
    lengths = np.zeros(u, dtype=np.intp)
    lengths[stayed] = np.bincount(row, minlength=len(stayed))
    # A list that ends before its capacity names all others.
    has_all = np.zeros(u, dtype=bool)
    has_all[stayed] = (products[:, -1] == 0) & (lengths[stayed] <= width)
    _write(result, stayed[row], lists[row, column], products[row, column])
    lengths += _let_in(result, distinct, stayed, newcomers, lengths, has_all)
    is_held = has_all | (lengths >= count)
    is_cut = is_held & ~has_all
    result.products[is_cut[:, None] & (np.arange(width) >= lengths[:, None])] = _UNKNOWN
    return np.flatnonzero(~is_held)


def _let_in(
    result: Neighbours,
    distinct: Distinct,
    stayed: IntArray,
    newcomers: IntArray,
    lengths: IntArray,
    has_all: NDArray[np.bool_],
) -> IntArray:
    """Insert newcomers into lists of `lengths` (u,) where they rank before the end; return the number inserted in each
    (u,).

    After the end of a list that does not have all others (`has_all`, (u,)), an unknown one may precede a newcomer.
    """
    came = np.zeros(len(lengths), dtype=np.intp)
    if not len(newcomers):
        return came
    ends = np.maximum(np.minimum(lengths, result.others.shape[1]) - 1, 0)
    each = np.arange(len(lengths))
    end_product = np.where(lengths == 0, np.inf, result.products[each, ends]).astype(np.float32)
    end_place = result.others[each, ends]
    end_product[has_all], end_place[has_all] = 0.0, NOBODY
    arriving = np.ascontiguousarray(distinct.rounded[newcomers].T)
    for first in range(0, len(stayed), BLOCK_ROWS):
        places = stayed[first : first + BLOCK_ROWS]
        block = distinct.rounded[places] @ arriving
        ending = end_product[places, None]
        is_before = block > ending
        is_before |= (block == ending) & (newcomers < end_place[places, None])
        row, column = np.divmod(np.flatnonzero(is_before), len(newcomers))
        if not len(row):
            continue
        entered = np.bincount(row, minlength=len(places))
        came[places] = entered
        changed = places[entered > 0]
        held = result.others[changed]
        listed, at = np.nonzero(held != NOBODY)
        _write_sorted(
            result,
            np.concatenate([changed[listed], places[row]]),
            np.concatenate([held[listed, at], newcomers[column]]),
            np.concatenate([result.products[changed][listed, at], block[row, column].astype(np.int32)]),
        )
    return came


def _write_sorted(
    result: Neighbours, rows: IntArray, others: NDArray[np.integer], products: NDArray[np.integer]
) -> None:
    """Write lists given as (row, other, product), sorted as in the lists, up to their capacity."""
    order = np.lexsort((others, -products, rows))
    _write(result, rows[order], others[order], products[order])


def _write(result: Neighbours, rows: IntArray, others: NDArray[np.integer], products: NDArray[np.integer]) -> None:
    """Write lists that are in this order already: those of a list together, the nearest first."""
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    chosen = rank < result.others.shape[1]
    result.others[rows[chosen], rank[chosen]] = others[chosen]
    result.products[rows[chosen], rank[chosen]] = products[chosen]


def _search(result: Neighbours, distinct: Distinct, places: IntArray) -> None:
    """Fill in the lists of `places` by comparing each with all."""
    if not len(places):
        return
    u, k = result.others.shape
    slices = max(1, min(SLICES, u // (2 * k)))
    width = -(-u // slices)
    # Padded with zero vectors, whose product with any is 0 and has no effect.
    everybody = np.zeros((distinct.rounded.shape[1], slices * width), dtype=np.float32)
    everybody[:, :u] = distinct.rounded.T
    for first in range(0, len(places), BLOCK_ROWS):
        rows = places[first : first + BLOCK_ROWS]
        block = distinct.rounded[rows] @ everybody
        block[np.arange(len(rows)), rows] = 0.0
        bests = block.reshape(len(rows), slices, width).max(axis=1)
        limits = np.maximum(np.partition(bests, width - k, axis=1)[:, width - k], 1.0)
        near, columns = np.divmod(np.flatnonzero(block >= limits[:, None]), block.shape[1])
        counts = np.bincount(near, minlength=len(rows))
        tied = counts > CANDIDATES_PER_NEIGHBOUR * k
        for offset in np.flatnonzero(tied):
            _fill(result, int(rows[offset]), block[offset], _best_of_many(block[offset], k))
        kept = ~tied[near]
        near, columns = near[kept], columns[kept]
        values = block[near, columns]
        _write_sorted(result, rows[near], columns, values.astype(np.int32))


def _best_of_many(row: Float32Array, k: int) -> IntArray:
    """Return the k best columns of a row with many ties: all above the k-th value, then the first that equal it."""
    limit = np.partition(row, len(row) - k)[len(row) - k]
    above = np.flatnonzero(row > limit)
    equal = np.flatnonzero(row == limit)[: k - len(above)] if limit > 0 else above[:0]
    return np.concatenate([above, equal])


def _fill(result: Neighbours, place: int, row: Float32Array, columns: IntArray) -> None:
    order = np.lexsort((columns, -row[columns]))
    result.others[place, : len(order)] = columns[order]
    result.products[place, : len(order)] = row[columns[order]]

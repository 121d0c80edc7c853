"""SciPy's sparse matrices, imported with the first one, since many processes never need one.

With httpx it was a fifth of the processor time that a role of `connect` took to load, and 27 of its 105 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def sparse_rows(values: tuple[Any, ...], shape: tuple[int, int]) -> csr_array:
    """Return a matrix in compressed rows, from `values` as `csr_array` accepts them: numbers with their columns and
    bounds, or places.
    """
    from scipy.sparse import csr_array  # noqa: PLC0415 - see above

    return csr_array(values, shape=shape)

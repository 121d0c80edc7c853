"""SciPy's sparse matrices for those who may never need one: loaded with the first, in a quarter of a second and 20 MB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def sparse_rows(values: tuple[Any, ...], shape: tuple[int, int]) -> csr_array:
    """A matrix in compressed rows, of `values` as `csr_array` takes them: numbers with their columns and bounds, or places."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - see above

    return csr_array(values, shape=shape)

"""Owns that Arrow comes alone: with the first array that it makes it loads pandas, where that is installed.

Invariant: pandas is kept out of a process that has not loaded it, for as long as asked; it would take 40 MB and 0.2 s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing of any module; of pandas, that there is none."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(f"no {fullname} here", name=fullname)
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """Arrow does not find pandas, and does not look for it again."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)

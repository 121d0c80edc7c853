"""Imports Arrow without pandas: with its first array Arrow loads pandas if it is installed.

Invariant: pandas is kept out of a process that has not loaded it; it would take 40 MB and 0.2 s.
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
        """Report pandas as missing; leave all other modules alone."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(f"no {fullname} here", name=fullname)
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """Within the block Arrow does not find pandas, and it does not search again."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)

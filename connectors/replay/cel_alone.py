"""Imports CEL without its command line, which the package would import with itself.

Invariant: typer and prompt_toolkit stay out of a process that has not loaded them; they would take 0.35 s and 11 MB.
"""

from __future__ import annotations

import sys
from types import ModuleType

sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))

import cel  # noqa: E402 - only now
from cel.stdlib import STDLIB_FUNCTIONS, add_stdlib_to_context  # noqa: E402

__all__ = ["STDLIB_FUNCTIONS", "add_stdlib_to_context", "cel"]

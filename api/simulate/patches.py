"""Replaces functions of the product for the time of a simulation: its clocks, its connections and the ids that it makes.

Invariant: at the end everything is as it was before, also after an error.
"""

from __future__ import annotations

from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or a class.

        Raises:
            AttributeError: it has no such attribute, so nothing would be replaced.
        """
        getattr(target, name)
        # An inherited attribute is not the target's own, and is seen again once the replacement is gone.
        self._replaced.append((target, name, vars(target).get(name, _ABSENT)))
        setattr(target, name, value)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._replaced:
            target, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, before)

"""A drawing in the page that is zoomed and moved in the browser (`zoom_map.js`), and the selection on it.

Invariant: messages from the browser are checked here; a forged one gets no more than the page shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nicegui import events
from nicegui.element import Element

# More points than anyone reads; the rest is counted.
SELECTED_MAX = 500
_CHARACTERS_MAX = 512


class Selection(NamedTuple):
    """Points within a drawn line: the ids of the first ones, and their number."""

    ids: tuple[str, ...]
    total: int


class ZoomMap(Element):
    """The drawing; `pick` is called with the number of a cluster as text ("" for a point in none) and the id of a point.

    `library.py` registers its script.
    """

    def __init__(
        self, pick: Callable[[str, str], Awaitable[None]], select: Callable[[Selection], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._props["drawing"] = self._props["marked"] = ""

        async def picked(event: events.GenericEventArguments) -> None:
            found = event.args if isinstance(event.args, dict) else {}
            await pick(_word(found.get("cluster")), _word(found.get("id")))

        async def selected(event: events.GenericEventArguments) -> None:
            await select(selection_of(event.args))

        self.on("pick", picked)
        self.on("lasso", selected)

    def show(self, drawing: str, marked: str) -> None:
        """Change the drawing and the highlighted cluster, if they differ."""
        if self._props["drawing"] != drawing:
            self._props["drawing"] = drawing
            self.update()
        self.stand_out(marked)

    def stand_out(self, marked: str) -> None:
        """Change the highlighted cluster."""
        if self._props["marked"] != marked:
            self._props["marked"] = marked
            self.update()


def selection_of(sent: object) -> Selection:
    """Return the browser's message, within limits."""
    found = sent if isinstance(sent, dict) else {}
    ids, total = found.get("ids"), found.get("total")
    words = [_word(one) for one in ids[:SELECTED_MAX]] if isinstance(ids, list) else []
    kept = tuple(one for one in words if one)
    return Selection(kept, max(len(kept), total) if isinstance(total, int) else len(kept))


def _word(sent: object) -> str:
    return sent if isinstance(sent, str) and len(sent) <= _CHARACTERS_MAX else ""

"""A slider over steps in time: a range input of the browser, which the keyboard moves too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import events, ui


class Slider:
    """Steps 0 to the last; `move` is called with the step of the release. Hidden until there are two steps."""

    def __init__(self, label: str, move: Callable[[int], Awaitable[None]]) -> None:
        self._last = 0
        self._move = move
        # `change`, not `input`: a drag is one read, not one for each step that it passes.
        self._input = ui.element("input").props(f'type=range min=0 max=0 step=1 aria-label="{label}"')
        self._input.on("change", self._changed, js_handler="(event) => emit(event.target.value)")
        self._input.set_visibility(False)

    def show(self, last: int, step: int, words: str) -> None:
        """Set the steps and the current one; `words` are read aloud for the step."""
        self._last = last
        self._input.props["max"] = last
        self._input.props["value"] = step
        self._input.props["aria-valuetext"] = words
        self._input.set_visibility(last > 0)
        self._input.update()

    async def _changed(self, event: events.GenericEventArguments) -> None:
        sent = str(event.args)
        if sent.isascii() and sent.isdigit() and len(sent) < 10:
            await self._move(min(int(sent), self._last))

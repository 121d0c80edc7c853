"""A list of everything that the API has at a path, narrowed to what has the words of a search field in its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard.tiles import loading
from highwater.api.dashboard.view import View, place, set_html


def searched(
    view: View, noun: str, name: str, html: Callable[[Sequence[Mapping[str, Any]]], str], refresh_seconds: float
) -> None:
    """Show the list of a noun in the singular, which is served at its plural; `name` is the member that is searched."""
    plural = f"{noun}s"
    search = ui.input(f"Find a {noun}").props("dense outlined clearable").classes("full-width").style("max-width:24rem")
    content = place(loading(f"the {plural}"))
    found: list[Mapping[str, Any]] = []

    def show() -> None:
        words = (search.value or "").strip().lower()
        set_html(content, html([one for one in found if words in one[name].lower()]))

    search.on_value_change(show)

    async def refresh() -> None:
        found[:] = (await view.get(f"/api/{plural}"))[plural]
        show()

    view.live(refresh_seconds, refresh)

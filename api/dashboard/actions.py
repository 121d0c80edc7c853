"""Actions on a page: a confirmation in words, one request to the API, and the outcome with its position in the log.

Invariant: nothing is sent without confirmation; a refusal of the API is shown in its words. A privileged request is
recorded by the API itself (`api/core/security_log.py`), because the page has no other way to act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nicegui import ui

from highwater.api.core.access import Access
from highwater.api.dashboard.consequences import Consequence
from highwater.api.dashboard.record import record_address
from highwater.api.dashboard.view import View, heading, text
from highwater.schemas.errors import HighwaterError, InvalidEventError
from highwater.schemas.positions import parse_position


async def confirm(consequence: Consequence) -> bool:
    """Ask for confirmation; a required text must be typed before the button is enabled."""
    with ui.dialog() as dialog, ui.card():
        dialog.props["aria-label"] = consequence.question
        heading(consequence.question)
        lines = "".join(f"<li>{text(line)}</li>" for line in consequence.happens)
        ui.html(f'<ul class="hw-happens">{lines}</ul>', sanitize=False).classes("full-width")
        typed: ui.input | None = None
        if consequence.typed is not None:
            typed = ui.input(f"Type {consequence.typed} to confirm").props("outlined dense").classes("full-width")
        with ui.row():
            ui.button("Back", on_click=lambda: dialog.submit(None)).props("flat no-caps autofocus")
            button = ui.button(consequence.button, on_click=lambda: dialog.submit("yes"))
            button.props("no-caps unelevated" + (" color=negative" if typed is not None else ""))
        if typed is not None:
            button.disable()
            typed.on_value_change(lambda event: button.set_enabled(event.value == consequence.typed))
    try:
        # Checked here as well: a browser can send more than its button would.
        return await dialog == "yes" and (typed is None or typed.value == consequence.typed)
    finally:
        dialog.delete()


class Actions:
    """The buttons of a page and, below them, the outcome of the last action."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._buttons: dict[str, ui.button] = {}

    def build(self) -> ui.row:
        """Add the row of buttons and the line below it; buttons are added within the row."""
        row = ui.row().classes("hw-row")
        self._line = ui.html("", sanitize=False).classes("full-width").props("role=status")
        return row

    def add(self, name: str, icon: str, act: Callable[[], Awaitable[None]]) -> None:
        """Add a button, hidden until `show` names it."""
        button = ui.button(name, icon=icon, on_click=act).props("no-caps outline")
        button.set_visibility(False)
        self._buttons[name] = button

    def offer(self, access: Access, name: str, icon: str, act: Callable[[], Awaitable[None]]) -> None:
        """Add a button for callers that may make its request."""
        if self._view.may(access):
            self.add(name, icon, act)

    def show(self, *names: str) -> None:
        """Show exactly these buttons."""
        for name, button in self._buttons.items():
            button.set_visibility(name in names)

    async def run(
        self,
        consequence: Consequence,
        done: str,
        send: Callable[[], Awaitable[Any]],
        link_of: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> bool:
        """Confirm, send one request, and show the position of its event; return whether it was accepted.

        `done` describes the effect; `link_of` returns HTML with the next link, from the API's response.
        """
        if not await confirm(consequence):
            return False
        try:
            answer = (await send()).json()
        except HighwaterError as error:
            self.tell(f"Not done: {error}", is_wrong=True)
            return False
        more = "" if link_of is None else f" {link_of(answer)}"
        self.tell_html(text(done) + more + positions_html(self._view, answer.get("positions", ())))
        return True

    def tell(self, words: str, *, is_wrong: bool = False) -> None:
        """Show a text below the buttons."""
        self.tell_html(text(words), is_wrong=is_wrong)

    def tell_html(self, message: str, *, is_wrong: bool = False) -> None:
        """Show HTML below the buttons."""
        self._line.set_content(f'<div class="hw-banner {"hw-bad" if is_wrong else "hw-good"}">{message}</div>')


def positions_html(view: View, positions: Any) -> str:
    """Return the log positions of an action's events."""
    found = ", ".join(position_html(view, str(one)) for one in positions)
    return f' Recorded at <span class="hw-mono">{found}</span>.' if found else ""


def position_html(view: View, position: str | None) -> str:
    """Return a position as a link to its record; as text for a visitor without access to topics."""
    if not position:
        return ""
    if not view.sees_all:
        return text(position)
    try:
        return f'<a href="{text(record_address(parse_position(position)))}">{text(position)}</a>'
    except InvalidEventError:
        return text(position)

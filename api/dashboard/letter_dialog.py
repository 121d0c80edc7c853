"""One dead letter in full: its reason, its decoded value and its bytes; admins edit it and send the replacement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from nicegui import ui

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import confirm, position_html
from highwater.api.dashboard.view import View, facts, heading, note, text
from highwater.api.dead_letters.handling import Handler, planned_edit
from highwater.api.dead_letters.letter import Letter, Replacement, hex_lines
from highwater.api.dead_letters.reading import LetterBox
from highwater.schemas.errors import HighwaterError, InvalidEventError

_BYTES_MAX = 2_048
_CHANGE_CHARACTERS = 80


class LetterDialog:
    """A letter over the page; `handler` checks again who the visitor is, and `changed` refreshes the page."""

    def __init__(
        self,
        view: View,
        box: LetterBox,
        letter: Letter,
        handler: Callable[[], Awaitable[Handler]],
        changed: Callable[[], None],
    ) -> None:
        self._view = view
        self._box = box
        self._letter = letter
        self._handler = handler
        self._changed = changed

    async def open(self) -> None:
        """Show it.

        Raises:
            UnavailableError: Kafka or the registry does not answer.
        """
        document = await asyncio.to_thread(self._box.shown, self._letter)
        with ui.dialog() as self._dialog, ui.card():
            self._dialog.props["aria-label"] = f"Dead letter {self._letter.position}"
            heading(str(self._letter.position))
            ui.html(facts(_facts(self._view, document)), sanitize=False).classes("full-width")
            told = document.get("value", document.get("as_written"))
            heading("Decoded" if "value" in document else "Not decodable by its topic's schema")
            if "value" not in document:
                note(str(document["undecodable"]))
            if told is not None:
                ui.html(f'<pre class="hw">{text(_pretty(told))}</pre>', sanitize=False).classes("full-width")
            if self._letter.record.value is not None:
                heading("Bytes")
                lines = "\n".join(hex_lines(self._letter.record.value, bytes_max=_BYTES_MAX))
                ui.html(
                    f'<pre class="hw" style="white-space:pre" tabindex="0">{text(lines)}</pre>', sanitize=False
                ).classes("full-width hw-scroll")
            if self._view.is_admin:
                await self._build_editor()
            ui.button("Close", on_click=self._dialog.close).props("flat no-caps autofocus")
        self._dialog.on("hide", self._dialog.delete)
        self._dialog.open()

    async def _build_editor(self) -> None:
        self._before = await asyncio.to_thread(self._box.document_of, self._letter)
        with ui.expansion("Edit and redrive", icon="edit").classes("full-width"):
            if self._letter.origin is None:
                note("The dead letter does not name its origin, so it cannot be sent again. Drop it.")
                return
            note("The event as JSON; it is checked like any event of its topic.")
            self._editor = ui.textarea("Event", value=_pretty(self._before)).props("outlined autogrow")
            self._editor.classes("full-width hw-mono")
            self._problem = ui.html("", sanitize=False).props("role=alert").classes("full-width")
            ui.button("Send the edited event", icon="send", on_click=self._send).props("no-caps outline")

    async def _send(self) -> None:
        try:
            replacement = await self._planned()
            lines = [change_text(one.field, one.before, one.after) for one in replacement.changes]
            asked = consequences.send_edited_letter(str(self._letter.position), self._letter.topic, lines)
            if not await confirm(asked):
                return
            handler = await self._handler()
            principal = self._view.visitor.principal
            recording = self._view.services.security.recording(
                principal, "dashboard dlq edit", str(self._letter.position)
            )
            async with recording:
                position = await handler.edit(self._letter, replacement)
        except HighwaterError as error:
            self._problem.set_content(f'<div class="hw-banner hw-bad">{text(error)}</div>')
            return
        sent_as = position_html(self._view, str(position))
        self._problem.set_content(
            f'<div class="hw-banner hw-good">Sent as <span class="hw-mono">{sent_as}</span>.</div>'
        )
        self._changed()

    async def _planned(self) -> Replacement:
        """Return the replacement that would be sent.

        Raises:
            InvalidEventError: it is not a JSON object, or not an event of the topic.
            UnavailableError: the registry does not answer.
        """
        services = self._view.services
        after = parsed_event(str(self._editor.value))
        codec = services.registry.require()
        return planned_edit(self._letter, after, self._before, codec, services.settings.embedding_dimensions)


def parsed_event(words: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        InvalidEventError: it is not one.
    """
    try:
        found = orjson.loads(words)
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidEventError("not_json", "an event is a JSON object")
    return found


def change_text(name: str, before: Any, after: Any) -> str:
    """Return the edit of one field, in a line."""
    return f"{name}: {_short(before)} → {_short(after)}"


def _short(value: Any) -> str:
    shown = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    words = orjson.dumps(shown, default=str).decode()
    return words if len(words) <= _CHANGE_CHARACTERS else f"{words[: _CHANGE_CHARACTERS - 1]}…"


def _pretty(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _facts(view: View, document: Mapping[str, Any]) -> dict[str, str]:
    told = {name: text(document[name]) for name in ("reason", "detail", "group", "key") if document.get(name)}
    if document.get("origin"):
        told["origin"] = position_html(view, document["origin"])
    told["arrived"] = f"{figures.iso_text(document['arrived_at'])} UTC"
    for one in document["handled"]:
        at = f" at {position_html(view, one['position'])}" if one["position"] else ""
        told[one["action"]] = text(f"{figures.iso_text(one['handled_at'])} by {one['by']}") + at
    return told

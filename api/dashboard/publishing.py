"""The form that publishes one event to a topic, on the topic's page.

Invariant: it sends the event to `POST /api/events/{topic}` as any client does, with the same checks.
"""

from __future__ import annotations

import json
from typing import Any

from nicegui import ui

from highwater.api.core.events import ADMIN_TOPICS, PUBLISH
from highwater.api.dashboard import consequences
from highwater.api.dashboard.actions import Actions
from highwater.api.dashboard.event_form import FormField, document_of, form_of
from highwater.api.dashboard.view import View, note, segment
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.topics import TOPICS

_SEND = "Publish the event"


def may_publish(view: View, topic: str) -> bool:
    """Return whether to offer the form: the topic accepts external events, and the visitor may send them."""
    known = TOPICS.get(topic)
    is_outside = known is not None and known.outsider
    return is_outside and view.may(PUBLISH) and (view.is_admin or topic not in ADMIN_TOPICS)


class Publish:
    """The form in one browser."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        self._fields = form_of(topic)
        self._inputs: dict[str, Any] = {}

    def build(self) -> None:
        """Add the elements, folded."""
        with ui.expansion("Publish an event", icon="send").classes("hw-card full-width"):
            note(
                "The form follows the topic's schema. Fields marked * are required; times are ISO 8601 or milliseconds."
            )
            for field in self._fields:
                self._inputs[field.name] = self._input(field)
            self._actions = Actions(self._view)
            with self._actions.build():
                self._actions.add(_SEND, "send", self._send)
            self._actions.show(_SEND)

    def _input(self, field: FormField) -> Any:
        label = f"{field.name}{'' if field.is_optional else ' *'}"
        if field.widget == "yes or no":
            return ui.checkbox(label).tooltip(field.about)
        hint = f"{field.kind}: {field.about}" if field.about else field.kind
        if field.widget in ("lines", "bytes", "JSON"):
            shown: Any = ui.textarea(label).props("outlined dense autogrow")
        else:
            value = iso_from_ms(self._view.services.clock()) if field.widget == "time" and not field.is_optional else ""
            shown = ui.input(label, value=value).props("outlined dense")
        shown.props["hint"] = hint
        return shown.classes("full-width")

    async def _send(self) -> None:
        try:
            document = document_of(self._fields, {name: one.value for name, one in self._inputs.items()})
        except InvalidEventError as error:
            self._actions.tell(str(error), is_wrong=True)
            return
        words = json.dumps(document, ensure_ascii=False)
        await self._actions.run(
            consequences.publish_event(self._topic, TOPICS[self._topic].consumers, words),
            f"Published to {self._topic}.",
            lambda: self._view.send("POST", f"/api/events/{segment(self._topic)}", body=document),
        )

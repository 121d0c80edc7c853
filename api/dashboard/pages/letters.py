"""Dead letters: how many of which topic and why, each with its decoded value and its bytes, sent again or dropped by admins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from nicegui import events, ui

from highwater.api.core.auth import Role
from highwater.api.dashboard import figures
from highwater.api.dashboard.view import View, chip, facts, heading, note, page, set_html, set_rows, text
from highwater.api.dead_letters.handling import Handler
from highwater.api.dead_letters.letter import Letter, dead_letters_of, hex_lines
from highwater.api.dead_letters.reading import HANDLED, LetterBox, in_thread
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import TOPICS

_REFRESH_SECONDS = 3.0
# The latest of a topic: what a person looks through; `highwater dlq` gives all of them.
_LISTED_MAX = 200
_BYTES_MAX = 2_048

_COLUMNS: list[dict[str, Any]] = [
    {
        "name": "arrived",
        "label": "arrived (UTC)",
        "field": "arrived",
        "align": "left",
        "sortable": True,
        "classes": "hw-keep",
    },
    {"name": "offset", "label": "offset", "field": "offset", "align": "right", "sortable": True},
    {"name": "reason", "label": "reason", "field": "reason", "align": "left", "sortable": True},
    {"name": "detail", "label": "detail", "field": "detail", "align": "left"},
    {"name": "group", "label": "consumer", "field": "group", "align": "left", "sortable": True},
    {"name": "origin", "label": "came from partition / offset", "field": "origin", "align": "left"},
    {"name": "state", "label": "state", "field": "state", "align": "left", "sortable": True},
]
_OPEN = (
    '<q-td :props="props"><a href="#" @click.prevent="$parent.$emit(\'show\', props.row.offset)" '
    ":aria-label=\"'Show the dead letter at ' + props.value\">{{ props.value.toLocaleString('en') }}</a></q-td>"
)


def register() -> None:
    """Make the page known."""
    page("/dead-letters", "Dead letters")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Dead letters hold events of everybody; this key is bound to one user.")
        return
    letters = _Letters(view, view.asked("topic"))
    letters.build()
    view.live(_REFRESH_SECONDS, letters.refresh)


class _Letters:
    """The page in one browser: the topic that is looked at, and the letters that were read of it."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic if topic in TOPICS else ""
        self._box = LetterBox(view.services.settings.kafka_client(), Registry(view.services.settings.registry_access()))
        self._letters: dict[int, Letter] = {}
        self._known: tuple[int, int] | None = None

    def build(self) -> None:
        """Put the elements in their places."""
        self._summary = ui.html("", sanitize=False).classes("full-width")
        if not self._topic:
            return
        heading(f"Dead letters of {self._topic}")
        selection: Any = "multiple" if self._view.is_admin else None
        self._table = ui.table(columns=_COLUMNS, rows=[], row_key="offset", pagination=25, selection=selection)
        self._table.classes("full-width hw-wrap hw-records").props('dense no-data-label="none"')
        self._table.add_slot("body-cell-offset", _OPEN)
        self._table.on("show", self._open)
        if not self._view.is_admin:
            note("To send dead letters again or to drop them needs the role admin.")
            return
        with ui.row().classes("hw-row"):
            ui.button("Send the selected again", icon="replay", on_click=self._ask_redrive).props("no-caps")
            ui.button("Drop up to the selected", icon="delete", on_click=self._ask_drop).props(
                "outline no-caps color=negative"
            )
        note(
            "Sent again means: the original key, bytes and headers, into the partition it came from. Each action is recorded."
        )

    async def refresh(self) -> None:
        """Read what is new; nothing is read while neither letters nor deeds were added."""
        hub = self._view.hub
        counts = hub.dead_letters()
        set_html(self._summary, _summary(counts, self._topic))
        state = (hub.ends().get(TOPICS[self._topic].dead_letter, 0) if self._topic else 0, hub.ends().get(HANDLED, 0))
        if not self._topic or state == self._known or not hub.samples:
            return
        found = await asyncio.to_thread(self._read)
        self._known = state
        self._letters = {letter.position.offset: letter for letter in found}
        set_rows(self._table, [_row(letter) for letter in reversed(found)])

    def _read(self) -> list[Letter]:
        return list(self._box.letters([TOPICS[self._topic]], latest=_LISTED_MAX))

    async def _open(self, event: events.GenericEventArguments) -> None:
        letter = self._letters.get(int(event.args))
        if letter is None:
            return
        document = await asyncio.to_thread(self._box.shown, letter)
        with ui.dialog() as dialog, ui.card():
            heading(str(letter.position))
            ui.html(facts(_facts(document)), sanitize=False).classes("full-width")
            told = document.get("value", document.get("as_written"))
            heading("Decoded" if "value" in document else "Not decodable by its topic's schema")
            if "value" not in document:
                note(str(document["undecodable"]))
            if told is not None:
                pretty = orjson.dumps(told, option=orjson.OPT_INDENT_2).decode()
                ui.html(f'<pre class="hw">{text(pretty)}</pre>', sanitize=False).classes("full-width")
            if letter.record.value is not None:
                heading("Bytes")
                lines = "\n".join(hex_lines(letter.record.value, bytes_max=_BYTES_MAX))
                ui.html(f'<pre class="hw" style="white-space:pre">{text(lines)}</pre>', sanitize=False).classes(
                    "full-width hw-scroll"
                )
            ui.button("Close", on_click=dialog.close).props("flat no-caps autofocus")
        dialog.on("hide", dialog.delete)
        dialog.open()

    def _selected(self) -> list[Letter]:
        offsets = sorted(int(row["offset"]) for row in self._table.selected)
        return [self._letters[offset] for offset in offsets if offset in self._letters]

    async def _ask_redrive(self) -> None:
        chosen = self._selected()
        if not chosen:
            ui.notify("Select dead letters first.")
            return
        again = sum(not letter.is_open for letter in chosen)
        told = f"{again} of them were sent again before and will be once more." if again else ""
        question = f"Send {len(chosen)} dead letters of {self._topic} again?"
        await self._confirm(question, told, "Send again", lambda: self._redrive(chosen))

    async def _redrive(self, chosen: list[Letter]) -> str:
        handler = await self._handler()
        async with self._recorded("dlq redrive", f"{self._topic}, {len(chosen)} letters"):
            outcome = await handler.redrive(in_thread(iter(chosen)), again=True)
        refused = f"; not sent: {'; '.join(outcome.refused)}" if outcome.refused else ""
        return f"sent again: {len(outcome.redriven)}{refused}"

    async def _ask_drop(self) -> None:
        chosen = self._selected()
        if not chosen:
            ui.notify("Select the last one to drop first.")
            return
        last = chosen[-1].position.offset
        question = f"Delete every dead letter of {self._topic} up to and including offset {last:,}?"
        await self._confirm(question, "They cannot be brought back.", "Delete", lambda: self._drop(last))

    async def _drop(self, last: int) -> str:
        handler = await self._handler()
        ranges = await asyncio.to_thread(self._box.ranges, [dead_letters_of(TOPICS[self._topic])])
        ends = {place: min(held.high, last + 1) for place, held in ranges.items()}
        async with self._recorded("dlq drop", f"{self._topic} up to offset {last}"):
            count = await handler.drop(self._view.services.settings.kafka_client(), ends, ranges)
        return f"deleted: {count}"

    def _recorded(self, action: str, resource: str) -> AbstractAsyncContextManager[None]:
        """In the log of privileged actions, as the terminal's commands are."""
        return self._view.services.security.recording(self._view.visitor.principal, f"dashboard {action}", resource)

    async def _handler(self) -> Handler:
        """Whoever handles them, asked anew: a key may have lost its role since the page was opened.

        Raises:
            ForbiddenError: it is no admin.
            UnauthorizedError: it is nobody any more.
        """
        services = self._view.services
        principal = await self._view.require(Role.ADMIN)
        by = principal.user_id or principal.key_id or "dashboard"
        partitions = await services.admin.partition_counts()
        return Handler(
            services.kafka.require(), services.registry.require(), partitions, services.clock, by=by, note="dashboard"
        )

    async def _confirm(self, question: str, more: str, word: str, act: Callable[[], Awaitable[str]]) -> None:
        with ui.dialog() as dialog, ui.card():
            heading(question)
            if more:
                note(more)
            with ui.row():
                ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps autofocus")
                ui.button(word, on_click=lambda: dialog.submit(word)).props("no-caps")
        if await dialog == word:
            try:
                ui.notify(await act(), type="positive")
            except HighwaterError as error:
                ui.notify(str(error), type="negative", timeout=0, close_button="Close")
            self._known = None
            self._table.selected.clear()
        dialog.delete()


def _summary(counts: dict[str, int], chosen: str) -> str:
    if not counts:
        return f'<div class="hw-card">{chip("✓ no dead letters", "hw-good")}</div>'
    links = "".join(
        f'<a class="hw-tile" href="/dead-letters?topic={topic}" style="color:inherit"'
        f"{' aria-current=true' if topic == chosen else ''}>"
        f'<b class="hw-bad">{figures.count(number)}</b><span>{text(topic)}</span></a>'
        for topic, number in sorted(counts.items(), key=lambda one: -one[1])
    )
    return f'<div class="hw-tiles" style="grid-template-columns:repeat(auto-fill,minmax(210px,1fr))">{links}</div>'


def _row(letter: Letter) -> dict[str, Any]:
    document = letter.document()
    return {
        "arrived": figures.iso_text(document["arrived_at"]),
        "offset": letter.position.offset,
        "reason": (document["reason"] or "unknown").replace("_", " "),
        "detail": document["detail"] or "",
        "group": document["group"] or "",
        "origin": _origin(document["origin"] or ""),
        "state": "waits" if letter.is_open else f"{letter.handlings[-1].action.value} by {letter.handlings[-1].by}",
    }


def _origin(position: str) -> str:
    """Where in its topic it stood; the page names the topic."""
    _, _, place = position.partition("/")
    return place.replace("/", " / ")


def _facts(document: dict[str, Any]) -> dict[str, str]:
    told = {name: text(document[name]) for name in ("reason", "detail", "group", "origin", "key") if document.get(name)}
    told["arrived"] = f"{figures.iso_text(document['arrived_at'])} UTC"
    for one in document["handled"]:
        at = f" at {one['position']}" if one["position"] else ""
        told[one["action"]] = text(f"{figures.iso_text(one['handled_at'])} by {one['by']}{at}")
    return told

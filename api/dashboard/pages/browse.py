"""The topic browser: the latest records of a topic decoded, those that come, and filters over both."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from nicegui import events, ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.conditions import Condition, UnreadableConditionError
from highwater.api.dashboard.tails import Shown, Tail
from highwater.api.dashboard.view import View, facts, heading, note, page, set_html, set_rows, text
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import TOPICS, all_topics

_REFRESH_SECONDS = 1.0
# Rows that a browser is sent: more than fits a screen, few enough that a second is ample to show them.
_ROWS_MAX = 60
# A row shows the beginning of a value; the whole is one click away.
_VALUE_CHARACTERS = 400
_SPARK_POINTS = 60

_COLUMNS: list[dict[str, Any]] = [
    {"name": "timestamp", "label": "arrived (UTC)", "field": "timestamp", "align": "left", "classes": "hw-keep"},
    {"name": "place", "label": "partition / offset", "field": "place", "align": "left", "classes": "hw-keep"},
    {"name": "key", "label": "key", "field": "key", "align": "left", "classes": "hw-key"},
    {"name": "value", "label": "value", "field": "value", "align": "left", "classes": "hw-long hw-value"},
]
_OPEN = (
    '<q-td :props="props"><a href="#" @click.prevent="$parent.$emit(\'show\', props.row.number)" '
    ":aria-label=\"'Show ' + props.value\">{{ props.value }}</a></q-td>"
)
_CLAMPED = '<q-td :props="props"><div class="hw-clamp">{{ props.value }}</div></q-td>'


def register() -> None:
    """Make the page known."""
    page("/browse", "Browse")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics hold the events of everybody; this key is bound to one user.")
        return
    names = [topic.name for topic in all_topics()]
    asked = view.asked("topic", "feeds.insight-ingested")
    if asked not in names:
        note(f"There is no topic {asked!r}.")
        asked = names[0]
    browser = _Browser(view, asked)
    browser.build(names)
    view.live(_REFRESH_SECONDS, browser.refresh)


class _Browser:
    """The page in one browser: its topic, its filters, and whether it is held still."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic
        self._is_held = False
        self._shown: dict[int, Shown] = {}
        self._condition: tuple[str, Condition] | None = None

    def build(self, names: list[str]) -> None:
        """Put the elements in their places."""
        about = TOPICS.get(self._topic)
        with ui.row().classes("hw-row"):
            choice = ui.select(names, value=self._topic, label="Topic", with_input=True, on_change=_go)
            choice.props("dense outlined").style("min-width:min(100%,22rem)")
            self._key = ui.input("Key contains").props("dense outlined clearable").style("width:10rem")
            self._text = ui.input("Value contains").props("dense outlined clearable").style("width:12rem")
            self._where = ui.input("Where (CEL)", placeholder="value.seq > 3").props("dense outlined clearable")
            self._where.style("flex:1;min-width:14rem")
            self._hold = ui.button("Hold", icon="pause", on_click=self._toggle).props("outline no-caps")
        if about is not None:
            note(f"{about.about}; key {about.key or 'none'}, written by {', '.join(about.producers)}")
        self._line = ui.html("", sanitize=False).classes("full-width")
        self._table = ui.table(columns=_COLUMNS, rows=[], row_key="number", pagination=0).classes(
            "full-width hw-mono hw-wrap hw-records"
        )
        self._table.props(
            'dense :rows-per-page-options=[0] hide-pagination no-data-label="no record passes the filters"'
        )
        self._table.add_slot("body-cell-place", _OPEN)
        self._table.add_slot("body-cell-value", _CLAMPED)
        self._table.on("show", self._open)

    def _toggle(self) -> None:
        self._is_held = not self._is_held
        self._hold.set_text("Go on" if self._is_held else "Hold")
        self._hold.props(f"icon={'play_arrow' if self._is_held else 'pause'}")

    async def refresh(self) -> None:
        """Show what passes the filters, the newest first."""
        tail = self._view.hub.tails.of(self._topic)
        records = tail.records()
        if self._is_held:
            return
        kept, wrong = await self._kept(records[::-1])
        self._shown = {one.number: one for one in kept[:_ROWS_MAX]}
        set_html(self._line, self._status(tail, len(records), len(kept), wrong))
        set_rows(self._table, [_row(one) for one in kept[:_ROWS_MAX]])
        if tail.problem is not None:
            raise HighwaterError(tail.problem)

    def _status(self, tail: Tail, looked_at: int, kept: int, wrong: str | None) -> str:
        if wrong is not None:
            return f'<pre class="hw hw-bad" role="alert">{text(wrong)}</pre>'
        rates = self._view.hub.rates
        now = rates.per_second().get(self._topic)
        line = figures.spark(rates.history(self._topic, _SPARK_POINTS), "events a second over two minutes")
        passed = (
            f"{kept:,} of the last {looked_at:,} records pass"
            if kept != looked_at
            else f"the last {looked_at:,} records"
        )
        words = f"<b>{figures.rate(now)}</b> {passed}; {tail.seen:,} read since this tail began"
        return f'<div class="hw-row hw-small">{line}<span>{words}</span></div>'

    async def _kept(self, records: list[Shown]) -> tuple[list[Shown], str | None]:
        """The records that pass the filters, and what is wrong with the condition."""
        key, words = self._key.value or "", (self._text.value or "").casefold()
        found = [one for one in records if key in one.key and (not words or words in one.text.casefold())]
        expression = (self._where.value or "").strip()
        if not expression:
            return found, None
        try:
            return await asyncio.to_thread(self._met, expression, found), None
        except UnreadableConditionError as error:
            return [], str(error)

    def _met(self, expression: str, records: list[Shown]) -> list[Shown]:
        if self._condition is None or self._condition[0] != expression:
            topic = next(one for one in all_topics() if one.name == self._topic)
            self._condition = expression, Condition(expression, topic, self._view.services.settings.registry_access())
        return self._condition[1].kept(records)

    async def _open(self, event: events.GenericEventArguments) -> None:
        one = self._shown.get(int(event.args))
        if one is None:
            return
        document = await asyncio.to_thread(self._view.hub.tails.of(self._topic).document, one)
        value = document.get("value", document.get("undecodable"))
        with ui.dialog() as dialog, ui.card():
            heading(document["position"])
            told = {"arrived": text(document["timestamp"]), "key": text(document["key"])}
            told |= {f"header {name}": text(value) for name, value in document["headers"].items()}
            ui.html(facts(told), sanitize=False).classes("full-width")
            pretty = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
            ui.html(f'<pre class="hw">{text(pretty)}</pre>', sanitize=False).classes("full-width hw-scroll")
            ui.button("Close", on_click=dialog.close).props("flat no-caps autofocus")
        dialog.on("hide", dialog.delete)
        dialog.open()


def _go(event: events.ValueChangeEventArguments[Any]) -> None:
    if event.value:
        ui.navigate.to(f"/browse?topic={event.value}")


def _row(one: Shown) -> dict[str, Any]:
    value = one.text if len(one.text) <= _VALUE_CHARACTERS else one.text[:_VALUE_CHARACTERS] + " …"
    return {
        "number": one.number,
        "timestamp": one.timestamp[11:23],
        "place": f"{one.record.partition} / {one.record.offset:,}",
        "key": one.key,
        "value": value,
    }

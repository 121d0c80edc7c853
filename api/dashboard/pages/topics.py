"""Topics by subsystem with their rate and lag; rarely needed ones folded; and the consumers with their lag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.broker.naming import OTHER, grouped, subsystem_of
from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import group_address, topic_address
from highwater.api.dashboard.tables import numbers, scrolled, table_html
from highwater.api.dashboard.view import View, chip, heading, note, page, set_html, set_rows, text
from highwater.schemas.topics import DAY_MS, DEAD_LETTER_SUFFIX, TOPICS, Topic

_REFRESH_SECONDS = 2.0
# The list of the broker changes seldom, and costs a request for all its topics.
_LIST_EACH = 5
_SPARK_POINTS = 60

_COLUMNS: list[dict[str, Any]] = [
    {"name": "topic", "label": "topic", "field": "topic", "align": "left", "sortable": True},
    {"name": "rate", "label": "rate", "field": "rate", "align": "right", "sortable": True},
    {"name": "spark", "label": "2 minutes", "field": "spark", "align": "left"},
    {"name": "events", "label": "events", "field": "events", "align": "right", "sortable": True},
    {"name": "behind", "label": "lag, events", "field": "behind", "align": "right", "sortable": True},
    {"name": "seconds", "label": "lag, time", "field": "seconds", "align": "right", "sortable": True},
    {"name": "slowest", "label": "consumer", "field": "slowest", "align": "left"},
    {"name": "letters", "label": "dead letters", "field": "letters", "align": "right", "sortable": True},
    {"name": "kept", "label": "kept", "field": "kept", "align": "left"},
]
_GROUP_COLUMNS: list[dict[str, Any]] = [
    {"name": "group", "label": "consumer", "field": "group", "align": "left", "sortable": True},
    {"name": "events", "label": "events behind", "field": "events", "align": "right", "sortable": True},
    {"name": "seconds", "label": "time behind", "field": "seconds", "align": "right", "sortable": True},
    {"name": "reads", "label": "reads", "field": "reads", "align": "left"},
    {"name": "problem", "label": "problem", "field": "problem", "align": "left"},
]
_NUMBER = '<q-td :props="props">{{ props.row.%s }}</q-td>'
_LINKED = (
    '<q-td :props="props"><a :href="props.row.address">{{ props.value }}</a>'
    '<div class="hw-muted hw-small" style="white-space:normal;min-width:14rem;max-width:30rem">{{ props.row.about }}</div></q-td>'
)
_GROUP_LINKED = '<q-td :props="props"><a :href="props.row.address">{{ props.value }}</a></q-td>'
_SPARK = (
    '<q-td :props="props"><svg class="hw-spark" viewBox="0 0 90 22" aria-hidden="true">'
    '<polyline :points="props.value"/></svg></q-td>'
)
_LETTERS = (
    '<q-td :props="props"><a v-if="props.value" class="hw-bad" '
    ":href=\"'/dead-letters?topic=' + encodeURIComponent(props.row.topic)\">{{ props.value.toLocaleString('en') }}</a>"
    "<span v-else>0</span></q-td>"
)
# What is folded, in this order, and its heading.
_FOLDED = {"dead letters": "Dead letters", "changelog": "Changelogs", "internal": "Internal topics"}


def register() -> None:
    """Make the page known."""
    page("/topics", "Topics")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics contain events of all users; this key is bound to one user.")
        return
    shown = _Topics(view)
    shown.build()
    heading("Consumers")
    note("Time behind is the age of the oldest event that a consumer has not read, by the broker's clock.")
    groups = _table(_GROUP_COLUMNS, "group", "Consumers")
    groups.add_slot("body-cell-group", _GROUP_LINKED)
    for name in ("events", "seconds"):
        groups.add_slot(f"body-cell-{name}", _NUMBER % f"{name}_text")

    async def refresh() -> None:
        await shown.refresh()
        set_rows(groups, _groups(view))
        view.tell(view.hub.problem)

    view.live(_REFRESH_SECONDS, refresh)


def _table(columns: list[dict[str, Any]], key: str, label: str) -> ui.table:
    table = ui.table(columns=columns, rows=[], row_key=key, pagination=0).classes("full-width hw-wrap")
    return scrolled(table, label).props("dense :rows-per-page-options=[0] hide-pagination hide-no-data")


class _Topics:
    """The topics, as far as the filter has them."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._listed: Sequence[Mapping[str, Any]] = ()
        self._turns = 0
        self._sections: dict[str, tuple[ui.column, ui.table]] = {}

    def build(self) -> None:
        """Put the elements in their places."""
        self._search = ui.input("Find a topic", on_change=self._show).props("dense outlined clearable")
        self._search.classes("full-width").style("max-width:24rem")
        for subsystem in sorted({subsystem_of(name) for name in TOPICS}):
            with ui.column().classes("full-width hw-topics") as section:
                heading(subsystem.capitalize())
                table = _table(_COLUMNS, "topic", f"Topics of {subsystem}")
            for name, slot in (("topic", _LINKED), ("spark", _SPARK), ("letters", _LETTERS)):
                table.add_slot(f"body-cell-{name}", slot)
            for name in ("rate", "events", "behind", "seconds"):
                table.add_slot(f"body-cell-{name}", _NUMBER % f"{name}_text")
            self._sections[subsystem] = (section, table)
        self._others = ui.html("", sanitize=False).classes("full-width")  # rows come with the first refresh, not twice

    async def refresh(self) -> None:
        """Ask the broker for its topics now and then, and show what was sampled."""
        if self._turns % _LIST_EACH == 0:
            self._listed = (await self._view.get("/api/topics"))["topics"]
        self._turns += 1
        self._show()

    def _show(self) -> None:
        words = (self._search.value or "").strip().lower()
        rows = [row for row in _rows(self._view) if words in row["topic"] or words in row["about"].lower()]
        for subsystem, (section, table) in self._sections.items():
            own = [row for row in rows if row["subsystem"] == subsystem]
            section.set_visibility(bool(own))
            set_rows(table, own)
        found = [one for one in self._listed if words in one["topic"].lower()]
        set_html(self._others, _others(found, is_open=bool(words)))


def _others(found: Sequence[Mapping[str, Any]], *, is_open: bool) -> str:
    """Topics of others, and those that are folded, as HTML."""
    foreign = [one for one in found if one["kind"] == "events" and one["subsystem"] == OTHER]
    shown = f'<h2 class="hw">Not in the catalogue</h2>{_plain(foreign)}' if foreign else ""
    for kind, title in _FOLDED.items():
        of_kind = [one for one in found if one["kind"] == kind]
        if of_kind:
            inner = _plain(one for topics in grouped(of_kind).values() for one in topics)
            opened = " open" if is_open else ""
            shown += f"<details{opened}><summary>{title} ({len(of_kind):,})</summary>{inner}</details>"
    return shown


def _plain(topics: Iterable[Mapping[str, Any]]) -> str:
    lines = "".join(
        f'<tr><td><a href="{text(topic_address(one["topic"]))}">{text(one["topic"])}</a></td>'
        f"<td>{text(one['subsystem'])}</td>{numbers(str(one['partitions']), str(one['replicas']))}<td>{_health(one)}</td></tr>"
        for one in topics
    )
    return table_html(("topic", "subsystem", "partitions#", "copies#", "problem"), lines)


def _health(one: Mapping[str, Any]) -> str:
    if one["leaderless"]:
        return chip(f"{one['leaderless']} without a leader", "hw-bad")
    return chip(f"{one['out_of_sync']} copies behind", "hw-warn") if one["out_of_sync"] else ""


def _rows(view: View) -> list[dict[str, Any]]:
    hub = view.hub
    rates, held, lags, letters = hub.rates.per_second(), hub.held(), hub.topic_lags(), hub.dead_letters()
    found = []
    for topic in TOPICS.values():
        name = topic.name
        events, seconds, slowest = lags.get(name, (0, 0.0, ""))
        per_second = rates.get(name)
        found.append(
            {
                "topic": name,
                "subsystem": subsystem_of(name),
                "address": topic_address(name),
                "rate": per_second or 0.0,
                "rate_text": figures.rate(per_second),
                "spark": figures.spark_points(hub.rates.history(name, _SPARK_POINTS)) if per_second else "",
                "events": held.get(name, 0),
                "events_text": figures.count(held.get(name)),
                "behind": events,
                "behind_text": figures.count(events) if topic.consumers else figures.DASH,
                "seconds": seconds or 0.0,
                "seconds_text": figures.seconds(seconds) if topic.consumers else figures.DASH,
                "slowest": slowest if events else "",
                "letters": letters.get(name, 0),
                "kept": _kept(topic),
                "about": topic.about,
            }
        )
    return found


def _kept(topic: Topic) -> str:
    if topic.cleanup == "compact":
        return "latest of each key"
    return "forever" if topic.retention_ms < 0 else f"{topic.retention_ms / DAY_MS:g} days"


def _groups(view: View) -> list[dict[str, Any]]:
    return [
        {
            "group": lag.group,
            "address": group_address(lag.group),
            "events": lag.events,
            "events_text": figures.count(lag.events),
            "seconds": lag.seconds or 0.0,
            "seconds_text": figures.seconds(lag.seconds if lag.events else 0.0),
            "reads": ", ".join(
                sorted({one.topic for one in lag.standings if not one.topic.endswith(DEAD_LETTER_SUFFIX)})
            ),
            "problem": lag.problem or "",
        }
        for lag in view.hub.lags
    ]

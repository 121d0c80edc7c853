"""Topics with their rate and who is behind on them, and the consumers with their lag."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.view import View, heading, note, page, set_rows
from highwater.schemas.topics import DAY_MS, DEAD_LETTER_SUFFIX, TOPICS, Topic

_REFRESH_SECONDS = 2.0
_SPARK_POINTS = 60

_COLUMNS: list[dict[str, Any]] = [
    {"name": "topic", "label": "topic", "field": "topic", "align": "left", "sortable": True},
    {"name": "rate", "label": "rate", "field": "rate", "align": "right", "sortable": True},
    {"name": "spark", "label": "2 minutes", "field": "spark", "align": "left"},
    {"name": "events", "label": "events", "field": "events", "align": "right", "sortable": True},
    {"name": "behind", "label": "lag, events", "field": "behind", "align": "right", "sortable": True},
    {"name": "seconds", "label": "lag, time", "field": "seconds", "align": "right", "sortable": True},
    {"name": "slowest", "label": "who", "field": "slowest", "align": "left"},
    {"name": "letters", "label": "dead letters", "field": "letters", "align": "right", "sortable": True},
    {"name": "kept", "label": "kept", "field": "kept", "align": "left", "classes": "hw-keep"},
]
_GROUP_COLUMNS: list[dict[str, Any]] = [
    {"name": "group", "label": "consumer", "field": "group", "align": "left", "sortable": True},
    {"name": "events", "label": "events behind", "field": "events", "align": "right", "sortable": True},
    {"name": "seconds", "label": "time behind", "field": "seconds", "align": "right", "sortable": True},
    {"name": "reads", "label": "reads", "field": "reads", "align": "left"},
    {"name": "problem", "label": "", "field": "problem", "align": "left"},
]
_NUMBER = '<q-td :props="props">{{ props.row.%s }}</q-td>'
_LINKED = (
    '<q-td :props="props"><a :href="\'/browse?topic=\' + encodeURIComponent(props.value)">{{ props.value }}</a>'
    '<div class="hw-muted hw-small" style="white-space:normal;min-width:14rem;max-width:30rem">{{ props.row.about }}</div></q-td>'
)
_SPARK = (
    '<q-td :props="props"><svg class="hw-spark" viewBox="0 0 90 22" aria-hidden="true">'
    '<polyline :points="props.value"/></svg></q-td>'
)
_LETTERS = (
    '<q-td :props="props"><a v-if="props.value" class="hw-bad" '
    ":href=\"'/dead-letters?topic=' + encodeURIComponent(props.row.topic)\">{{ props.value.toLocaleString('en') }}</a>"
    "<span v-else>0</span></q-td>"
)


def register() -> None:
    """Make the page known."""
    page("/topics", "Topics")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics hold the events of everybody; this key is bound to one user.")
        return
    search = ui.input("Find a topic").props("dense outlined clearable").classes("full-width").style("max-width:24rem")
    table = ui.table(columns=_COLUMNS, rows=_rows(view), row_key="topic", pagination=0).classes("full-width hw-wrap")
    table.props("dense :rows-per-page-options=[0] hide-pagination")
    search.on_value_change(lambda event: table.set_filter(event.value or ""))
    for name, slot in (("topic", _LINKED), ("spark", _SPARK), ("letters", _LETTERS)):
        table.add_slot(f"body-cell-{name}", slot)
    for name in ("rate", "events", "behind", "seconds"):
        table.add_slot(f"body-cell-{name}", _NUMBER % f"{name}_text")
    heading("Consumers")
    note("Time behind is the age of the oldest event that a consumer has not read, by the broker's clock.")
    groups = ui.table(columns=_GROUP_COLUMNS, rows=[], row_key="group", pagination=0).classes("full-width hw-wrap")
    groups.props("dense :rows-per-page-options=[0] hide-pagination")
    for name in ("events", "seconds"):
        groups.add_slot(f"body-cell-{name}", _NUMBER % f"{name}_text")

    async def refresh() -> None:
        set_rows(table, _rows(view))
        set_rows(groups, _groups(view))
        view.tell(view.hub.problem)

    view.live(_REFRESH_SECONDS, refresh)


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
    return "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms / DAY_MS:g} days"


def _groups(view: View) -> list[dict[str, Any]]:
    return [
        {
            "group": lag.group,
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

"""One topic: partitions with their copies and offsets, its writers and readers, its configuration and its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import group_address, schema_address
from highwater.api.dashboard.browsing import Browsing, unread, whole
from highwater.api.dashboard.publishing import Publish, may_publish
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked, loading
from highwater.api.dashboard.trends import OwnHistory
from highwater.api.dashboard.view import View, chip, facts, note, page, place, segment, set_html, text
from highwater.streams.wording import counted

_REFRESH_SECONDS = 5.0


def register() -> None:
    """Register the page."""
    page("/topics/{name}", "Topic")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics contain events of all users; this key is bound to one user.")
        return
    shown = _Topic(view, unquote(view.named("name")))
    shown.build()
    view.live(_REFRESH_SECONDS, shown.refresh, ahead=view.hub.is_current)


class _Topic:
    """The page in one browser."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._name = name

    def build(self) -> None:
        """Add the elements."""
        self._head = place(loading("the topic"))
        if may_publish(self._view, self._name):
            Publish(self._view, self._name).build()
        self._history = OwnHistory(self._view, f"/api/topics/{segment(self._name)}/history")
        self._history.build()
        self._rest = place()

    async def refresh(self) -> None:
        """Read it again."""
        topic = await self._view.find(f"/api/topics/{segment(self._name)}")
        if topic is None:
            set_html(self._head, _missing(self._name))
            set_html(self._rest, "")
            return
        rate = self._view.hub.rates.per_second().get(self._name)
        set_html(self._head, _head(topic, rate))
        set_html(self._rest, _partitions(topic) + _groups(topic) + _config(topic))
        await self._history.refresh(is_catalogued=topic["is_catalogued"])


def _missing(name: str) -> str:
    return (
        f'<div class="hw-card">There is no topic <b>{text(name)}</b> on the broker.'
        ' <a href="/topics">See all topics</a></div>'
    )


def _head(topic: Mapping[str, Any], rate: float | None) -> str:
    """Return its description and its links, as HTML."""
    name = topic["topic"]
    shown = {"holds": text(topic["kind"]), "subsystem": text(topic["subsystem"])}
    flow = "" if rate is None else f" · {figures.rate(rate)}"
    shown["events"] = linked(f"{figures.count(topic['events'])}{flow}", whole(name))
    shown["size"] = text("unknown" if topic["size_bytes"] is None else figures.size(topic["size_bytes"]))
    if topic["is_catalogued"]:
        shown["key"] = text(topic["key"])
        shown["written by"] = text(", ".join(topic["producers"]) or "nothing")
        shown["read by"] = ", ".join(_group_link(one) for one in topic["consumers"]) or "nothing"
    schema = topic["schema"]
    if schema is None:
        shown["schema"] = "not in the registry"
    else:
        address = schema_address(schema["subject"])
        shown["schema"] = f'<a href="{text(address)}">{text(schema["subject"])}</a>'
        shown["versions"] = linked(figures.count(len(schema["versions"])), f"{address}#versions")
        shown["compatibility"] = text(schema["compatibility"] or "unknown")
    links = f'<a href="{text(Browsing(topic=name).address())}">Browse its records</a>'
    about = topic["about"] or "This topic is not in the catalogue."
    return (
        f'<div class="hw-card"><h2 class="hw">{text(name)}</h2><p>{text(about)}</p>{facts(shown)}<p>{links}</p></div>'
    )


def _group_link(group: str) -> str:
    if group == "operator":
        return "operators"
    return f'<a href="{text(group_address(group))}">{text(group)}</a>'


def _partitions(topic: Mapping[str, Any]) -> str:
    lines = "".join(
        "<tr>"
        + numbers(f'<a href="{text(whole(topic["topic"], one["partition"]))}">{one["partition"]}</a>')
        + f"<td>{_leader(one)}</td><td>{_copies(one)}</td>"
        + numbers(
            *(figures.count(one[name]) for name in ("first", "next")),
            linked(_events(one), unread(topic["topic"], one["partition"], one["first"])),
            _size(one["size_bytes"]),
        )
        + "</tr>"
        for one in topic["partitions"]
    )
    columns = ("partition#", "leader", "copies (in sync)", "first offset#", "next offset#", "events#", "size#")
    return f'<h2 class="hw">Partitions</h2>{table_html(columns, lines, "Partitions")}'


def _leader(one: Mapping[str, Any]) -> str:
    return chip("none", "hw-bad") if one["leader"] is None else str(one["leader"])


def _copies(one: Mapping[str, Any]) -> str:
    """Return the brokers with a copy; those that lag behind are marked."""
    behind = [broker for broker in one["replicas"] if broker not in one["in_sync"]]
    mark = chip(f"behind: {_listed(behind)}", "hw-warn") if behind else ""
    return f"{_listed(one['replicas'])} {mark}"


def _listed(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers))


def _events(one: Mapping[str, Any]) -> str:
    return figures.DASH if one["first"] is None else figures.count(one["next"] - one["first"])


def _size(size_bytes: int | None) -> str:
    return figures.DASH if size_bytes is None else figures.size(size_bytes)


def _groups(topic: Mapping[str, Any]) -> str:
    if not topic["groups"]:
        return '<h2 class="hw">Consumer groups</h2><p class="hw-muted">No group reads this topic.</p>'
    lines = "".join(
        f'<tr><td><a href="{text(group_address(one["group"]))}">{text(one["group"])}</a> '
        f"{'' if one['is_catalogued'] else chip('not in the catalogue')}</td>"
        f"{numbers(linked(figures.count(one['lag']), group_address(one['group'])))}</tr>"
        for one in topic["groups"]
    )
    return f'<h2 class="hw">Consumer groups</h2>{table_html(("group", "events behind#"), lines, "Consumer groups")}'


def _config(topic: Mapping[str, Any]) -> str:
    """Return settings of the topic itself, and the others folded."""
    own = [one for one in topic["config"] if not one["is_default"]]
    rest = [one for one in topic["config"] if one["is_default"]]
    columns = ("setting", "value", "problem")
    return (
        f'<h2 class="hw">Configuration</h2>{table_html(columns, _settings(own), "Configuration")}'
        f"<details><summary>{counted(len(rest), 'setting')} with default values</summary>"
        f"{table_html(columns, _settings(rest), 'Default values')}</details>"
    )


def _settings(config: list[Mapping[str, Any]]) -> str:
    lines = []
    for one in config:
        value = "hidden" if one["value"] is None else one["value"]
        wrong = one["expected"] is not None and one["expected"] != value
        mark = chip(f"the catalogue declares {one['expected']}", "hw-bad") if wrong else ""
        weight = "" if one["is_default"] else " style='font-weight:600'"
        lines.append(
            f'<tr><td class="hw-mono"{weight}>{text(one["name"])}</td><td>{text(value)}</td><td>{mark}</td></tr>'
        )
    return "".join(lines)

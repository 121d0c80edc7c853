"""Topics by subsystem with their rate and lag; rarely needed ones folded; and the consumers with their lag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.broker.naming import OTHER, grouped, subsystem_of
from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import group_address, topic_address
from highwater.api.dashboard.browsing import whole
from highwater.api.dashboard.hub import Hub
from highwater.api.dashboard.tables import Row, Sort, Sorting, numbers, table_html
from highwater.api.dashboard.tiles import linked
from highwater.api.dashboard.view import View, chip, heading, link, note, page, place, set_html, text
from highwater.connectors.kafka.groups import GroupLag
from highwater.schemas.topics import DAY_MS, DEAD_LETTER_SUFFIX, TOPICS, Topic
from highwater.streams.wording import counted

_PATH = "/topics"
_REFRESH_SECONDS = 2.0
# Of a line of ninety pixels, which is sent for each topic that moves.
_SPARK_POINTS = 30
_SUBSYSTEMS = tuple(sorted({subsystem_of(topic) for topic in TOPICS}))
_COLUMNS = ("topic", "rate#", "2 minutes", "events#", "lag, events#", "lag, time#", "consumer", "dead letters#", "kept")
_SORTED_NUMBERS = ("rate", "events", "lag, events", "lag, time", "dead letters")
_GROUP_COLUMNS = ("consumer", "events behind#", "time behind#", "reads", "problem")
_GROUP_NUMBERS = ("events behind", "time behind")
# What is folded, in this order, and its heading.
_FOLDED = {"dead letters": "Dead letters", "changelog": "Changelogs", "internal": "Internal topics"}


def register() -> None:
    """Make the page known."""
    page(_PATH, "Topics")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics contain events of all users; this key is bound to one user.")
        return
    topics, consumers = _Topics(view), _Consumers(view)
    topics.build()
    heading("Consumers")
    note("Time behind is the age of the oldest event that a consumer has not read, by the broker's clock.")
    consumers.build()

    async def refresh() -> None:
        consumers.show()
        await topics.refresh()
        view.tell(view.hub.problem)

    view.live(_REFRESH_SECONDS, refresh, ahead=view.hub.is_current)


class _Topics:
    """The topics, as far as the filter has them. What was sampled before is there when the page comes."""

    def __init__(self, view: View) -> None:
        self._view = view
        listed = view.hub.last_listed_topics()
        self._listed: Sequence[Mapping[str, Any]] = listed or ()
        # The first refresh, for which the page waits, need not read the list again.
        self._is_listed = listed is not None
        # The page already contains the samples: the first refresh need not send them again.
        self._came_with_page = view.hub.samples > 0
        self._sorting = Sorting(view.asked("sort"), ("topic", *_SORTED_NUMBERS), _SORTED_NUMBERS, self._changed)

    def build(self) -> None:
        """Put the elements in their places."""
        self._search = ui.input("Find a topic", value=self._view.asked("find"), on_change=self._changed)
        self._search.props("dense outlined clearable").classes("full-width").style("max-width:24rem")
        with ui.element("div").classes("full-width hw-topics") as own:
            self._own = {name: place(shown) for name, shown in self._own_html().items()}
        self._sorting.listen(own)
        self._others = place(self._others_html() if self._is_listed else "")

    async def refresh(self) -> None:
        """Show what was sampled, and the topics that the broker has."""
        if not self._came_with_page:
            self._show_own()
        self._came_with_page = False
        is_listed, self._is_listed = self._is_listed, False
        if not is_listed:
            self._listed = await self._view.hub.listed_topics()
            self._show_others()

    def _changed(self) -> None:
        """Another filter or order: the address holds it, so that a link gives the same again."""
        sort = self._sorting.sort
        named = {"find": self._words, "sort": "" if sort is None else sort.parameter}
        ui.navigate.history.replace(link(_PATH, **{name: value for name, value in named.items() if value}))
        self._show_own()
        self._show_others()

    @property
    def _words(self) -> str:
        return str(self._search.value or "").strip()

    def _show_own(self) -> None:
        for name, shown in self._own_html().items():
            set_html(self._own[name], shown)

    def _own_html(self) -> dict[str, str]:
        return topics_html(topic_rows(self._view.hub), self._words, self._sorting)

    def _show_others(self) -> None:
        set_html(self._others, self._others_html())

    def _others_html(self) -> str:
        words = self._words.lower()
        return others_html([one for one in self._listed if words in one["topic"].lower()], is_open=bool(words))


class _Consumers:
    """The consumers of the catalogue."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._sorting = Sorting("", ("consumer", *_GROUP_NUMBERS), _GROUP_NUMBERS, self.show)

    def build(self) -> None:
        """Put the table in its place."""
        self._table = place(self._html())
        self._sorting.listen(self._table)

    def show(self) -> None:
        """Show what was sampled."""
        set_html(self._table, self._html())

    def _html(self) -> str:
        return consumers_html(self._view.hub, self._sorting)


def topics_html(rows: Iterable[Row], words: str, sorting: Sorting) -> dict[str, str]:
    """The topics of the catalogue that have these words, a table for each subsystem; empty where it has none of them."""
    found: dict[str, list[Row]] = {name: [] for name in _SUBSYSTEMS}
    for row in sorting.rows(rows):
        if words.lower() in row["topic"] or words.lower() in row["about"].lower():
            found[row["subsystem"]].append(row)
    return {name: _section(name, of_it, sorting.sort) if of_it else "" for name, of_it in found.items()}


def _section(subsystem: str, rows: Sequence[Row], sort: Sort | None) -> str:
    lines = "".join(row["html"] for row in rows)
    sortable = ("topic", *_SORTED_NUMBERS)
    table = table_html(_COLUMNS, lines, f"Topics of {subsystem}", sort=sort, sortable=sortable)
    return f'<h2 class="hw">{text(subsystem.capitalize())}</h2>{table}'


def topic_rows(hub: Hub) -> list[Row]:
    """The topics of the catalogue with what was sampled of them."""
    rates, held, lags, letters = hub.rates.per_second(), hub.held(), hub.topic_lags(), hub.dead_letters()
    found: list[Row] = []
    for name, topic in TOPICS.items():
        behind, seconds, slowest = lags.get(name, (0, 0.0, ""))
        per_second = rates.get(name)
        row = {
            "topic": name,
            "subsystem": subsystem_of(name),
            "about": topic.about,
            "rate": per_second or 0.0,
            "rate_text": figures.rate(per_second),
            "spark": figures.spark_points(hub.rates.history(name, _SPARK_POINTS)) if per_second else "",
            "events": held.get(name, 0),
            "events_text": figures.count(held.get(name)),
            "lag, events": behind,
            "lag, time": seconds or 0.0,
            "lag_text": figures.seconds(seconds),
            "slowest": slowest if behind else "",
            "dead letters": letters.get(name, 0),
        }
        found.append({**row, "html": _line(topic, row)})
    return found


def _line(topic: Topic, row: Row) -> str:
    """A topic as a row; figures lead to the topic, its events, the consumer that is behind, and its dead letters."""
    name, slowest = topic.name, row["slowest"]
    address = topic_address(name)
    group = group_address(slowest) if slowest else address
    behind = f'<a href="{text(group)}">{text(slowest)}</a>' if slowest else ""
    lag = (figures.count(row["lag, events"]), row["lag_text"]) if topic.consumers else (figures.DASH, figures.DASH)
    letters = linked(figures.count(row["dead letters"]), link("/dead-letters", topic=name), tone="hw-bad")
    return (
        f'<tr data-key="{text(name)}"><td class="hw-cell"><a href="{text(address)}">{text(name)}</a>'
        f'<div class="hw-muted hw-small">{text(topic.about)}</div></td>{numbers(linked(row["rate_text"], address))}'
        f'<td><svg class="hw-spark" viewBox="0 0 90 22" aria-hidden="true"><polyline points="{row["spark"]}"/></svg></td>'
        + numbers(
            linked(row["events_text"], whole(name)),
            *(linked(value, group) for value in lag),
        )
        + f"<td>{behind}</td>{numbers(letters)}<td>{_kept(topic)}</td></tr>"
    )


def _kept(topic: Topic) -> str:
    if topic.cleanup == "compact":
        return "latest of each key"
    return "forever" if topic.retention_ms < 0 else f"{topic.retention_ms / DAY_MS:g} days"


def consumers_html(hub: Hub, sorting: Sorting) -> str:
    """The consumers with their lag."""
    lines = "".join(row["html"] for row in sorting.rows(map(_consumer, hub.lags)))
    sortable = ("consumer", *_GROUP_NUMBERS)
    return table_html(_GROUP_COLUMNS, lines, "Consumers", sort=sorting.sort, sortable=sortable)


def _consumer(lag: GroupLag) -> Row:
    address = group_address(lag.group)
    reads = sorted({one.topic for one in lag.standings if not one.topic.endswith(DEAD_LETTER_SUFFIX)})
    html = (
        f'<tr data-key="{text(lag.group)}"><td><a href="{text(address)}">{text(lag.group)}</a></td>'
        + numbers(
            linked(figures.count(lag.events), address),
            linked(figures.seconds(lag.seconds if lag.events else 0.0), address),
        )
        + f'<td class="hw-cell">{text(", ".join(reads))}</td><td>{text(lag.problem or "")}</td></tr>'
    )
    return {"consumer": lag.group, "events behind": lag.events, "time behind": lag.seconds or 0.0, "html": html}


def others_html(found: Sequence[Mapping[str, Any]], *, is_open: bool) -> str:
    """Topics of others, and those that are folded, as HTML; `is_open`: a filter is set, so what it finds is to be seen."""
    foreign = [one for one in found if one["kind"] == "events" and one["subsystem"] == OTHER]
    shown = f'<h2 class="hw">Not in the catalogue</h2>{_plain(foreign)}' if foreign else ""
    for kind, title in _FOLDED.items():
        of_kind = [one for one in found if one["kind"] == kind]
        if of_kind:
            inner = _plain(one for topics in grouped(of_kind).values() for one in topics)
            opened = " open" if is_open else ""
            shown += f'<details{opened} data-key="{kind}{opened}"><summary>{title} ({len(of_kind):,})</summary>{inner}</details>'
    return shown


def _plain(topics: Iterable[Mapping[str, Any]]) -> str:
    lines = "".join(
        f'<tr data-key="{text(one["topic"])}"><td><a href="{text(topic_address(one["topic"]))}">{text(one["topic"])}</a></td>'
        f"<td>{text(one['subsystem'])}</td>"
        + numbers(
            *(linked(figures.count(one[name]), topic_address(one["topic"])) for name in ("partitions", "replicas"))
        )
        + f"<td>{_health(one)}</td></tr>"
        for one in topics
    )
    return table_html(("topic", "subsystem", "partitions#", "copies#", "problem"), lines)


def _health(one: Mapping[str, Any]) -> str:
    if one["leaderless"]:
        return chip(f"{one['leaderless']} without a leader", "hw-bad")
    return chip(f"{counted(one['out_of_sync'], 'copy', 'copies')} behind", "hw-warn") if one["out_of_sync"] else ""

"""Dead letters by reason: admins count the matching ones and redrive or drop them in bulk; each letter opens in full."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from nicegui import ui

from highwater.api.core.auth import Role
from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions, confirm
from highwater.api.dashboard.addresses import topic_address
from highwater.api.dashboard.letter_dialog import LetterDialog
from highwater.api.dashboard.letter_table import LetterTable
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked
from highwater.api.dashboard.undo import UndoWindow
from highwater.api.dashboard.view import View, chip, heading, link, note, page, set_html, text
from highwater.api.dead_letters.handling import Handler
from highwater.api.dead_letters.letter import Letter, dead_letters_of
from highwater.api.dead_letters.reading import HANDLED, LISTED_MAX, LetterBox, in_thread
from highwater.api.dead_letters.selecting import (
    ByReason,
    LetterFilter,
    ReasonGroup,
    RedrivePlan,
    planned_drop,
    planned_redrive,
)
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import TOPICS
from highwater.streams.wording import counted

_REFRESH_SECONDS = 3.0
# The latest matches of a filter that a person reads; a bulk action applies to all matches.
_LISTED_MAX = 200
# Letters that are acknowledged together; between two such batches the progress is shown, and a stop takes effect.
_BATCH = 100
_ANY = "any reason"
_OPEN_ONLY, _ALL = "waiting", "all"


def register() -> None:
    """Register the page."""
    page("/dead-letters", "Dead letters")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Dead letters contain events of all users; this key is bound to one user.")
        return
    wanted = view.asked("topic")
    if wanted and wanted not in TOPICS:
        note(f"There is no topic {wanted} in the catalogue, so it has no dead letters here.")
    letters = _Letters(view, wanted)
    letters.build()
    view.live(_REFRESH_SECONDS, letters.refresh, ahead=view.hub.is_current)


class _Found(NamedTuple):
    """The letters read: groups of all, how many match the filter, and the latest of those."""

    groups: list[ReasonGroup]
    read: int
    found: int
    latest: list[Letter]


class _Letters:
    """The page in one browser: the selected topic, the filter, and the letters that were read."""

    def __init__(self, view: View, topic: str) -> None:
        self._view = view
        self._topic = topic if topic in TOPICS else ""
        self._box = LetterBox(view.services.settings.kafka_client(), Registry(view.services.settings.registry_access()))
        state = view.asked("state", _OPEN_ONLY)
        self._filter = LetterFilter(view.asked("reason"), view.asked("contains"), is_open_only=state != _ALL)
        self._letters: dict[int, Letter] = {}
        self._known: tuple[int, int] | None = None

    def build(self) -> None:
        """Add the elements."""
        self._summary = ui.html("", sanitize=False).classes("full-width")
        self._groups = ui.html('<div class="hw-card hw-muted">Counting dead letters…</div>', sanitize=False).classes(
            "full-width"
        )
        if not self._topic:
            return
        heading(f"Dead letters of {self._topic}")
        self._build_filter()
        self._undo = UndoWindow()
        if self._view.is_admin:
            self._build_actions()
        self._undo.build()
        self._table = LetterTable(self._open, may_select=self._view.is_admin)
        self._table.build()
        if not self._view.is_admin:
            note("Sending dead letters again or dropping them requires the role admin.")
            return
        note(
            "Sending again publishes the original key, bytes and headers to the original partition. Each action is recorded."
        )

    def _build_filter(self) -> None:
        with ui.row().classes("hw-row"):
            chosen = self._filter.reason or _ANY
            self._reason = ui.select([*{_ANY: 0, chosen: 0}], value=chosen, label="Reason", on_change=self._filtered)
            self._reason.props("dense outlined").style("min-width:12rem")
            self._contains = ui.input("Detail, consumer, key or origin contains", value=self._filter.contains)
            self._contains.props("dense outlined clearable debounce=400").style("flex:1 1 16rem")
            self._contains.on_value_change(self._filtered)
            state = _OPEN_ONLY if self._filter.is_open_only else _ALL
            self._state = ui.select([_OPEN_ONLY, _ALL], value=state, label="State", on_change=self._filtered)
            self._state.props("dense outlined").style("min-width:8rem")
        self._count = ui.html("", sanitize=False).props("role=status").classes("full-width")

    def _build_actions(self) -> None:
        self._actions = Actions(self._view)
        with self._actions.build():
            ui.button("Redrive all found", icon="replay", on_click=self._ask_redrive_found).props("no-caps")
            ui.button("Send the selected again", icon="replay", on_click=self._ask_redrive).props("outline no-caps")
            ui.button("Drop up to the selected", icon="delete", on_click=self._ask_drop).props(
                "outline no-caps color=negative"
            )
            ui.button("Drop all found", icon="delete_sweep", on_click=self._ask_drop_found).props(
                "outline no-caps color=negative"
            )

    async def _filtered(self) -> None:
        """Apply another filter: the address contains it, so that a link gives the same results."""
        reason = "" if self._reason.value in (None, _ANY) else str(self._reason.value)
        is_open_only = self._state.value != _ALL
        self._filter = LetterFilter(reason, str(self._contains.value or ""), is_open_only=is_open_only)
        given = {"reason": reason, "contains": self._filter.contains, "state": "" if is_open_only else _ALL}
        address = link("/dead-letters", topic=self._topic, **{name: one for name, one in given.items() if one})
        ui.navigate.history.replace(address)
        self._known = None
        try:
            await self.refresh()
        except HighwaterError as error:
            self._view.tell(str(error))

    async def refresh(self) -> None:
        """Read new letters; nothing is read while neither letters nor actions were added."""
        hub = self._view.hub
        counts = hub.dead_letters()
        set_html(self._summary, _summary(counts, self._topic))
        held = hub.ends().get(TOPICS[self._topic].dead_letter, 0) if self._topic else sum(counts.values())
        state = (held, hub.ends().get(HANDLED, 0))
        if state == self._known or not hub.samples:
            return
        found = await asyncio.to_thread(self._read, self._filter)
        self._known = state
        set_html(self._groups, _groups_html(found.groups, self._filter.reason))
        if self._topic:
            self._show(found)

    def _show(self, found: _Found) -> None:
        self._letters = {letter.position.offset: letter for letter in found.latest}
        self._table.show(found.latest[::-1])
        reasons = [_ANY, *(group.reason for group in found.groups)]
        if self._filter.reason and self._filter.reason not in reasons:
            reasons.append(self._filter.reason)
        if reasons != self._reason.options:
            self._reason.set_options(reasons)
        listed = f"; the latest {_LISTED_MAX} are listed" if found.found > _LISTED_MAX else ""
        set_html(self._count, f'<p class="hw-small">{found.found:,} of {found.read:,} dead letters{listed}.</p>')

    def _of_topic(self) -> Iterator[Letter]:
        return self._box.letters([TOPICS[self._topic]], latest=LISTED_MAX)

    def _read(self, letter_filter: LetterFilter) -> _Found:
        topics = [TOPICS[self._topic]] if self._topic else list(TOPICS.values())
        groups, read, found = ByReason(), 0, 0
        latest: deque[Letter] = deque(maxlen=_LISTED_MAX)
        for letter in self._box.letters(topics, latest=LISTED_MAX):
            groups.add(letter)
            read += 1
            if self._topic and letter_filter.finds(letter):
                found += 1
                latest.append(letter)
        return _Found(groups.groups(), read, found, list(latest))

    async def _open(self, offset: int) -> None:
        letter = self._letters.get(offset)
        if letter is None:
            return
        try:
            await LetterDialog(self._view, self._box, letter, self._handler, self._changed).open()
        except HighwaterError as error:
            self._view.tell(str(error))

    def _changed(self) -> None:
        self._known = None

    def _selected(self) -> list[Letter]:
        return [self._letters[offset] for offset in sorted(self._table.selected) if offset in self._letters]

    # -- sending again
    # --------------------------------------------------------------------------------------------------------

    async def _ask_redrive(self) -> None:
        chosen = {letter.position.offset for letter in self._selected()}
        if not chosen:
            ui.notify("Select dead letters first.")
            return
        await self._redrive(LetterFilter(is_open_only=False), chosen)

    async def _ask_redrive_found(self) -> None:
        await self._redrive(self._filter, None)

    async def _redrive(self, letter_filter: LetterFilter, only: set[int] | None) -> None:
        """Count first, confirm, and send once the undo window has ended; those of `only`, None: all matches."""
        try:
            partitions = await self._view.services.admin.partition_counts()
            plan = await asyncio.to_thread(lambda: planned_redrive(self._chosen(only), letter_filter, partitions))
        except HighwaterError as error:
            self._actions.tell(str(error), is_wrong=True)
            return
        count = len(plan.offsets)
        if not count:
            self._actions.tell(
                "None of the dead letters found can be sent: check the origin and size of each.", is_wrong=True
            )
            return
        asked = consequences.redrive_letters(self._topic, count, len(plan.once_more), plan.refused)
        if not await confirm(asked):
            return
        self._table.unselect()
        outcome: Counter[str] = Counter()
        what = f"{counted(count, 'dead letter')} of {self._topic} will be sent again"
        self._undo.open(what, count, lambda: self._send(plan, outcome), lambda: _sent(outcome))

    def _chosen(self, only: set[int] | None) -> Iterator[Letter]:
        return (letter for letter in self._of_topic() if only is None or letter.position.offset in only)

    async def _send(self, plan: RedrivePlan, outcome: Counter[str]) -> AsyncIterator[int]:
        """Send the counted letters, in batches; yield how many were handled."""
        handler = await self._handler()
        async with self._recorded("dlq redrive", f"{self._topic}, {len(plan.offsets)} letters"):
            batch: list[Letter] = []
            handled = 0
            async for letter in in_thread(letter for letter in self._of_topic() if plan.still_holds(letter)):
                batch.append(letter)
                if len(batch) < _BATCH:
                    continue
                handled += await self._send_batch(handler, batch, outcome)
                yield handled
                batch = []
            yield handled + await self._send_batch(handler, batch, outcome)
        self._changed()

    async def _send_batch(self, handler: Handler, batch: list[Letter], outcome: Counter[str]) -> int:
        done = await handler.redrive(in_thread(iter(batch)), again=True)
        outcome["sent"] += len(done.redriven)
        outcome["refused"] += len(done.refused)
        return len(batch)

    # -- dropping
    # -------------------------------------------------------------------------------------------------------------

    async def _ask_drop(self) -> None:
        chosen = {letter.position.offset for letter in self._selected()}
        if not chosen:
            ui.notify("First select the last dead letter to drop.")
            return
        await self._drop(LetterFilter(is_open_only=False), chosen)

    async def _ask_drop_found(self) -> None:
        await self._drop(self._filter, None)

    async def _drop(self, letter_filter: LetterFilter, only: set[int] | None) -> None:
        """Count first, confirm by typing the topic, and delete once the undo window has ended."""
        try:
            plan = await asyncio.to_thread(lambda: planned_drop(self._of_topic(), letter_filter, only))
        except HighwaterError as error:
            self._actions.tell(str(error), is_wrong=True)
            return
        if not plan.found:
            self._actions.tell("The filter finds no dead letter, so nothing would be deleted.", is_wrong=True)
            return
        asked = consequences.drop_letters(self._topic, plan.last_offset, plan.found, plan.others_open)
        if not await confirm(asked):
            return
        self._table.unselect()
        deleted: Counter[str] = Counter()
        what = f"dead letters of {self._topic} up to offset {plan.last_offset:,} will be deleted"
        last = plan.last_offset
        self._undo.open(
            what, plan.found, lambda: self._delete(last, deleted), lambda: f"deleted: {deleted['deleted']:,}"
        )

    async def _delete(self, last: int, deleted: Counter[str]) -> AsyncIterator[int]:
        handler = await self._handler()
        ranges = await asyncio.to_thread(self._box.ranges, [dead_letters_of(TOPICS[self._topic])])
        ends = {place: min(held.high, last + 1) for place, held in ranges.items()}
        async with self._recorded("dlq drop", f"{self._topic} up to offset {last}"):
            deleted["deleted"] = await handler.drop(self._view.services.settings.kafka_client(), ends, ranges)
        self._changed()
        yield deleted["deleted"]

    def _recorded(self, action: str, resource: str) -> AbstractAsyncContextManager[None]:
        """Record it in the log of privileged actions, as the terminal's commands do."""
        return self._view.services.security.recording(self._view.visitor.principal, f"dashboard {action}", resource)

    async def _handler(self) -> Handler:
        """Return the visitor, checked again: a key may have lost its role since the page was opened.

        Raises:
            ForbiddenError: the visitor is not an admin.
            UnauthorizedError: the visitor is no longer signed in.
        """
        services = self._view.services
        principal = await self._view.require(Role.ADMIN)
        by = principal.user_id or principal.key_id or "dashboard"
        partitions = await services.admin.partition_counts()
        return Handler(
            services.kafka.require(), services.registry.require(), partitions, services.clock, by=by, note="dashboard"
        )


def _sent(outcome: Counter[str]) -> str:
    refused = f"; not sent: {outcome['refused']:,}" if outcome["refused"] else ""
    return f"sent again: {outcome['sent']:,}{refused}"


def _groups_html(groups: list[ReasonGroup], chosen: str) -> str:
    if not groups:
        return ""
    rows = "".join(_group_row(one, is_chosen=one.reason == chosen) for one in groups)
    return table_html(("topic", "reason", "waiting#", "all#", "latest (UTC)"), rows, "Dead letters by reason")


def _group_row(group: ReasonGroup, *, is_chosen: bool) -> str:
    address = link("/dead-letters", topic=group.topic, reason=group.reason)
    all_of_it = link("/dead-letters", topic=group.topic, reason=group.reason, state=_ALL)
    return (
        f"<tr{' aria-current=true' if is_chosen else ''}>"
        f'<td><a href="{text(topic_address(group.topic))}">{text(group.topic)}</a></td>'
        f'<td><a href="{text(address)}">{text(group.reason.replace("_", " "))}</a></td>'
        f"{numbers(linked(figures.count(group.open), address), linked(figures.count(group.count), all_of_it))}"
        f"<td>{figures.moment(group.latest_ms)}</td></tr>"
    )


def _summary(counts: dict[str, int], chosen: str) -> str:
    if not counts:
        return (
            f'<div class="hw-card">{chip("✓ no dead letters", "hw-good")}<p>A consumer puts an event aside that it '
            "cannot process, with the reason. Such events are listed here, to be edited and sent again. "
            '<a href="/topics">See the topics and their consumers</a></p></div>'
        )
    links = "".join(
        f'<a class="hw-tile hw-leads" href="{text(link("/dead-letters", topic=topic))}"'
        f"{' aria-current=true' if topic == chosen else ''}>"
        f'<b class="hw-bad">{figures.count(number)}</b><span>{text(topic)}</span></a>'
        for topic, number in sorted(counts.items(), key=lambda one: -one[1])
    )
    return f'<div class="hw-tiles" style="grid-template-columns:repeat(auto-fill,minmax(210px,1fr))">{links}</div>'

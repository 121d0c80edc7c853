"""The reset of a consumer group on its page: the changes are shown first, and only that plan can be confirmed.

Invariant: the executed request is the one whose plan was shown; after a change of place or topic a new plan is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.view import View, heading, segment, text
from highwater.schemas.errors import HighwaterError
from highwater.streams.wording import counted

_ALL = "all topics"
# name of the place, its label in the list; another place is typed
_PLACES = ("earliest", "latest")


class Reset:
    """The form in one browser."""

    def __init__(self, view: View, group: str) -> None:
        self._view = view
        self._group = group
        self._planned: dict[str, Any] | None = None  # the request that was shown

    @property
    def _path(self) -> str:
        return f"/api/groups/{segment(self._group)}/reset"

    def build(self) -> None:
        """Add the elements, hidden until `offer`."""
        self._card = ui.column().classes("hw-card full-width")
        self._card.set_visibility(False)
        with self._card:
            heading("Reset")
            ui.html(
                '<p class="hw-muted hw-small">Sets where the group reads next: <code>earliest</code>, <code>latest</code>, an'
                " offset, a time such as 2026-01-31T12:00:00Z, or an age such as -90m. Stop the group first.</p>",
                sanitize=False,
            )
            with ui.row().classes("hw-row"):
                self._to = ui.input("Continue from", value="earliest", autocomplete=list(_PLACES)).props(
                    "dense outlined"
                )
                self._topic = ui.select([_ALL], value=_ALL, label="Topic").props("dense outlined")
                self._topic.style("min-width:14rem")
                ui.button("Show what would change", icon="preview", on_click=self._plan).props("no-caps outline")
            self._plan_shown = ui.html("", sanitize=False).classes("full-width")
            self._actions = Actions(self._view)
            with self._actions.build():
                self._actions.add("Reset the group", "restart_alt", self._execute)

    def offer(self, topics: Sequence[str]) -> None:
        """Show the form, with the topics to choose from; the group exists."""
        self._card.set_visibility(True)
        options = [_ALL, *topics]
        if self._topic.options != options:
            self._topic.set_options(options, value=self._topic.value if self._topic.value in options else _ALL)

    def _wanted(self) -> dict[str, Any]:
        chosen = self._topic.value
        return {"to": str(self._to.value or "").strip(), "topics": [] if chosen == _ALL else [chosen]}

    async def _plan(self) -> None:
        wanted = self._wanted()
        try:
            plan = await self._view.get(self._path, to=wanted["to"], topic=wanted["topics"] or None)
        except HighwaterError as error:
            self._planned = None
            self._actions.show()
            self._plan_shown.set_content(f'<div class="hw-banner hw-bad" role="alert">{text(error)}</div>')
            return
        self._planned = wanted
        self._plan_shown.set_content(plan_html(plan))
        self._members, self._steps = plan["live_members"], plan["partitions"]
        self._actions.show(*(["Reset the group"] if not plan["live_members"] and changed(plan) else []))

    async def _execute(self) -> None:
        planned = self._planned
        if planned is None or planned != self._wanted():
            self._actions.tell("The form was changed; click “Show what would change” first.", is_wrong=True)
            return
        done = await self._actions.run(
            consequences.reset_group(self._group, changed({"partitions": self._steps})),
            f"{self._group} continues from there.",
            lambda: self._view.send("POST", self._path, body=planned),
        )
        if done:
            self._planned = None
            self._plan_shown.set_content("")
            self._actions.show()


def changed(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the partitions of a plan whose position changes."""
    return [one for one in plan["partitions"] if one["before"] != one["after"]]


def plan_html(plan: Mapping[str, Any]) -> str:
    """Return the changes of a reset."""
    found = changed(plan)
    if not plan["partitions"]:
        return '<p class="hw-muted">The group reads nothing that is on the broker.</p>'
    if not found:
        return '<p class="hw-muted">Nothing would change: the group already reads from there.</p>'
    lines = "".join(
        f"<tr><td>{text(one['topic'])}</td>"
        + numbers(str(one["partition"]), figures.count(one["before"]), figures.count(one["after"]), text(moved(one)))
        + "</tr>"
        for one in found
    )
    same = len(plan["partitions"]) - len(found)
    more = f'<p class="hw-muted hw-small">{counted(same, "partition")} would not change.</p>' if same else ""
    members = plan["live_members"]
    plural, which = ("", "it is") if members == 1 else ("s", "they are")
    running = (
        f'<div class="hw-banner hw-warn" role="alert">The group is running with {members} member{plural}, which would continue'
        f" from where {which}. Stop the group, then show what would change again.</div>"
        if members
        else ""
    )
    columns = ("topic", "partition#", "reads from#", "would read from#", "effect#")
    return running + table_html(columns, lines, "What would change") + more


def moved(step: Mapping[str, Any]) -> str:
    """Return the effect of a step for the reader, in words."""
    if step["before"] is None:
        return "begins here"
    gap = step["after"] - step["before"]
    return f"{counted(gap, 'event')} skipped" if gap > 0 else f"{counted(-gap, 'event')} read again"

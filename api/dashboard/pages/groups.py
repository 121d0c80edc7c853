"""Consumer groups: those of the catalogue, and those of other applications, with state and lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import group_address
from highwater.api.dashboard.searched import searched
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked
from highwater.api.dashboard.view import View, chip, note, page, text

_REFRESH_SECONDS = 5.0
# Kafka's names of a group's states; others are transitional.
STATE_TONES = {"stable": "hw-good", "empty": "hw-muted", "dead": "hw-muted"}


def register() -> None:
    """Register the page."""
    page("/groups", "Groups")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Consumer groups read events of all users; this key is bound to one user.")
        return
    searched(view, "group", "group", _groups, _REFRESH_SECONDS)


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    own = [one for one in groups if one["is_catalogued"]]
    others = [one for one in groups if not one["is_catalogued"]]
    if not groups:
        return '<p class="hw-muted">No group has this name.</p>'
    return "".join(
        f'<h2 class="hw">{title}</h2>{_table(found, title)}'
        for title, found in (("Groups of the catalogue", own), ("Other groups", others))
        if found
    )


def _table(groups: Sequence[Mapping[str, Any]], title: str) -> str:
    lines = "".join(
        f'<tr data-key="{text(one["group"])}"><td><a href="{text(group_address(one["group"]))}">{text(one["group"])}</a></td>'
        f"<td>{chip(one['state'], STATE_TONES.get(one['state'], 'hw-warn'))}</td>"
        f"{numbers(linked(figures.count(one['lag']), group_address(one['group'])))}</tr>"
        for one in groups
    )
    return table_html(("group", "state in Kafka", "events behind#"), lines, title)

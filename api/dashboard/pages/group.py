"""One consumer group: its members with their assignments, the lag of each partition, and its reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from highwater.api.broker.access import RESET
from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import topic_address
from highwater.api.dashboard.browsing import unread, whole
from highwater.api.dashboard.pages.groups import STATE_TONES
from highwater.api.dashboard.resets import Reset
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked, loading
from highwater.api.dashboard.trends import OwnHistory, Trends
from highwater.api.dashboard.view import View, chip, facts, note, page, place, segment, set_html, text

_REFRESH_SECONDS = 3.0
_WITHOUT_COMMIT = (
    "A partition without a commit is counted from its first record; a consumer with auto.offset.reset=latest skips"
    " what was written before it starts."
)


def register() -> None:
    """Register the page."""
    page("/groups/{name}", "Consumer group")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Consumer groups read events of all users; this key is bound to one user.")
        return
    shown = _Group(view, unquote(view.named("name")))
    shown.build()
    view.live(_REFRESH_SECONDS, shown.refresh)


class _Group:
    """The page in one browser."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._name = name
        self._reset: Reset | None = None

    def build(self) -> None:
        """Add the elements."""
        self._head = place(loading("the group"))
        if self._view.may(RESET):
            self._reset = Reset(self._view, self._name)
            self._reset.build()
        else:
            note("Resetting a group requires the role admin.")
        self._trends = Trends(self._view, ("lag", "lag_seconds"), self._name)
        self._trends.build()
        self._history = OwnHistory(self._view, f"/api/groups/{segment(self._name)}/history")
        self._history.build()
        self._rest = place()

    async def refresh(self) -> None:
        """Read it again."""
        group = await self._view.find(f"/api/groups/{segment(self._name)}")
        if group is None:
            set_html(self._head, _missing(self._name))
            set_html(self._rest, "")
            return
        set_html(self._head, _head(group))
        set_html(self._rest, _partitions(group) + _members(group))
        if self._reset is not None:
            self._reset.offer(sorted({one["topic"] for one in group["partitions"]}))
        if group["is_catalogued"]:
            await self._trends.refresh()
        await self._history.refresh(is_catalogued=group["is_catalogued"])


def _missing(name: str) -> str:
    return (
        f'<div class="hw-card">There is no consumer group <b>{text(name)}</b>.'
        ' <a href="/groups">See all groups</a></div>'
    )


def _head(group: Mapping[str, Any]) -> str:
    state = group["state"]
    shown = {"state in Kafka": chip(state, STATE_TONES.get(state, "hw-warn"))}
    shown["events behind"] = linked(figures.count(group["lag"]), "#partitions")
    shown["members"] = linked(figures.count(len(group["members"])), "#members")
    shown["name in Kafka"] = text(group["kafka_group"])
    if group["coordinator"]:
        shown["coordinator"] = f"broker {text(group['coordinator'])}"
    if group["assignor"]:
        shown["assignment"] = text(group["assignor"])
    about = "" if group["is_catalogued"] else "<p>This group is not in the catalogue.</p>"
    return f'<div class="hw-card"><h2 class="hw">{text(group["group"])}</h2>{about}{facts(shown)}</div>'


def _partitions(group: Mapping[str, Any]) -> str:
    if not group["partitions"]:
        return (
            '<h2 class="hw" id="partitions">Partitions</h2><p class="hw-muted">The group has committed no offset.</p>'
        )
    lines = "".join(
        f'<tr><td><a href="{text(topic_address(one["topic"]))}">{text(one["topic"])}</a></td>'
        + numbers(
            f'<a href="{text(whole(one["topic"], one["partition"]))}">{one["partition"]}</a>',
            *(figures.count(one[name]) for name in ("next", "end")),
            linked(figures.count(one["lag"]), unread(one["topic"], one["partition"], one["next"])),
        )
        + f"<td>{_reader(one)}</td></tr>"
        for one in group["partitions"]
    )
    columns = ("topic", "partition#", "reads from#", "end of the log#", "events behind#", "member")
    is_unknown = group["auto_offset_reset"] == "unknown" and any(one["next"] is None for one in group["partitions"])
    about = f'<p class="hw-muted">{_WITHOUT_COMMIT}</p>' if is_unknown else ""
    return f'<h2 class="hw" id="partitions">Partitions</h2>{about}{table_html(columns, lines, "Partitions")}'


def _reader(one: Mapping[str, Any]) -> str:
    if one["stopped"]:
        return chip(one["stopped"], "hw-bad")
    return figures.DASH if one["member"] is None else text(one["member"])


def _members(group: Mapping[str, Any]) -> str:
    if not group["members"]:
        return '<h2 class="hw" id="members">Members</h2><p class="hw-muted">No member is connected.</p>'
    lines = "".join(
        f"<tr><td>{text(one['client_id'])}</td><td>{text(one['host'])}</td>"
        f'<td style="white-space:normal">{text(_assignment(one)) or figures.DASH}</td>'
        f'<td class="hw-small hw-muted">{text(one["member_id"])}</td></tr>'
        for one in group["members"]
    )
    return f'<h2 class="hw" id="members">Members</h2>{table_html(("client", "host", "reads", "member id"), lines, "Members")}'


def _assignment(member: Mapping[str, Any]) -> str:
    """Return a member's assignment: topics, each with its partitions."""
    found: dict[str, list[int]] = {}
    for one in member["assignment"]:
        found.setdefault(one["topic"], []).append(one["partition"])
    return "; ".join(f"{topic}: {', '.join(map(str, numbers))}" for topic, numbers in found.items())

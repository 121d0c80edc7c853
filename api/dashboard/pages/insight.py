"""The page of an insight: its text, its record, and its retraction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.api.core.access import Owner, may_act_for
from highwater.api.core.events import PUBLISH
from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions, position_html
from highwater.api.dashboard.tiles import loading
from highwater.api.dashboard.view import ReadRefusedError, View, chip, facts, note, page, place, segment, set_html, text
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.feeds import INSIGHT_RETRACTED

_REFRESH_SECONDS = 3.0
_NOT_FOUND, _GONE = 404, 410
_RETRACT = "Retract"


def register() -> None:
    """Make the page known."""
    page("/insight", "Insight")(_build)


async def _build(view: View) -> None:
    channel_id, insight_id = view.asked("channel"), view.asked("id")
    if not channel_id or not insight_id:
        note("An insight is named by its channel and its id; the sources of a query link to insights.")
        return
    insight = _Insight(view, channel_id, insight_id)
    insight.build()
    view.live(_REFRESH_SECONDS, insight.refresh)


class _Insight:
    """The page in one browser."""

    def __init__(self, view: View, channel_id: str, insight_id: str) -> None:
        self._view = view
        self._channel_id = channel_id
        self._id = insight_id

    def build(self) -> None:
        """Put the elements in their places."""
        self._card = place(loading("the insight"))
        self._actions = Actions(self._view)
        with self._actions.build():
            # An insight is nobody's own, so a key that is bound to somebody cannot take it back.
            if self._view.may(PUBLISH) and may_act_for(self._view.visitor.principal, Owner()):
                self._actions.add(_RETRACT, "undo", self._retract)

    async def refresh(self) -> None:
        """Read it; a retracted one says so."""
        try:
            document = await self._view.get(f"/api/insights/{segment(self._channel_id)}/{segment(self._id)}")
        except ReadRefusedError as error:
            if error.status not in (_NOT_FOUND, _GONE):
                raise
            set_html(self._card, _absent(self._id, is_retracted=error.status == _GONE))
            self._actions.show()
            return
        set_html(self._card, _shown(self._view, document))
        self._actions.show(_RETRACT)

    async def _retract(self) -> None:
        event = {
            "insight_id": self._id,
            "channel_id": self._channel_id,
            "ts": iso_from_ms(self._view.services.clock()),
        }
        await self._actions.run(
            consequences.retract_insight(self._id, self._channel_id),
            "The insight is being retracted.",
            lambda: self._view.send("POST", f"/api/events/{INSIGHT_RETRACTED}", body=event),
        )


def _absent(insight_id: str, *, is_retracted: bool) -> str:
    if is_retracted:
        return (
            f'<div class="hw-card">{chip("retracted", "hw-bad")} <span class="hw-mono">{text(insight_id)}</span></div>'
        )
    return (
        f'<div class="hw-card"><p>There is no insight <span class="hw-mono">{text(insight_id)}</span> in this channel; '
        'its id may be misspelt.</p><p><a href="/browse">Browse the insights</a></p></div>'
    )


def _shown(view: View, document: Mapping[str, Any]) -> str:
    told = {
        "channel": text(document["channel_id"]),
        "number": figures.count(document["seq"]),
        "from": f"{figures.iso_text(document['ts'])} UTC",
        "arrived": f"{figures.iso_text(document['arrived_at'])} UTC",
        "position": f'<span class="hw-mono">{position_html(view, document["position"])}</span>',
    }
    if document["url"]:
        told["address"] = f'<span class="hw-long">{text(document["url"])}</span>'
    words = text(document["text"] or "It has no text, only a vector.")
    return f'<div class="hw-card"><p class="hw-answer">{words}</p>{facts(told)}</div>'

"""What a page says when it cannot be refreshed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nicegui import ui

from highwater.api.dashboard.view import View
from highwater.schemas.errors import UnavailableError


class Content:
    """The element that is busy until the page was filled once."""

    def __init__(self) -> None:
        self.is_busy = False

    def props(self, add: str = "", *, remove: str = "") -> Any:
        """As the library's: sets or removes a property."""
        self.is_busy = bool(add) and not remove
        return SimpleNamespace(props=_Props(self))


class _Props:
    def __init__(self, content: Content) -> None:
        self._content = content

    def __contains__(self, name: str) -> bool:
        return self._content.is_busy

    def __call__(self, *, remove: str) -> None:
        self._content.is_busy = False


@pytest.mark.parametrize(
    ("error", "said", "is_raised"),
    [
        (UnavailableError("database is away"), "database is away", False),
        (KeyError("result"), "because of a defect", True),
        (None, None, False),
    ],
)
async def test_a_page_says_why_it_is_not_refreshed(monkeypatch, error, said, is_raised):
    """Words for what is away; a defect is said too and goes on to the log; in every case the page is busy no more."""
    turns, told, content = [], [], Content()
    monkeypatch.setattr(ui, "timer", lambda _, turn: turns.append(turn))
    monkeypatch.setattr(ui, "context", SimpleNamespace(client=SimpleNamespace(content=content)))
    dashboard: Any = SimpleNamespace(hub=SimpleNamespace(look=lambda: None))
    view = View(dashboard, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(view, "tell", told.append)

    async def refresh() -> None:
        if error is not None:
            raise error

    view.live(1, refresh)
    assert content.is_busy
    if is_raised:
        with pytest.raises(type(error)):
            await turns[0]()
    else:
        await turns[0]()
    assert not content.is_busy
    assert told == [None] if said is None else said in told[0]

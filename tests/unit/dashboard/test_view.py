"""The message of a page that cannot be refreshed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Self

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Props:
    def __init__(self, content: Content) -> None:
        self._content = content

    def __contains__(self, name: str) -> bool:
        return self._content.is_busy

    def __call__(self, *, remove: str) -> None:
        self._content.is_busy = False


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    ("error", "said", "is_raised"),
    [
        (UnavailableError("database is away"), "database is away", False),
        (KeyError("result"), "because of a defect", True),
        (None, None, False),
    ],
)
async def test_a_page_says_why_it_is_not_refreshed(monkeypatch, error, said, is_raised, ahead):
    """It names an unavailable service; a defect is shown too and is logged; in each case the page is no longer busy."""
    turns, told, content = [], [], Content()
    monkeypatch.setattr(ui, "timer", lambda _, turn: turns.append(turn))
    monkeypatch.setattr(ui, "context", SimpleNamespace(client=SimpleNamespace(content=content)))
    dashboard: Any = SimpleNamespace(hub=SimpleNamespace(look=lambda: None))
    view = View(dashboard, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(view, "tell", told.append)

    async def refresh() -> None:
        if error is not None:
            raise error

    view.live(1, refresh, ahead=ahead)
    assert content.is_busy
    if is_raised:
        with pytest.raises(type(error)):
            await turns[0]()
    else:
        await turns[0]()
    assert not content.is_busy
    assert told == [None] if said is None else said in told[0]


async def test_a_page_is_read_while_the_browser_loads_its_scripts(monkeypatch):
    """Once: the turn at the connection waits for it, and the next one reads again."""
    turns, reads, content = [], [], Content()
    monkeypatch.setattr(ui, "timer", lambda _, turn: turns.append(turn))
    monkeypatch.setattr(ui, "context", SimpleNamespace(client=SimpleNamespace(content=content)))
    dashboard: Any = SimpleNamespace(hub=SimpleNamespace(look=lambda: None))
    view = View(dashboard, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    may_end = asyncio.Event()

    async def refresh() -> None:
        reads.append(content.is_busy)
        await may_end.wait()

    view.live(1, refresh)
    await asyncio.sleep(0)
    assert reads == [True]
    connected = asyncio.create_task(turns[0]())
    may_end.set()
    await connected
    assert (reads, content.is_busy) == ([True], False)
    await turns[0]()
    assert reads == [True, False]

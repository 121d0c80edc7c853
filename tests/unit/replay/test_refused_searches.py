"""Searches over HTTP that cannot begin: they are refused before a process is started for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import UnprocessableError
from highwater.api.records import searches
from highwater.connectors.replay.cursors import Search
from highwater.schemas.topics import TOPICS

TOPIC = TOPICS["feeds.insight-ingested"]


@pytest.mark.parametrize(
    ("asked", "cursor", "said"),
    [
        ({"begin": "yesterday-ish"}, None, "is not one of"),
        ({"end": "feeds.novelty/0/1"}, None, "is a position of feeds.novelty"),
        ({}, "bm90aGluZw", "not a search cursor"),
    ],
)
async def test_an_invalid_place_or_cursor_starts_no_process(
    asked: dict[str, Any], cursor: str | None, said: str, monkeypatch: pytest.MonkeyPatch
):
    """The answer names the error; a process would take a third of a second to find it."""
    started: list[object] = []
    monkeypatch.setattr(searches._searches, "open", lambda *task: started.append(task))
    services: Any = SimpleNamespace(clock=lambda: 1)
    with pytest.raises(UnprocessableError, match=said):
        async with searches.begun(services, Principal(Role.VIEWER), Search(TOPIC, **asked), cursor=cursor):
            pass
    assert started == []

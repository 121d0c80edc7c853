"""What tests of readers' pages look at."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

TABS = ("table", "schedule", "results", "stats", "bracket")
_NO_CONNECTION = ("ERR_INTERNET_DISCONNECTED", "ERR_FAILED", "503")


def encoded(name: str) -> str:
    """A segment of a path."""
    return quote(name, safe="")


def snapshots(page: Any) -> dict[str, Any]:
    """What the browser keeps, by path."""
    found: dict[str, Any] = page.evaluate(
        """() => Object.fromEntries(Object.keys(localStorage).filter((key) => key.startsWith("highwater:read:"))
             .map((key) => [key.slice("highwater:read::".length), JSON.parse(localStorage[key])]))"""
    )
    return found


def forget_lost_connections(browser: Any) -> None:
    """The browser's own lines about requests that a test has cut off; nothing else may have gone wrong."""
    assert all(any(word in one for word in _NO_CONNECTION) for one in browser.problems), browser.problems
    browser.problems.clear()

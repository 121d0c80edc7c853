"""The pages and elements that tests of readers' pages check."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

TABS = ("table", "schedule", "results", "stats", "bracket")
_NO_CONNECTION = ("ERR_INTERNET_DISCONNECTED", "ERR_FAILED", "503")

# Texts whose colour is too near to the ground behind them (WCAG 2.2, 1.4.3).
_CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const wrong = [];
  for (const one of document.querySelectorAll("body *")) {
    const has = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!has || !one.checkVisibility() || one.tagName === "NOSCRIPT") continue;
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push(`${one.tagName} ${one.textContent.trim().slice(0, 40)}`);
  }
  return wrong;
}"""


def encoded(name: str) -> str:
    """A segment of a path."""
    return quote(name, safe="")


def snapshots(page: Any) -> dict[str, Any]:
    """The pages that the browser keeps, by path."""
    found: dict[str, Any] = page.evaluate(
        """() => Object.fromEntries(Object.keys(localStorage).filter((key) => key.startsWith("highwater:read:"))
             .map((key) => [key.slice("highwater:read::".length), JSON.parse(localStorage[key])]))"""
    )
    return found


def forget(browser: Any, *expected: str) -> None:
    """The browser's own lines about requests that a test has had fail; nothing else may have gone wrong."""
    assert all(any(word in one for word in expected) for one in browser.problems), browser.problems
    browser.problems.clear()


def forget_lost_connections(browser: Any) -> None:
    """The same of requests that a test has cut off."""
    forget(browser, *_NO_CONNECTION)


def own_clock(page: Any) -> None:
    """A page whose time a test moves."""
    page.clock.install()


def unreadable(page: Any) -> list[str]:
    """Texts of a page whose contrast is less than 4.5."""
    found: list[str] = page.evaluate(_CONTRAST)
    return found


def weighed(page: Any) -> dict[str, int]:
    """The bytes of what a page loads from now on, by address, as they go over the network."""
    found: dict[str, int] = {}

    def note(request: Any) -> None:
        sizes = request.sizes()
        weight = int(sizes["responseBodySize"] + sizes["responseHeadersSize"])
        found[request.url] = found.get(request.url, 0) + weight

    page.on("requestfinished", note)
    return found

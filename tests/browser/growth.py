"""The memory of a page that stays open: updates of the server are recorded, and shown again as often as in eight hours.

Each takes the way of a message that the socket has read, to the elements that it changes. New ones are not shown meanwhile, so
the page shows the same at each measurement. It is measured after the browser has collected unreferenced memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Eight hours of a page that is refreshed every two seconds.
EIGHT_HOURS = 14_400
_RECORD = """() => {
  window.recorded = [];
  window.socket.on("update", (message) => recorded.push(JSON.stringify({...message, _id: undefined})));
}"""
_REPLAY = """async (rounds) => {
  for (let turn = 0; turn < rounds * recorded.length; turn += 1) {
    await show(JSON.parse(recorded[turn % recorded.length]));
    if (window.leak) leak(recorded[turn % recorded.length]);
    await new Promise((done) => setTimeout(done));  // timers, frames and the socket have their turn
  }
}"""
# A careless script: it keeps its rows.
PLANTED = """() => {
  const kept = [];
  window.leak = (message) => kept.push(JSON.parse(message), JSON.parse(message));
}"""


@dataclass(frozen=True)
class Held:
    """The memory of a page: bytes of JavaScript, nodes of documents, listeners."""

    heap_bytes: int
    nodes: int
    listeners: int


def held_by(devtools: Any) -> Held:
    """The present memory of the page of a session of the developer tools."""
    for _ in range(2):  # memory freed by the first round may have been larger
        devtools.send("HeapProfiler.collectGarbage")
    counted = devtools.send("Memory.getDOMCounters")
    heap = devtools.send("Runtime.getHeapUsage")["usedSize"]
    return Held(int(heap), counted["nodes"], counted["jsEventListeners"])


class OpenPage:
    """A page with the updates that the server sent to it."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._devtools = page.context.new_cdp_session(page)
        page.evaluate(_RECORD)

    def record(self, count: int) -> int:
        """Wait for updates; how many were recorded."""
        self._page.wait_for_function("(count) => recorded.length >= count", arg=count)
        self._page.evaluate("() => { [window.show] = socket.listeners('update'); socket.off('update'); }")
        return int(self._page.evaluate("recorded.length"))

    def replay(self, rounds: int) -> Held:
        """Show all of them this many times, and measure the memory then: the page shows the same after each replay."""
        self._page.evaluate(_REPLAY, rounds)
        return held_by(self._devtools)

    def plant_leak(self) -> None:
        """From now on every update leaves something behind."""
        self._page.evaluate(PLANTED)


def growth(before: Held, after: Held, turns: int) -> tuple[float, float, float]:
    """The growth of a page in eight hours at the rate between two measurements: MB, nodes, listeners."""
    scale = EIGHT_HOURS / turns
    return (
        (after.heap_bytes - before.heap_bytes) * scale / 1e6,
        (after.nodes - before.nodes) * scale,
        (after.listeners - before.listeners) * scale,
    )

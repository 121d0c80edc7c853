"""The tree of a page of the leagues, over a log in memory."""

from __future__ import annotations

from typing import Any

from highwater.connectors.explain.explanations import Step, chain
from highwater.connectors.explain.pages import trace_page
from highwater.schemas.positions import Position
from tests.unit.explain.memory_log import MemoryLog

T = 1_800_000_000_000
KEY = "league:table:2025-26"


def _finalized(log: MemoryLog, at: int) -> Position:
    value = {"match_id": "m", "season": "2025-26", "home_goals": 2, "away_goals": 1, "finalized_at": T}
    return log.add("league.match-finalized", "2025-26", T + at, value)


def _changed(log: MemoryLog, at: int, cause: Position) -> Position:
    value = {
        "match_id": "m", "season": "2025-26", "changed": ["result"], "kickoff": T, "status": "finished",
        "state": "final", "home": "A", "away": "B", "former_teams": [], "home_goals": 2, "away_goals": 1,
        "finalized_at": T, "revision": 4,
    }  # fmt: skip
    return log.add("league.match-changed", "2025-26", T + at, value, cause)


def _refresh(log: MemoryLog, at: int, cause: Position, *keys: str) -> Position:
    value = {"scope": "2025-26", "keys": list(keys), "dropped": [], "reason": "match-changed", "planned_at": T}
    return log.add("league.refresh-requested", "2025-26", T + at, value, cause)


def _bump(log: MemoryLog, at: int, version: int, cause: Position) -> Position:
    value = {
        "key": KEY,
        "version": version,
        "etag": "e",
        "caused_by": str(cause),
        "bumped_at": T,
        "reason": "match-changed",
    }
    return log.add("cache.version-bumped", KEY, T + at, value, cause)


def _kinds(tree: Step) -> list[str]:
    return [step.kind for step, _ in chain(tree)]


def _told(log: MemoryLog, **more: Any) -> tuple[Position, Position]:
    event = _finalized(log, 0)
    changed = _changed(log, 10, event)
    _refresh(log, 15, changed, "league:schedule:2025-26")
    _refresh(log, 17, Position("league.match-changed", 0, 999), KEY)  # an event of another match
    request = _refresh(log, 20, changed, KEY, "lb:1")
    _bump(log, 50, 8, event)
    return event, request


def test_the_chain_leads_from_the_result_to_the_page() -> None:
    """The event behind the page, what it changed, the request that names the page, and the bump."""
    log = MemoryLog()
    event, request = _told(log)
    tree = trace_page(log, KEY, 8, str(event), T + 48)
    assert _kinds(tree) == ["event", "change", "request", "bump", "served"]
    steps = [step for step, _ in chain(tree)]
    assert (steps[0].position, steps[2].position) == (str(event), str(request))
    assert steps[0].numbers["home_goals"] == 2


def test_another_version_and_another_page_are_not_taken_for_it() -> None:
    """The bump is that of the version which is served."""
    log = MemoryLog()
    event, _ = _told(log)
    later = _bump(log, 60, 9, event)
    tree = trace_page(log, KEY, 9, str(event), T + 58)
    assert tree.position == str(later)


def test_a_moved_clock_does_not_hide_the_bump() -> None:
    """The row's time is the product's, which may be moved by days; the log's is the broker's."""
    log = MemoryLog()
    event, _ = _told(log)
    for moved_ms in (-86_400_000, 86_400_000):
        assert _kinds(trace_page(log, KEY, 8, str(event), T + 48 + moved_ms))[-2:] == ["bump", "served"]


def test_a_page_made_when_it_was_read_has_no_request() -> None:
    """From its event straight to the bump."""
    log = MemoryLog()
    event = _finalized(log, 0)
    _bump(log, 50, 1, event)
    assert _kinds(trace_page(log, KEY, 1, str(event), T + 48)) == ["event", "bump", "served"]


def test_a_page_of_nothing_has_no_event_behind_it() -> None:
    """The first page of an empty rating: no position is stored, none is shown."""
    log = MemoryLog()
    tree = trace_page(log, "lb:1", 1, "", T)
    assert (tree.causes, bool(tree.missing)) == ((), True)


def test_an_event_that_was_deleted_is_named_and_missing() -> None:
    """Its position is still known."""
    tree = trace_page(MemoryLog(), KEY, 1, "league.match-finalized/0/5", T)
    (event,) = tree.causes
    assert (event.position, bool(event.missing)) == ("league.match-finalized/0/5", True)

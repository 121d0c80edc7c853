"""One page of a search in the topic browser: the records found so far, and how much of the log was read for them.

Invariant: unread parts are reported; after a stop, reading can continue where the search was.
"""

from __future__ import annotations

import asyncio
from typing import Any

from highwater.api.dashboard.view import View
from highwater.api.records.searches import SEARCH, begun
from highwater.connectors.replay.cursors import Search
from highwater.schemas.errors import HighwaterError


class Results:
    """A search in one browser."""

    def __init__(self, view: View, search: Search, cursor: str | None) -> None:
        self._view = view
        self._search = search
        self._cursor = cursor
        self._task: asyncio.Task[None] | None = None
        self._kept = 0  # records after which the last cursor continues
        self.records: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}  # of the last progress event
        self.begin_cursor: str | None = None
        self.problem: str | None = None

    def start(self) -> None:
        """Begin to search."""
        self._task = asyncio.create_task(self._run(), name="browse-search")

    @property
    def is_running(self) -> bool:
        """Return whether more may arrive."""
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        """Stop reading; records beyond the last cursor are returned again on the next page."""
        if self._task is not None and self.is_running:
            self._task.cancel()
            self.records = self.records[: self._kept]
            self.state["event"] = "stopped"

    @property
    def next_cursor(self) -> str | None:
        """Return where the next page continues; None: all records were read, or the search still runs."""
        cursor: str | None = None if self.is_running else self.state.get("cursor")
        return cursor

    async def _run(self) -> None:
        try:
            await self._view.count(SEARCH)
            services, principal = self._view.services, self._view.visitor.principal
            async with begun(services, principal, self._search, cursor=self._cursor) as search:
                self.begin_cursor = search.begin["cursor"]
                self.state = dict(search.begin)
                async for event in search.events():
                    self._note(event)
        except HighwaterError as error:
            self.problem = str(error)

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "record":
            self.records.append(event)
        elif event["event"] == "failed":
            self.problem = event["detail"]
        else:
            self.state = event
            self._kept = len(self.records)

    def told(self) -> str:
        """Return the progress in a line."""
        state = self.state
        if not state:
            return "" if self.problem else "searching …"
        read = f"scanned {state['scanned']:,} of {state['total']:,}, {state['found']:,} found"
        if self.is_running:
            return f"{read} …"
        unread = state["total"] - state["scanned"]
        rest = "all records were read" if state["event"] == "end" and not unread else f"{unread:,} are not read yet"
        why = {"stopped": "stopped; ", "end": ""}.get(state["event"], "interrupted; ")
        unanswered = state.get("without_answer", 0)
        left_out = (
            f"; the condition could not be evaluated for {unanswered:,} ({state['first_failure']})"
            if unanswered
            else ""
        )
        return f"{read}; {why}{rest}{left_out}"

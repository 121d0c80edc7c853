"""A query on the SQL page: the rows so far, and what was scanned for them."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from highwater.api.dashboard.view import View
from highwater.api.sql.queries import QUERY, begun
from highwater.schemas.errors import HighwaterError
from highwater.streams.wording import counted

# The rows on a page that a person reads; a file has all rows.
ROWS_SHOWN_MAX = 500
# A cell shows the beginning of a value.
_VALUE_CHARACTERS = 1_000


class Answered:
    """A query in one browser."""

    def __init__(self, view: View, query: str) -> None:
        self._view = view
        self._query = query
        self._task: asyncio.Task[None] | None = None
        self._end: dict[str, Any] | None = None
        self._scanned: list[dict[str, Any]] = []
        self._is_stopped = False
        self.columns: list[dict[str, str]] = []
        self.rows: list[list[Any]] = []
        self.problem: str | None = None

    def start(self) -> None:
        """Run the query."""
        self._task = asyncio.create_task(self._run(), name="sql-query")

    @property
    def is_running(self) -> bool:
        """Return whether more may arrive."""
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        """Stop reading; the rows so far stay."""
        if self._task is not None and self.is_running:
            self._task.cancel()
            self._is_stopped = True

    async def _run(self) -> None:
        try:
            await self._view.count(QUERY)
            services, principal = self._view.services, self._view.visitor.principal
            async with begun(services, principal, self._query, rows=ROWS_SHOWN_MAX) as running:
                self.columns = running.begin["columns"]
                async for event in running.events():
                    self._note(event)
        except HighwaterError as error:
            self.problem = str(error)

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "row":
            self.rows.append(event["values"])
        elif event["event"] == "failed":
            self.problem = event["detail"]
        else:
            self._scanned = event["scanned"]
            if event["event"] == "end":
                self._end = event

    def told(self) -> str:
        """Return the progress in a line."""
        read = ", ".join(
            f"scanned {one['scanned']:,} of {one['held']:,} records of {one['topic']}" for one in self._scanned
        )
        if self.is_running:
            return f"running … {read}"
        if self._end is None:
            return f"stopped; {counted(len(self.rows), 'row')} so far" if self._is_stopped else ""
        cut = (
            f"the first {counted(len(self.rows), 'row')}; a file has all"
            if self._end["is_cut_off"]
            else counted(len(self.rows), "row")
        )
        line = f"{cut} in {self._end['seconds']:.2f} s" + (f"; {read}" if read else "")
        return "; ".join([line, *(sentence for one in self._scanned for sentence in one["open_transactions"])])

    @property
    def is_empty(self) -> bool:
        """Return whether the query ended without a row."""
        return self._end is not None and not self.rows


def shown(value: Any) -> str:
    """Return a value as text: values of other types as JSON, a null as an empty text, and only the beginning of a long one."""
    if value is None:
        return ""
    words = value if isinstance(value, str) else orjson.dumps(value).decode()
    return words if len(words) <= _VALUE_CHARACTERS else words[:_VALUE_CHARACTERS] + " …"

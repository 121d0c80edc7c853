"""Moves of a run that are stored together, and the call that goes with them: what the engine makes and the store takes."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.connectors.engines.changes import Call
from highwater.connectors.models.call_rows import CallEnd
from highwater.schemas.queries import RunFailed
from highwater.streams.queries.memory import Summary
from highwater.streams.queries.runs import Run


@dataclass(frozen=True, slots=True)
class Change:
    """Moves of a run that are stored together: as it was taken, and each step it took since; the last is what is stored.

    `command` asked for them; None: what asked for the run before did. `end` is of the call that they follow from: it is stored
    whatever becomes of them, and they are not where the call has an end already.
    """

    before: Run
    steps: tuple[Run, ...]
    now_ms: int
    call: Call | None = None
    end: CallEnd | None = None
    memory: Summary | None = None
    failure: RunFailed | None = None
    archive_error: str | None = None
    command: str | None = None

    @property
    def after(self) -> Run:
        """The run as it is stored."""
        return self.steps[-1]

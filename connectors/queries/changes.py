"""Moves of a run that are stored together, and the call that belongs to them: passed from the engine to the store."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.connectors.engines.changes import Call
from highwater.connectors.models.call_rows import CallEnd
from highwater.schemas.queries import RunFailed
from highwater.streams.queries.memory import Summary
from highwater.streams.queries.runs import Run


@dataclass(frozen=True, slots=True)
class Change:
    """Moves of a run that are stored together: the run as it was claimed, and each step since; the last is stored.

    `command` requested them; None: the same command as before. `end` belongs to the call that they follow from: it is
    stored even if they fail, and they are not stored if the call already has an end.
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
        """Return the run as it is stored."""
        return self.steps[-1]

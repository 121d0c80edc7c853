"""What an engine stores about work: its state before and after, and the call that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from highwater.connectors.models.call_rows import CallBegin
from highwater.streams.engines.work import Work

WorkT_co = TypeVar("WorkT_co", bound=Work, covariant=True)


class Call(NamedTuple):
    """A call of the language model that is about to be made; `prompt_ids` and `user_key` belong to a query's."""

    stage: str
    attempt: int
    model: str
    prompt_ids: tuple[int, ...] = ()
    user_key: str | None = None


class Change(Protocol[WorkT_co]):
    """Moves of work that are stored together, at `now_ms`."""

    @property
    def before(self) -> WorkT_co:
        """The work as it was claimed."""

    @property
    def after(self) -> WorkT_co:
        """The work as it is to be stored."""

    @property
    def now_ms(self) -> int:
        """The time of the change."""

    @property
    def call(self) -> Call | None:
        """The call that begins with it."""


def call_begins(changes: Sequence[Change[Any]]) -> list[CallBegin]:
    """Return the rows of the calls that begin with changes."""
    return [
        CallBegin(
            change.after.id,
            change.call.stage,
            change.call.attempt,
            change.call.user_key,
            change.call.model,
            change.call.prompt_ids,
            change.now_ms,
        )
        for change in changes
        if change.call is not None
    ]

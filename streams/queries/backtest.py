"""The comparison in a backtest of prompts: a recorded answer and the answer of another prompt or model to the same
input.

Invariant: the input is the recorded one, so that only the named prompt or model differs. A new prompt of the Mentor is
also given to the Assembler, as in live use. Sources are not retrieved again: the Analyzer and the Archivist do not take
part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from highwater.streams.line_diff import parts
from highwater.streams.queries.states import Stage

ASSEMBLER, MENTOR = "Assembler", "Mentor"
# The roles whose prompts can be compared by recorded inputs.
ROLES = (ASSEMBLER, MENTOR)

# [1], [2][5] and [1, 2], as models write them.
_MARKS = re.compile(r"\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")


class Side(NamedTuple):
    """An answer and its cost: tokens of the compared calls; `cost_usd` None: the model has no price."""

    answer: str
    model: str
    tokens: int
    cost_usd: Decimal | None


class Recorded(NamedTuple):
    """A query as it was answered: the input of its stages, the prompts by role, and the outcome.

    `sources`: ids in the order of their numbers, from 1. `sides`: the answer with the usage of the calls that are
    repeated, by the first repeated stage.
    """

    request_id: str
    asked_ms: int
    query: str
    sources: tuple[str, ...]
    draft: str
    payload: str
    prompts: Mapping[str, str]
    models: Mapping[Stage, str]
    sides: Mapping[Stage, Side]


class Comparison(NamedTuple):
    """What changes for a query; `replayed` None: its call failed, and `error` gives the reason."""

    request_id: str
    asked_ms: int
    query: str
    recorded: Side
    replayed: Side | None
    error: str | None
    lost: tuple[str, ...]
    added: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def is_changed(self) -> bool:
        """Return whether the answer's text differs."""
        return bool(self.lines)


class Totals(NamedTuple):
    """What changes over all queries that were answered again; `uncited`: answers without a source, recorded and replayed."""

    replayed: int
    failed: int
    changed: int
    lost: int
    added: int
    uncited: tuple[int, int]
    tokens: tuple[int, int]
    cost_usd: tuple[Decimal | None, Decimal | None]


def first_stage(prompts: Mapping[str, str]) -> Stage:
    """Return the first stage that another prompt changes; another model alone changes only the Responder's."""
    return Stage.ASSEMBLER if prompts else Stage.RESPONDER


def cited(answer: str, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the sources whose numbers an answer contains, in their order; numbers without a source are ignored."""
    numbers = {int(number) for marks in _MARKS.findall(answer) for number in marks.split(",")}
    return tuple(source for number, source in enumerate(sources, 1) if number in numbers)


def changed_lines(before: str, after: str) -> tuple[str, ...]:
    """Return the lines that differ, with `- ` before removed ones and `+ ` before added ones."""
    old, new = before.strip().splitlines(), after.strip().splitlines()
    lines: list[str] = []
    for part in parts(old, new):
        if not part.is_equal:
            lines += [f"- {line}" for line in old[part.begin : part.end]]
            lines += [f"+ {line}" for line in new[part.new_begin : part.new_end]]
    return tuple(lines)


def compare(recorded: Recorded, first: Stage, replayed: Side | None, error: str | None = None) -> Comparison:
    """Return what changes for a query whose stages were repeated from `first` on."""
    side = recorded.sides[first]
    had = cited(side.answer, recorded.sources)
    has = had if replayed is None else cited(replayed.answer, recorded.sources)
    return Comparison(
        recorded.request_id,
        recorded.asked_ms,
        recorded.query,
        side,
        replayed,
        error,
        tuple(one for one in had if one not in has),
        tuple(one for one in has if one not in had),
        () if replayed is None else changed_lines(side.answer, replayed.answer),
    )


def totals(comparisons: Sequence[Comparison]) -> Totals:
    """Return the totals over all queries; both sides include only those that were answered again."""
    answered = [(one.recorded, one.replayed) for one in comparisons if one.replayed is not None]
    before, after = [left for left, _ in answered], [right for _, right in answered]
    return Totals(
        replayed=len(answered),
        failed=len(comparisons) - len(answered),
        changed=sum(one.is_changed for one in comparisons),
        lost=sum(len(one.lost) for one in comparisons),
        added=sum(len(one.added) for one in comparisons),
        uncited=(_uncited(before), _uncited(after)),
        tokens=(sum(one.tokens for one in before), sum(one.tokens for one in after)),
        cost_usd=(summed(one.cost_usd for one in before), summed(one.cost_usd for one in after)),
    )


def summed(costs: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of costs; None if any is unknown, since an incomplete sum would mislead."""
    total = Decimal(0)
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total


def _uncited(sides: Sequence[Side]) -> int:
    return sum(not _MARKS.search(one.answer) for one in sides)

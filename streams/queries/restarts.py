"""What restarting failed queries costs: the stages that are still to be made, and what a call of each took lately. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from highwater.streams.queries.states import Stage

# The stages that make the answer, in order. The archivist follows; where it asks no model, it costs nothing.
ANSWERING = (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER)


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a call of a stage took on average; `cost_usd` None: its model has no price."""

    tokens: float
    cost_usd: float | None


_NOTHING = StageCost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Expected:
    """What restarts are expected to take; None: no call of a stage is known, or its model has no price."""

    tokens: int | None
    cost_usd: float | None


def resumed_stage(*, has_analysis: bool, has_context: bool) -> Stage:
    """The stage that a failed run goes on with: the first one whose result is not stored."""
    if has_context:
        return Stage.RESPONDER
    return Stage.ASSEMBLER if has_analysis else Stage.ANALYZER


def stages_from(stage: Stage) -> tuple[Stage, ...]:
    """The stages of the answer that are still to be made."""
    return ANSWERING[ANSWERING.index(stage) :]


def expected_cost(stages: Iterable[Stage], lately: Mapping[str, StageCost]) -> Expected:
    """What runs that go on with these stages, one entry a run, are expected to take; `lately` by name of the stage."""
    tokens, cost_usd = 0.0, 0.0
    is_priced = True
    for stage in stages:
        for one in (*stages_from(stage), Stage.ARCHIVIST):
            known = lately.get(one, _NOTHING if one is Stage.ARCHIVIST else None)
            if known is None:
                return Expected(None, None)
            tokens += known.tokens
            is_priced = is_priced and known.cost_usd is not None
            cost_usd += known.cost_usd or 0.0
    return Expected(round(tokens), round(cost_usd, 6) if is_priced else None)

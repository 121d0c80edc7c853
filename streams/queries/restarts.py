"""The cost of restarting failed queries: the remaining stages, and the recent cost of a call of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from highwater.streams.queries.states import Stage

# The stages that make the answer, in order. The archivist follows; without a model call it costs nothing.
ANSWERING = (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER)


@dataclass(frozen=True, slots=True)
class StageCost:
    """The average cost of a stage's call; `cost_usd` None: its model has no price."""

    tokens: float
    cost_usd: float | None


_NOTHING = StageCost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected cost of restarts; None: no call of a stage is known, or its model has no price."""

    tokens: int | None
    cost_usd: float | None


def resumed_stage(*, has_analysis: bool, has_context: bool) -> Stage:
    """Return the stage with which a failed run continues: the first one without a stored result."""
    if has_context:
        return Stage.RESPONDER
    return Stage.ASSEMBLER if has_analysis else Stage.ANALYZER


def stages_from(stage: Stage) -> tuple[Stage, ...]:
    """Return the remaining stages of the answer."""
    return ANSWERING[ANSWERING.index(stage) :]


def expected_cost(stages: Iterable[Stage], lately: Mapping[str, StageCost]) -> Expected:
    """Return the expected cost of runs that continue with these stages, one entry per run; `lately` by name of the stage."""
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

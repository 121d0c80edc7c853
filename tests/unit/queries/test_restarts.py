"""Where a failed query continues, and the expected cost of restarting several."""

from __future__ import annotations

import pytest

from highwater.streams.queries.restarts import Expected, StageCost, expected_cost, resumed_stage, stages_from
from highwater.streams.queries.states import Stage

LATELY = {"analyzer": StageCost(100, 0.01), "assembler": StageCost(20, 0.002), "responder": StageCost(3.4, 0.0)}


@pytest.mark.parametrize(
    ("has_analysis", "has_context", "stage", "left"),
    [
        (False, False, Stage.ANALYZER, 3),
        (True, False, Stage.ASSEMBLER, 2),
        (True, True, Stage.RESPONDER, 1),
        (False, True, Stage.RESPONDER, 1),
    ],
)
def test_a_query_continues_with_the_first_result_that_is_missing(
    has_analysis: bool, has_context: bool, stage: Stage, left: int
) -> None:
    """A stored stage is not paid again."""
    assert resumed_stage(has_analysis=has_analysis, has_context=has_context) is stage
    assert len(stages_from(stage)) == left


def test_the_cost_follows_from_what_calls_took_lately() -> None:
    """Every remaining stage of each query counts; the archivist costs its recent average, or nothing."""
    asked = [Stage.RESPONDER, Stage.ASSEMBLER, Stage.ANALYZER]
    assert expected_cost(asked, LATELY) == Expected(round(3 * 3.4 + 2 * 20 + 100), pytest.approx(0.014))
    archived = {**LATELY, "archivist": StageCost(10, 0.1)}
    assert expected_cost([Stage.RESPONDER], archived) == Expected(13, pytest.approx(0.1))
    assert expected_cost([], LATELY) == Expected(0, 0.0)


def test_what_is_unknown_is_not_guessed() -> None:
    """A stage without calls gives no number; a model without a price gives tokens alone."""
    assert expected_cost([Stage.ASSEMBLER], {"responder": StageCost(3, 0.1)}) == Expected(None, None)
    assert expected_cost([Stage.RESPONDER], {"responder": StageCost(3, None)}) == Expected(3, None)

"""A comparison of prompts: cited sources, changed lines, tokens and costs of the same queries."""

from __future__ import annotations

from decimal import Decimal

import pytest

from highwater.streams.queries.backtest import (
    Comparison,
    Recorded,
    Side,
    changed_lines,
    cited,
    compare,
    first_stage,
    totals,
)
from highwater.streams.queries.context import draft_context, with_mentor
from highwater.streams.queries.states import Stage


def side(answer: str, tokens: int = 10, cost: str | None = "0.5") -> Side:
    """An answer of one model."""
    return Side(answer, "small", tokens, None if cost is None else Decimal(cost))


def compared(before: str, after: Side | None) -> Comparison:
    """The comparison of a query with three sources, of which the Responder alone was asked again."""
    recorded = Recorded("r", 1, "why?", ("a", "b", "c"), "draft", "payload", {}, {}, {Stage.RESPONDER: side(before)})
    return compare(recorded, Stage.RESPONDER, after, None if after else "no answer")


@pytest.mark.parametrize(
    ("answer", "found"),
    [("So it is [1][3].", ("a", "c")), ("As [2, 1] say", ("a", "b")), ("[4] and [0] are none", ()), ("none", ())],
)
def test_sources_are_cited_by_their_numbers(answer: str, found: tuple[str, ...]) -> None:
    """In the order of the sources; a number that no source has names nothing."""
    assert cited(answer, ("a", "b", "c")) == found


def test_what_changes_is_lines_and_sources() -> None:
    """A source that another prompt no longer cites is lost, a new one added; lines that stay are not shown."""
    found = compared("It is so [1].\nAs was said.\n", side("It is so [2].\nAs was said.", 12))
    assert (found.lost, found.added) == (("a",), ("b",))
    assert found.lines == ("- It is so [1].", "+ It is so [2].")
    assert found.is_changed


def test_the_same_answer_is_no_change() -> None:
    """Surrounding white space is ignored."""
    assert not compared("It is so [1].", side("It is so [1].\n")).is_changed
    assert changed_lines("", "a\nb") == ("+ a", "+ b")


def test_what_failed_is_in_no_total() -> None:
    """Both sides are summed over the queries that were answered again; a cost that is unknown makes the sum unknown."""
    both = [compared("[1]", side("none", 20)), compared("[1]", None)]
    found = totals(both)
    assert (found.replayed, found.failed, found.changed, found.lost, found.added) == (1, 1, 1, 1, 0)
    assert (found.uncited, found.tokens, found.cost_usd) == ((0, 1), (10, 20), (Decimal("0.5"), Decimal("0.5")))
    assert totals([compared("[1]", side("[1]", cost=None))]).cost_usd == (Decimal("0.5"), None)


def test_a_prompt_changes_what_the_assembler_is_given() -> None:
    """Another Mentor replaces the recorded one, with any tags in a query; a model alone changes the answer."""
    draft = draft_context("<mentor>\nmine", [], {}, [], [], "old <mentor>")
    assert with_mentor(draft, "new") == draft_context("<mentor>\nmine", [], {}, [], [], "new")
    assert (first_stage({"Mentor": "new"}), first_stage({})) == (Stage.ASSEMBLER, Stage.RESPONDER)

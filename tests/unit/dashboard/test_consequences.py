"""The text of confirmations: the object, the consequences, and the price if it is known."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard import consequences
from highwater.api.dashboard.restarts import Jobs, Queries, plan_html
from highwater.streams.queries.states import Stage


def call(tokens_in: int | None, tokens_out: int | None) -> dict[str, Any]:
    """A call of the language model."""
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}


TIMELINE: dict[str, Any] = {
    "query": "why?",
    "user_id": "ann",
    "status": "RESPONDING",
    "stages": [
        {"stage": "analyzer", "attempts": [call(100, 20)]},
        {"stage": "assembler", "attempts": [call(300, 30)]},
        {"stage": "responder", "attempts": [call(None, None), call(1_000, 204)]},
    ],
    "events": [{"status": status} for status in ("NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING")],
    "totals": {"prompt_tokens": 1_400, "completion_tokens": 254},
}
JOB: dict[str, Any] = {
    "kind": "generation", "steps_done": 3, "steps_total": 11, "tokens": 4_321, "organization_id": "acme",
}  # fmt: skip


def test_failed_queries_are_restarted_with_their_price():
    """The reasons, the stages that are left, and what they are expected to take; an organization only if one was named."""
    plan = {
        "queries": [{}, {}],
        "reasons": [{"reason": "no model", "queries": 2}],
        "stages_left": 5,
        "expected_tokens": 12_345,
        "expected_cost_usd": 0.25,
    }
    found = consequences.restart_queries(plan, "")
    assert (found.question, found.button) == ("Restart 2 failed queries?", "Restart 2 queries")
    assert found.happens[0] == "They failed for: no model (2)."
    assert "5 stages; about 12,000 tokens, 0.2500 USD" in found.happens[1]
    unknown = consequences.restart_queries({**plan, "expected_tokens": None, "expected_cost_usd": None}, "acme")
    assert unknown.question == "Restart 2 failed queries of acme?"
    assert "the number of tokens is unknown" in unknown.happens[1]


def test_what_would_be_restarted_is_listed_with_its_reasons():
    """This holds for jobs and queries; external text is escaped, and a refused organization is named."""
    common = {"found": 1, "is_whole": True, "users": [{"user_id": "ann", "count": 1}]}
    job = {"job_id": "j-1", "kind": "export", "user_id": "ann", "error": "<x>", "steps_done": 1, "steps_total": 3}
    jobs = {**common, "reasons": [{"reason": "<x>", "jobs": 1}], "refusal": None}
    shown = plan_html({**jobs, "jobs": [{**job, "failed_at": "2026-11-20T12:00:00Z"}]}, Jobs())
    assert all(one in shown for one in ("1 failed job.", "/jobs/j-1", "1/3", "&lt;x&gt;"))
    query = {"request_id": "q-1", "query": "why?", "user_id": "ann", "error": "e", "stage": "assembler"}
    refused = [{"organization_id": "acme", "queries": 2, "reason": "suspended"}]
    queries = {**common, "reasons": [{"reason": "e", "queries": 1}], "refusals": refused}
    shown = plan_html({**queries, "queries": [{**query, "failed_at": "2026-11-20T12:00:00Z"}]}, Queries())
    assert all(one in shown for one in ("/queries/q-1", "assembler", "2 queries of acme are left out: suspended"))
    assert "finds no failed query" in plan_html({**queries, "queries": []}, Queries())


def test_a_restart_names_its_stage_and_its_price():
    """Tokens of that stage and the later ones, rounded; and the reused results."""
    found = consequences.restart_query(TIMELINE, Stage.RESPONDER)
    assert found.happens[0] == "The answer is computed again from stage Responder; about 1,200 tokens."
    assert "analyzer and assembler is reused" in found.happens[1]
    whole = consequences.restart_query(TIMELINE, Stage.ANALYZER)
    assert "about 1,700 tokens" in whole.happens[0]
    assert whole.happens[1] == "No result of this run is reused."


def test_a_price_that_is_unknown_is_said_to_be():
    """No call was made yet."""
    found = consequences.ask_again({**TIMELINE, "stages": []})
    assert "the number of tokens is unknown" in found.happens[1]


def test_a_long_question_is_shortened():
    """The confirmation stays a screen."""
    found = consequences.ask_again({**TIMELINE, "query": "x" * 1_000})
    assert len(found.happens[0]) < 200


@pytest.mark.parametrize(
    ("statuses", "stages"),
    [
        (["NEW"], ["analyzer"]),
        (["NEW", "ANALYZING", "FAILED"], ["analyzer"]),
        (["NEW", "ANALYZING", "ANALYZED", "FAILED"], ["analyzer", "assembler"]),
        (["NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY"], ["analyzer", "assembler", "responder"]),
    ],
)
def test_a_stage_without_input_is_not_offered(statuses, stages):
    """The API would refuse it: the run never came so far."""
    events = [{"status": status} for status in statuses]
    assert [one.value for one in consequences.restartable_stages({"events": events})] == stages


def test_a_cancelled_query_says_what_stays_paid():
    """All tokens so far."""
    assert "1,654 tokens" in consequences.cancel_query(TIMELINE).happens[1]


def test_a_restarted_job_says_what_is_left():
    """Eight of eleven steps, paid by its organization."""
    found = consequences.restart_job(JOB)
    assert "8 of 11 steps are left" in found.happens[0]
    assert "acme is charged for the rest" in found.happens[1]
    assert "No step is finished yet" in consequences.restart_job({**JOB, "steps_done": 0, "steps_total": 0}).happens[0]


def test_an_approved_outline_says_how_many_slides():
    """One is not many."""
    assert "makes 1 slide," in consequences.approve_outline(1, "acme").happens[0]
    assert "makes 9 slides," in consequences.approve_outline(9, "acme").happens[0]


@pytest.mark.parametrize(("tokens", "said"), [(7, "7"), (99, "99"), (1_204, "1,200"), (123_456, "120,000")])
def test_estimates_have_two_digits(tokens, said):
    """More digits would suggest a precision that does not exist."""
    assert consequences.rounded(tokens) == said


def test_a_redrive_says_what_is_sent_twice_and_what_cannot_be():
    """Each number in words of its own."""
    found = consequences.redrive_letters("feeds.user-active", 3, 1, {"were too large to be kept": 2})
    assert "3 dead letters of feeds.user-active are sent" in found.happens[0]
    assert found.happens[1:3] == (
        "1 of them was sent before and will be sent once more.",
        "2 more cannot be sent: they were too large to be kept.",
    )
    assert consequences.redrive_letters("t", 1, 0, {}).happens[0] == (
        "1 dead letter of t is sent to the partition it came from, unchanged."
    )


def test_a_drop_asks_for_the_topic():
    """It must be typed, because a drop cannot be undone; other affected letters are listed."""
    found = consequences.drop_letters("feeds.user-active", 812, 5, 2)
    assert found.typed == "feeds.user-active"
    assert "up to and including offset 812; 5 are selected" in found.happens[0]
    assert "2 dead letters that you did not select" in found.happens[1]
    assert len(consequences.drop_letters("t", 1, 1, 0).happens) == 2


def test_erasing_takes_the_name():
    """Nothing restores it, so the user is typed."""
    assert consequences.erase_user("ada").typed == "ada"


def test_a_rebuild_says_which_version_follows():
    """Or stays, where nothing changes."""
    found = consequences.rebuild_user("ada", 1_204, 7)
    assert "1,204 are pending" in found.happens[0]
    assert "version 8 is published" in found.happens[1]
    assert "version 7 stays" in found.happens[1]


@pytest.mark.parametrize(
    ("result", "button", "said"),
    [
        (None, "Finalize", "The action is recorded."),
        ({"home_goals": 0, "away_goals": 3}, "Correct", "It corrects the result 0 : 3, which has been published."),
        ({"home_goals": 2, "away_goals": 1}, "Correct", "This result is already known, so nothing changes."),
    ],
)
def test_a_second_result_is_a_correction(result, button, said):
    """The confirmation names the corrected result; for the same result it says that nothing changes."""
    found = consequences.finalize_match({"home": "Reds", "away": "Blues", "season": "s", "result": result}, 2, 1)
    assert "The result is Reds 2 : 1 Blues" in found.happens[0]
    assert (found.button, found.happens[1]) == (button, said)


def test_a_retraction_says_what_goes():
    """Reads at once, clusters at the next rebuild, answers too."""
    found = consequences.retract_insight("i#1", "kafka")
    assert "i#1 of channel kafka leaves reads at once" in found.happens[0]
    assert "withdrawn" in found.happens[1]

"""The text of a confirmation before an action: the question, the effects, and what cannot be undone.

Invariant: pure functions of what the page shows; a confirmation names the object, the resulting events, and their price
if known. An action that deletes permanently requires typing a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.streams.queries.states import Stage
from highwater.streams.wording import agreed, counted

_ASKED_AGAIN = (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER, Stage.ARCHIVIST)
_QUESTION_CHARACTERS = 120
_REASONS_NAMED = 3
_EVENT_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Consequence:
    """A confirmation; `typed` must be typed first, because the loss cannot be undone."""

    question: str
    happens: tuple[str, ...]
    button: str
    typed: str | None = None


# -- queries
# ----------------------------------------------------------------------------------------------------------------


def tokens_of(stages: Sequence[Mapping[str, Any]]) -> int:
    """Return the tokens of all calls of stages or steps in a timeline."""
    return sum(
        (call["prompt_tokens"] or 0) + (call["completion_tokens"] or 0)
        for stage in stages
        for call in stage["attempts"]
    )


def expected_tokens(timeline: Mapping[str, Any], stage: Stage) -> int | None:
    """Return the tokens that the stages from one on used in this run; None if they have made no call yet."""
    wanted = {one.value for one in _ASKED_AGAIN[_ASKED_AGAIN.index(stage) :]}
    again = [one for one in timeline["stages"] if one["stage"] in wanted]
    return tokens_of(again) or None


def rounded(tokens: int) -> str:
    """Return an estimated number of tokens: two digits are enough."""
    digits = max(0, len(str(tokens)) - 2)
    return f"{round(tokens, -digits):,}"


def _price(tokens: int | None) -> str:
    return "the number of tokens is unknown" if tokens is None else f"about {rounded(tokens)} tokens"


def restartable_stages(timeline: Mapping[str, Any]) -> list[Stage]:
    """Return the stages that a run can be restarted from: the first, and each whose predecessor has succeeded."""
    ended = {event["status"] for event in timeline["events"]}
    found = [Stage.ANALYZER]
    found += [Stage.ASSEMBLER] if "ANALYZED" in ended else []
    return found + ([Stage.RESPONDER] if "READY" in ended else [])


def cancel_query(timeline: Mapping[str, Any]) -> Consequence:
    """Describe cancelling a query in progress."""
    used = timeline["totals"]["prompt_tokens"] + timeline["totals"]["completion_tokens"]
    return Consequence(
        "Cancel this query?",
        (
            f"The query fails as cancelled; it is in stage {timeline['status'].lower()}.",
            f"{counted(used, 'token')} used so far must still be paid. A query that ends first keeps its answer.",
        ),
        "Cancel the query",
    )


def restart_query(timeline: Mapping[str, Any], stage: Stage) -> Consequence:
    """Describe restarting a query from a stage."""
    kept = _ASKED_AGAIN[: _ASKED_AGAIN.index(stage)]
    said = " and ".join(one.value for one in kept)
    return Consequence(
        f"Restart from the {stage.value}?",
        (
            f"The answer is computed again from stage {stage.value.capitalize()}; {_price(expected_tokens(timeline, stage))}.",
            f"The result of the {said} is reused." if kept else "No result of this run is reused.",
            "A new query is created; this one does not change. The action is recorded.",
        ),
        "Restart",
    )


def ask_again(timeline: Mapping[str, Any]) -> Consequence:
    """Describe asking the same question again."""
    return Consequence(
        "Ask again?",
        (
            f"“{shortened(timeline['query'])}” is asked again for {timeline['user_id']}.",
            f"It begins at the first stage; {_price(expected_tokens(timeline, Stage.ANALYZER))}.",
            "A new query is created; this one does not change.",
        ),
        "Ask again",
    )


def shortened(words: str) -> str:
    """Return the beginning of a text."""
    return words if len(words) <= _QUESTION_CHARACTERS else f"{words[: _QUESTION_CHARACTERS - 1]}…"


# -- jobs
# -------------------------------------------------------------------------------------------------------------------


def revoke_job(job: Mapping[str, Any]) -> Consequence:
    """Describe cancelling a job."""
    return Consequence(
        "Cancel this job?",
        (
            f"The {job['kind']} stops after {job['steps_done']} of {job['steps_total']} steps.",
            "Further results of its worker are not stored.",
            "A job that was cancelled cannot be restarted. A job that ends first keeps its result.",
        ),
        "Cancel the job",
    )


def restart_job(job: Mapping[str, Any]) -> Consequence:
    """Describe restarting a failed job."""
    done, total = job["steps_done"], job["steps_total"]
    left = (
        f"{total - done} of {counted(total, 'step')} {agreed(total - done, 'is', 'are')} left."
        if total
        else "No step is finished yet."
    )
    price = f" The steps so far took {counted(job['tokens'], 'token')}." if job["tokens"] else ""
    return Consequence(
        "Restart this job?",
        (
            f"The {job['kind']} continues after its last stored step; {left}",
            f"No step is repeated or paid twice.{price} {job['organization_id']} is charged for the rest.",
        ),
        "Restart the job",
    )


def _reasons(plan: Mapping[str, Any], noun: str) -> str:
    reasons = ", ".join(f"{one['reason']} ({one[noun]:,})" for one in plan["reasons"][:_REASONS_NAMED])
    rest = len(plan["reasons"]) - _REASONS_NAMED
    more = f" and {counted(rest, 'other reason')}" if rest > 0 else ""
    return f"They failed for: {reasons}{more}."


def restart_queries(plan: Mapping[str, Any], organization_id: str) -> Consequence:
    """Describe restarting failed queries in bulk."""
    count, tokens, cost = len(plan["queries"]), plan["expected_tokens"], plan["expected_cost_usd"]
    price = _price(tokens) + ("" if cost is None else f", {cost:,.4f} USD, judged by the calls of the last week")
    return Consequence(
        f"Restart {counted(count, 'failed query', 'failed queries')}{f' of {organization_id}' if organization_id else ''}?",
        (
            _reasons(plan, "queries"),
            f"Each continues from the stage that failed: {counted(plan['stages_left'], 'stage')}; {price}.",
            "Each becomes a new query of its user, who has one query in progress at a time.",
            "They begin after 10 seconds in which you can stop this. The action is recorded.",
        ),
        f"Restart {count:,} queries",
    )


def restart_jobs(plan: Mapping[str, Any], organization_id: str) -> Consequence:
    """Describe restarting failed jobs in bulk."""
    count, left = len(plan["jobs"]), counted(plan["steps_left"], "step is", "steps are")
    return Consequence(
        f"Restart {counted(count, 'failed job')} of {organization_id}?",
        (
            _reasons(plan, "jobs"),
            f"Each continues after its last stored step; {left} left, as far as is known.",
            f"Nothing is made or paid twice. {organization_id} is charged for the rest.",
            "They begin after 10 seconds in which you can stop this.",
        ),
        f"Restart {count:,} jobs",
    )


def approve_waiting_outline(slides: int, *, is_edited: bool) -> Consequence:
    """Describe making the slides of a waiting outline."""
    return Consequence(
        "Make the slides of this outline?",
        (
            f"The job makes {slides} slide{'' if slides == 1 else 's'}, each with a call of the language model.",
            "Your changes replace the outline." if is_edited else "The outline is used as it is.",
            "An approval cannot be undone; the job can be cancelled.",
        ),
        "Approve",
    )


def approve_outline(slides: int, organization_id: str) -> Consequence:
    """Describe making a deck from an outline."""
    return Consequence(
        "Make a deck from this outline?",
        (
            f"A new job makes {slides} slide{'' if slides == 1 else 's'}, each with a call of the language model.",
            f"{organization_id} is charged for the deck.",
        ),
        "Approve and make the deck",
    )


def submit_job_again(job: Mapping[str, Any]) -> Consequence:
    """Describe submitting an ended job again."""
    price = (
        f"the last one took {counted(job['tokens'], 'token')}" if job["tokens"] else "the number of tokens is unknown"
    )
    return Consequence(
        "Submit this job again?",
        (
            f"A new {job['kind']} begins from its first step; {price}.",
            f"{job['organization_id']} is charged for it. This job stays as it is.",
        ),
        "Submit again",
    )


# -- dead letters
# -----------------------------------------------------------------------------------------------------------


def _letters(count: int) -> str:
    return counted(count, "dead letter")


def redrive_letters(topic: str, count: int, sent_before: int, refused: Mapping[str, int]) -> Consequence:
    """Describe sending dead letters again, as counted by a dry run."""
    sent = agreed(count, "is sent to the partition it", "are sent to the partitions they")
    happens = [f"{_letters(count)} of {topic} {sent} came from, unchanged."]
    if sent_before:
        happens.append(f"{counted(sent_before, 'of them was', 'of them were')} sent before and will be sent once more.")
    happens += [f"{number:,} more cannot be sent: they {why}." for why, number in refused.items()]
    happens.append("For 10 seconds nothing is sent, and you can stop it. Each dead letter that is sent is recorded.")
    return Consequence(f"Redrive {_letters(count)}?", tuple(happens), "Redrive")


def drop_letters(topic: str, last_offset: int, found: int, others_open: int) -> Consequence:
    """Describe deleting dead letters up to the last selected one."""
    happens = [
        f"Kafka deletes every dead letter of {topic} up to and including offset {last_offset:,}; {found:,} are selected.",
        "They cannot be restored. For 10 seconds nothing is deleted, and you can stop it.",
    ]
    if others_open:
        happens.insert(
            1, f"{_letters(others_open)} that you did not select and that were not sent again would be deleted too."
        )
    return Consequence("Delete dead letters?", tuple(happens), "Delete", typed=topic)


def send_edited_letter(letter: str, topic: str, changes: Sequence[str]) -> Consequence:
    """Describe sending the replacement of a dead letter."""
    changed = [f"{one}." for one in changes] or ["No field was changed: the event is sent as it was decoded."]
    return Consequence(
        "Send the edited event?",
        (
            *changed,
            f"A new event goes to {topic}; the dead letter {letter} stays, marked as edited.",
            "It is sent at once.",
        ),
        "Send the edited event",
    )


# -- users, insights, matches
# -----------------------------------------------------------------------------------------------


def rebuild_user(user_id: str, pending: int, version: int) -> Consequence:
    """Describe rebuilding a user's clusters and feed now."""
    return Consequence(
        f"Rebuild the clusters of {user_id} now?",
        (
            f"They are rebuilt from all insights of the subscribed channels; {pending:,} are pending.",
            f"If something changes, version {version + 1} is published; if nothing does, version {version} stays.",
            "The action is recorded, and its outcome appears below.",
        ),
        "Rebuild now",
    )


def erase_user(user_id: str) -> Consequence:
    """Describe erasing all data of a user."""
    return Consequence(
        f"Erase the data of {user_id}?",
        (
            "All data of the user is deleted: subscriptions, clusters and feed; queries, jobs and decks.",
            "Votes, predictions, comments and sessions are deleted too.",
            "It cannot be restored. The action is recorded; paid usage stays counted.",
        ),
        "Erase",
        typed=user_id,
    )


def retract_insight(insight_id: str, channel_id: str) -> Consequence:
    """Describe retracting an insight."""
    return Consequence(
        "Retract this insight?",
        (
            f"{insight_id} of channel {channel_id} leaves reads at once, and clusters and feeds at the next rebuild.",
            "Answers that were made from it are withdrawn.",
            "It keeps its number and cannot be restored.",
        ),
        "Retract",
    )


def finalize_match(meta: Mapping[str, Any], home_goals: int, away_goals: int) -> Consequence:
    """Describe publishing or correcting the result of a match."""
    result = f"{meta['home']} {home_goals} : {away_goals} {meta['away']}"
    known = meta.get("result")
    was = None if known is None else (known["home_goals"], known["away_goals"])
    has_more = "extra_time" in meta or "penalties" in meta
    happens = [
        f"The result is {result}. Table, results, statistics and the rating of {meta['season']} are computed from it."
    ]
    if was == (home_goals, away_goals) and not has_more:
        happens.append("This result is already known, so nothing changes.")
    elif was is not None:
        happens.append(f"It corrects the result {was[0]} : {was[1]}, which has been published.")
    if has_more:
        happens.append("It has no extra time and no penalties: use highwater matches finalize to set these.")
    happens.append("The action is recorded.")
    return Consequence(
        "Correct the result?" if was else "Finalize the match?", tuple(happens), "Correct" if was else "Finalize"
    )


# -- topics and consumer groups
# ---------------------------------------------------------------------------------------------


def publish_event(topic: str, consumers: Sequence[str], event: str) -> Consequence:
    """Describe appending an event to a topic; `event` is its JSON."""
    read = f" {', '.join(consumers)} will read it." if consumers else ""
    happens = (
        f"One event is appended to {topic}.{read}",
        "An event cannot be changed: it stays until the retention of its topic ends.",
        f"The event: {event if len(event) <= _EVENT_CHARACTERS else event[: _EVENT_CHARACTERS - 1] + '…'}",
    )
    return Consequence("Publish this event?", happens, "Publish")


def reset_group(group: str, changed: Sequence[Mapping[str, Any]]) -> Consequence:
    """Describe setting where a group reads next; `changed` are the partitions whose position changes."""
    again = sum(max(0, (one["before"] or 0) - one["after"]) for one in changed)
    skipped = sum(max(0, one["after"] - one["before"]) for one in changed if one["before"] is not None)
    happens = [f"{group} continues from another offset in {counted(len(changed), 'partition')}."]
    if again:
        happens.append(f"It reads {counted(again, 'event')} again and repeats the effects, unless it recognizes them.")
    if skipped:
        happens.append(f"It skips {skipped:,} events.")
    happens.append("Kafka refuses the reset if the group is running again. The action is recorded.")
    return Consequence(f"Reset {group}?", tuple(happens), "Reset")

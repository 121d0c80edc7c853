"""Repeats each kind of recorded decision: by the live rule, on the inputs in its event.

Invariant: inputs are compared with the events they came from, if those are other events; the rule is the live one. A
judge returns None for a correct decision, else the field, the rule's value, and the recorded value.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias

from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.notes import Noting
from highwater.schemas.chunks import INGEST_DECIDED, INGEST_PROGRESSED, SWEEP_REQUESTED, IngestDecided, SweepRequested
from highwater.schemas.envelope import caused_by, iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import (
    CHANNEL_ADVANCED,
    CHANNEL_DIRTY,
    REBUILD_REQUESTED,
    ChannelAdvanced,
    ChannelDirty,
    RebuildRequested,
)
from highwater.schemas.jobs import USAGE_FLUSHED, USAGE_RECORDED, UsageFlushed, UsageRecorded
from highwater.schemas.league import MATCH_CHANGED, REFRESH_REQUESTED, MatchChanged, RefreshRequested
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.queries import PIPELINE_STAGE, STAGE_REQUESTED, StageRequested
from highwater.schemas.streams import TICK
from highwater.schemas.topic_names import EventT, TopicName, event_of
from highwater.streams.chunks import completion
from highwater.streams.chunks.states import Outcome
from highwater.streams.chunks.temperature import HOUR_MS
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import Rebuild, Trigger, UserFacts, should_rebuild
from highwater.streams.league.affected import affected_keys
from highwater.streams.league.state import apply_changed
from highwater.streams.queries.states import ArchiveStatus, Status, stage_at

Event = Mapping[str, Any]
Verdict = tuple[str, Any, Any]

_Amount: TypeAlias = Literal["presentations", "slides", "tokens", "cost_cents"]
_AMOUNTS: tuple[_Amount, ...] = ("presentations", "slides", "tokens", "cost_cents")
_Count: TypeAlias = Literal[
    "seen", "failed", "inserted", "updated", "unchanged", "expected", "full", "force", "truncated", "is_superseded"
]
_COUNTS: tuple[_Count, ...] = (
    "seen", "failed", "inserted", "updated", "unchanged", "expected", "full", "force", "truncated", "is_superseded",
)  # fmt: skip


class LeftOpenError(Exception):
    """A decision that cannot be judged, with why."""


class DecisionInputs:
    """The inputs of decisions, from the events that published them.

    Args:
        notes: where they are stored; only the times of ticks are held in memory, eight bytes each for as long as ticks
            are kept.
    """

    def __init__(self, notes: Noting) -> None:
        self.notes = notes
        self.ticks: dict[int, tuple[int, array[int]]] = {}

    def note(self, record: Record, event: Event) -> None:
        """Note an event that decisions are based on; those of a partition come in order."""
        topic = record.topic
        if tick := event_of(TICK, topic, event):
            _, times = self.ticks.setdefault(record.partition, (record.offset, array("q")))
            times.append(tick["now"])
        elif advanced := event_of(CHANNEL_ADVANCED, topic, event):
            self._note_head(advanced)
        elif stage := event_of(PIPELINE_STAGE, topic, event):
            self.notes["stage", stage["id"], stage["revision"], stage["status"]] = True
        elif progress := event_of(INGEST_PROGRESSED, topic, event):
            key = completion.source_key(progress), progress["ingest_id"], progress["revision"]
            self.notes["progress", *key] = dict(progress)
        elif usage := event_of(USAGE_RECORDED, topic, event):
            self._note_usage(usage)
        elif changed := event_of(MATCH_CHANGED, topic, event):
            self._note_match(record, changed)

    def _note_head(self, event: ChannelAdvanced) -> None:
        channel, head, at = event["channel_id"], event["head"], event["arrived_at"]
        self.notes["head", channel, head] = at
        self.notes["since", channel, at] = min(head, self.notes.get(("since", channel, at)) or head)
        self.notes["newest", channel] = max(head, self.notes.get(("newest", channel)) or head)

    def _note_usage(self, event: UsageRecorded) -> None:
        """Compute the sums up to each number of the run without a gap; later numbers wait."""
        key, seq = (event["organization_id"], event["period"]), event["seq"]
        upto, highest = self.notes.get(("upto", *key)) or (0, 0)
        if seq <= upto or self.notes.get(("usage", *key, seq)) is not None:
            return
        self.notes["usage", *key, seq] = [event[name] for name in _AMOUNTS]
        sums = self.notes.get(("sums", *key, upto)) or [0] * len(_AMOUNTS)
        while (amounts := self.notes.get(("usage", *key, upto + 1))) is not None:
            upto += 1
            sums = [one + other for one, other in zip(sums, amounts, strict=True)]
            self.notes["sums", *key, upto] = sums
        self.notes["upto", *key] = (upto, max(highest, seq))

    def _note_match(self, record: Record, event: MatchChanged) -> None:
        key = "match", event["season"], event["match_id"]
        known = self.notes.get(key)
        try:
            self.notes[key] = apply_changed(known, event)
        except InvalidEventError:
            return  # dead-lettered by the live worker
        self.notes["affected", str(record.position)] = affected_keys(known, event)

    def tick_at(self, position: Position | None) -> int:
        """Return the `now` of the tick at a position.

        Raises:
            LeftOpenError: the log no longer has it.
        """
        if position is None or position.topic != TICK:
            raise LeftOpenError("not decided at a tick")
        first, times = self.ticks.get(position.partition, (0, array("q")))
        if position.offset < first or not times:
            raise LeftOpenError("the log no longer has its tick")
        place = position.offset - first
        return times[place] if place < len(times) else -1


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of the rules besides the events."""

    policy: Policy


def judge_rebuild(event: RebuildRequested, record: Record, told: DecisionInputs, rules: Rules) -> Verdict | None:
    """Repeat `should_rebuild` on the facts in the request, at its tick."""
    now = told.tick_at(_position(event["tick_position"]))
    if now != event["planned_at"]:
        return "planned_at", now, event["planned_at"]
    if str(caused_by(record.headers)) != event["tick_position"]:
        return "ce_causedby", event["tick_position"], str(caused_by(record.headers))
    if event["policy_hash"] != rules.policy.hash:
        raise LeftOpenError("made by another policy than the active one")
    facts = UserFacts(
        plan=event["plan"],
        pending=event["pending"],
        is_subscribed=True,
        last_active_at=event["last_active_at"],
        last_clustered_at=event["last_clustered_at"],
        last_checked_at=event["last_checked_at"],
        last_enqueued_at=event["last_enqueued_at"],
        is_demanded=event["trigger"] == Trigger.MANUAL,
        is_changed=event["is_changed"],
    )
    decision = should_rebuild(facts, rules.policy, now)
    if decision != Rebuild(Trigger(event["trigger"])):
        return "decision", str(decision), event["trigger"]
    return None


def judge_dirty(event: ChannelDirty, record: Record, told: DecisionInputs, _rules: Rules) -> Verdict | None:
    """Check that the head was published for the channel, at its tick, and that it is dirty since one of the advances up to it."""
    now = told.tick_at(caused_by(record.headers))
    if now != event["now"]:
        return "now", now, event["now"]
    channel = event["channel_id"]
    arrived_at = told.notes.get(("head", channel, event["head"]))
    if arrived_at is None:
        return "head", f"a reported one; the newest is {told.notes.get(('newest', channel))}", event["head"]
    first = told.notes.get(("since", channel, event["dirty_since"]))
    if first is None or first > event["head"]:
        return "dirty_since", f"when a head up to that arrived; itself at {arrived_at}", event["dirty_since"]
    return None


def judge_stage(event: StageRequested, _record: Record, told: DecisionInputs, _rules: Rules) -> Verdict | None:
    """Check the stage that a run waits for in its status, and that the run was reported in it."""
    stage = stage_at(Status(event["status"]), ArchiveStatus.WAITING)
    if stage != event["stage"]:
        return "stage", stage, event["stage"]
    if told.notes.get(("stage", event["request_id"], event["revision"], event["status"])) is None:
        return (
            "status",
            "a queries.pipeline-stage that reports it",
            f"{event['status']} at revision {event['revision']}",
        )
    return None


def judge_ingest(event: IngestDecided, _record: Record, told: DecisionInputs, _rules: Rules) -> Verdict | None:
    """Repeat `decide` on the counts, which are those of the progress that the decision names."""
    key = completion.source_key(event)
    progress: Any = told.notes.get(("progress", key, event["ingest_id"], event["revision"]))
    if progress is None:
        return "revision", "a chunks.ingest-progressed that reports it", event["revision"]
    for name in _COUNTS:
        if progress[name] != event[name]:
            return name, progress[name], event[name]
    decision = completion.decide(completion.progressed(None, progress), event["decided_at"])
    outcome = None if decision is None else decision.outcome
    if outcome != event["outcome"]:
        return "outcome", outcome, event["outcome"]
    is_complete = outcome is Outcome.COMPLETE
    return None if event["marks_orphans"] == is_complete else ("marks_orphans", is_complete, event["marks_orphans"])


def judge_usage(event: UsageFlushed, _record: Record, told: DecisionInputs, _rules: Rules) -> Verdict | None:
    """Check the totals up to their number, summed from the recorded usage."""
    key, upto = (event["organization_id"], event["period"]), event["upto_seq"]
    known, highest = told.notes.get(("upto", *key)) or (0, 0)
    if known < upto:
        return "upto_seq", f"{known} (jobs.usage-recorded has no {known + 1})", upto
    if highest > known:
        raise LeftOpenError("numbers beyond a missing one are in its totals")
    sums = told.notes.get(("sums", *key, upto)) or [0] * len(_AMOUNTS)
    for name, total in zip(_AMOUNTS, sums, strict=True):
        if total != event[name]:
            return name, total, event[name]
    return None


def judge_refresh(event: RefreshRequested, record: Record, told: DecisionInputs, _rules: Rules) -> Verdict | None:
    """Check the documents that a change can affect, by the state of the match before it."""
    if event["reason"] != "match-changed":
        raise LeftOpenError(f"of {event['reason']}: its event does not carry what it was made from")
    cause = caused_by(record.headers)
    expected = None if cause is None else told.notes.get(("affected", str(cause)))
    if expected is None:
        return "ce_causedby", "a league.match-changed", str(cause)
    if event["keys"] == expected:
        return None
    # After a crash a change is published again from a row that contains it already: then more is not named than the
    # first time.
    if set(event["keys"]) <= set(expected):
        raise LeftOpenError("requested again after a crash, by a row that knew the change")
    return "keys", expected, event["keys"]


def judge_sweep(event: SweepRequested, _record: Record, _told: DecisionInputs, _rules: Rules) -> Verdict | None:
    """Check the hour of its tick."""
    hour = iso_from_ms(event["now"] // HOUR_MS * HOUR_MS)
    return None if event["sweep"] == hour else ("sweep", hour, event["sweep"])


def _position(text: str) -> Position | None:
    try:
        return parse_position(text)
    except InvalidEventError:
        return None


@dataclass(frozen=True, slots=True)
class Decision(Generic[EventT]):
    """A kind of decision: its topic, the events with its inputs, and its judge."""

    topic: TopicName[EventT]
    sources: tuple[str, ...]
    judge: Callable[[EventT, Record, DecisionInputs, Rules], Verdict | None]
    excluded: Mapping[str, str] = field(default_factory=dict)


DECISIONS: tuple[Decision[Any], ...] = (
    Decision(
        REBUILD_REQUESTED, (TICK,), judge_rebuild,
        {
            "pending, plan and times as inputs": "as the agent held them; what it holds is compared with tables",
            "in_flight, is_subscribed": "not in the event: nobody asks in flight, and nobody is due who subscribes to nothing",
        },
    ),
    Decision(CHANNEL_DIRTY, (TICK, CHANNEL_ADVANCED), judge_dirty),
    Decision(STAGE_REQUESTED, (PIPELINE_STAGE,), judge_stage, {"queued": "of two topics' order"}),
    Decision(INGEST_DECIDED, (INGEST_PROGRESSED,), judge_ingest),
    Decision(USAGE_FLUSHED, (USAGE_RECORDED,), judge_usage),
    Decision(REFRESH_REQUESTED, (MATCH_CHANGED,), judge_refresh),
    Decision(SWEEP_REQUESTED, (), judge_sweep),
)  # fmt: skip
NOT_JUDGED: Mapping[str, str] = {
    "cache.prewarm-requested": "a window begins by the agent's rows, which are compared as a table",
    "chunks.namespace-rated": "the event does not say by which passport it was rated",
    "feeds.rebuild-finished, feeds.clusters-rebuilt": "results of work, held against what is stored (effects)",
}

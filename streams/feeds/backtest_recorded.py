"""The live policy over the recorded log: exactly the actual requests, from the events they were based on.

Invariant: a request counts as reproduced only if the live rules, on a row built from the recorded events, request at
that tick for the same reason and number. The log does not record in which order the agent read events of different
topics around a tick. There the recorded decision reveals the order: events just before a tick may be delayed until
after it, and events just after it may be read before it. Merges are commutative and idempotent, so every such row is
one that the agent could have had. The number of such reorderings is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any, NamedTuple

from highwater.schemas.feeds import RebuildFinished, RebuildRequested
from highwater.schemas.positions import parse_position
from highwater.streams.due import DueIndex
from highwater.streams.feeds.agents import USERS_PER_TICK_MAX
from highwater.streams.feeds.backtest import Answered, Changed, Costs, Happening, Notification, Player, Request, Ticked
from highwater.streams.feeds.novelty import judge, pending_of
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import Rebuild, Trigger
from highwater.streams.feeds.state import (
    User,
    apply_changed,
    apply_finished,
    apply_head,
    apply_requested,
    decode_user,
    encode_user,
)

# How far from a tick an event may have been read on the other side of it: a worker that was down catches up in less.
LATE_MS = 600_000
# Events of one user that may be delayed or read early at a tick; more is a difference, not an order.
_MOVED_MAX = 64


class RecordedRequest(NamedTuple):
    """A recorded request: the decision, its offset (the last one, if it was sent twice), and its outcome."""

    trigger: Trigger
    pending: int
    plan: str
    offset: int
    answer: RebuildFinished | None
    answered_ms: int = 0
    policy_hash: str = ""


# By user and the tick's `now`: a tick requests nobody twice.
AskedBy = Mapping[tuple[str, int], RecordedRequest]


@dataclass
class Comparison:
    """Recorded requests compared with those of the replay: `reordered` needed another order than the arrival.

    `other_policy`: recorded requests of a policy with another hash; they may well differ.
    """

    recorded: int = 0
    other_policy: int = 0
    same: int = 0
    reordered: int = 0
    missing: list[Request] = field(default_factory=list)
    extra: list[Request] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Return whether the replay requested exactly what was recorded."""
        return not self.missing and not self.extra and self.same == self.recorded

    def document(self) -> dict[str, Any]:
        """Return it as JSON, with the first few differences."""
        return {
            "recorded": self.recorded,
            "other_policy": self.other_policy,
            "same": self.same,
            "reordered": self.reordered,
            "missing": len(self.missing),
            "extra": len(self.extra),
            "first_differences": [
                {"kind": kind, "user_id": one.user_id, "planned_at_ms": one.now_ms, "trigger": one.trigger.value}
                for kind, found in (("missing", self.missing), ("extra", self.extra))
                for one in found[:5]
            ],
        }


class _Merge(NamedTuple):
    at_ms: int
    kind: str
    apply: Callable[[User], None]


class _Order(NamedTuple):
    """A row that the agent may have had, the events that it had not read, and how many merges were undone for it."""

    row: User
    held: tuple[_Merge, ...]
    undone: int


# Kinds of events of one user that may be read early or late together; each kind is a topic, and each topic keeps its
# order.
_KINDS = tuple(frozenset(kinds) for size in (3, 1, 2) for kinds in combinations(("changed", "told", "answered"), size))


class RecordedPlayer(Player):
    """The live policy with the recorded answers."""

    def __init__(self, policy: Policy, costs: Costs, partition_of: Callable[[str], int], causes: AskedBy) -> None:
        super().__init__(policy, costs, partition_of)
        other = sum(one.policy_hash not in ("", policy.hash) for one in causes.values())
        self.comparison = Comparison(recorded=len(causes), other_policy=other)
        self._causes = causes
        self._asked_at: dict[tuple[int, int], list[str]] = {}
        for user_id, now_ms in causes:
            self._asked_at.setdefault((partition_of(user_id), now_ms), []).append(user_id)
        self._coming: dict[str, deque[_Merge]] = {}
        self._recent: dict[str, deque[tuple[bytes, _Merge]]] = {}

    def play(self, history: Iterable[Happening]) -> None:
        """Play the complete recorded history."""
        whole: Sequence[Happening] = list(history)
        for happening in whole:
            for user_id, merge in _merges_of(happening):
                self._coming.setdefault(user_id, deque()).append(merge)
        super().play(whole)
        played = {(request.user_id, request.now_ms) for request in self.requests}
        for (user_id, now_ms), one in self._causes.items():
            if (user_id, now_ms) not in played:
                self.comparison.missing.append(Request(user_id, -1, now_ms, one.trigger, one.pending))

    def _happen(self, happening: Happening) -> None:
        if isinstance(happening, Changed | Notification | Answered):
            for user_id, merge in _merges_of(happening):
                self._coming[user_id].popleft()
                self._merge(user_id, merge)
            return
        super()._happen(happening)

    def _merge(self, user_id: str, merge: _Merge) -> None:
        recent = self._recent.setdefault(user_id, deque(maxlen=_MOVED_MAX))
        recent.append((encode_user(self._users.get(user_id, User())), merge))
        self._change(user_id, merge.apply)

    def _tick(self, tick: Ticked) -> None:
        if not self._admit(tick):
            return
        index = self._index(tick.partition)
        due = index.take(tick.now_ms, USERS_PER_TICK_MAX)
        asked = self._asked_at.get((tick.partition, tick.now_ms), [])
        for user_id in dict.fromkeys([*due, *asked]):
            if (user_id, tick.now_ms) in self._causes:
                self._judge_asked(user_id, tick, index)
            else:
                self._judge_unasked(user_id, tick, index)

    def _judge_asked(self, user_id: str, tick: Ticked, index: DueIndex) -> None:
        """Judge a tick with a recorded request: search it among the possible orders of the user's events."""
        wanted = self._causes[user_id, tick.now_ms]
        for number, order in enumerate(self._orders(user_id, tick)):
            pending = pending_of(order.row)
            verdict = judge(order.row, pending, self._policy, tick.now_ms)
            is_same = (pending.total, order.row.plan) == (wanted.pending, wanted.plan)
            if isinstance(verdict, Rebuild) and verdict.trigger is wanted.trigger and is_same:
                self.comparison.same += 1
                self.comparison.reordered += number > 0
                self._users[user_id] = order.row
                self._judge(user_id, tick, index)
                self._put_back(user_id, order)
                return
        index.put(user_id, tick.now_ms)  # reported as missing at the end

    def _judge_unasked(self, user_id: str, tick: Ticked, index: DueIndex) -> None:
        """Judge a tick without a recorded request: if the rules would request, the responsible events were read after
        the tick.
        """
        for number, order in enumerate(self._orders(user_id, tick)):
            verdict = judge(order.row, pending_of(order.row), self._policy, tick.now_ms)
            if isinstance(verdict, Rebuild):
                continue
            self.comparison.reordered += number > 0
            self._users[user_id] = order.row
            self._judge(user_id, tick, index)
            self._put_back(user_id, order)
            return
        user = self._users[user_id]
        verdict = judge(user, pending_of(user), self._policy, tick.now_ms)
        if isinstance(verdict, Rebuild):
            found = Request(user_id, tick.number, tick.now_ms, verdict.trigger, pending_of(user).total)
            self.comparison.extra.append(found)
        self._judge(user_id, tick, index)

    def _orders(self, user_id: str, tick: Ticked) -> Iterator[_Order]:
        """Yield rows that the agent may have had at a tick, the likeliest first: in order of arrival, without some
        events, with some more.

        Topics are read concurrently, so of each kind of event the last few may be missing, or the next few may be
        present.
        """
        user = self._users.setdefault(user_id, User())
        yield _Order(user, (), 0)
        recent = self._recent.get(user_id, ())
        yield from _without_last([one for one in recent if one[1].at_ms >= tick.at_ms - LATE_MS])
        coming = islice(self._coming.get(user_id, ()), _MOVED_MAX)
        yield from _with_next(user, [one for one in coming if one.at_ms <= tick.at_ms + LATE_MS])

    def _put_back(self, user_id: str, order: _Order) -> None:
        """Apply delayed events after the tick; rows from before the first of them may still be restored."""
        recent = self._recent.get(user_id)
        if recent is not None:
            for _ in range(min(order.undone, len(recent))):
                recent.pop()
        for merge in order.held:
            self._merge(user_id, merge)

    def _request(self, user_id: str, user: User, trigger: Trigger, now_ms: int) -> None:
        asked = self._causes.get((user_id, now_ms))
        if asked is None:
            super()._request(user_id, user, trigger, now_ms)
            return
        # Rows from before this request must not reappear.
        self._recent.pop(user_id, None)
        self.tally.requests[trigger] += 1
        answer = asked.answer
        if answer is not None and answer["outcome"] == "rebuilt":
            self._count_rebuild(user_id, user, answer["hwm"], now_ms)
            self._count_staleness(user, answer["hwm"], asked.answered_ms)
        else:
            self.tally.skips += 1
        apply_requested(user, trigger, offset=asked.offset, now=now_ms, deadline_ms=self._costs.deadline_ms)


def _without_last(late: Sequence[tuple[bytes, _Merge]]) -> Iterator[_Order]:
    """Yield rows without the last N events of some kinds; each merge is stored with the row before it."""
    for count in range(1, len(late) + 1):
        last = late[-count:]
        for kinds in _KINDS:
            if last[0][1].kind not in kinds:
                continue  # already tried with one fewer
            row = decode_user(last[0][0])
            for _, merge in last:
                if merge.kind not in kinds:
                    merge.apply(row)
            yield _Order(row, tuple(merge for _, merge in last if merge.kind in kinds), count)


def _with_next(user: User, coming: Sequence[_Merge]) -> Iterator[_Order]:
    """Yield rows with the next N events of some kinds; these arrive again later, which changes nothing."""
    for count in range(1, len(coming) + 1):
        for kinds in _KINDS:
            if coming[count - 1].kind not in kinds:
                continue
            row = decode_user(encode_user(user))
            for merge in coming[:count]:
                if merge.kind in kinds:
                    merge.apply(row)
            yield _Order(row, (), 0)


def _merges_of(happening: Happening) -> Iterable[tuple[str, _Merge]]:
    """Return the merges of an event, by user."""
    match happening:
        case Changed(at_ms, changed):
            yield changed["user_id"], _Merge(at_ms, "changed", lambda user: apply_changed(user, changed))
        case Answered(at_ms, answer):
            yield answer["user_id"], _Merge(at_ms, "answered", lambda user: apply_finished(user, answer))
        case Notification(at_ms, channel_id, head, users, retractions):
            for user_id in users:
                yield user_id, _Merge(at_ms, "told", lambda user: apply_head(user, channel_id, head, retractions))


def recorded_requests(
    requests: Iterable[tuple[int, RebuildRequested]], answers: Iterable[tuple[int, RebuildFinished]]
) -> AskedBy:
    """Return recorded requests (offset, value) with their answers (broker time, value).

    Offsets are those of the user's partition. A request that was sent twice (the worker died between sending and
    storing it) is one, in flight until its last copy is answered.
    """
    answered = {}
    for at_ms, finished in answers:
        answered[finished["user_id"], parse_position(finished["request_position"]).offset] = (finished, at_ms)
    found: dict[tuple[str, int], RecordedRequest] = {}
    for offset, value in requests:
        key = value["user_id"], value["planned_at"]
        answer, at_ms = answered.get((value["user_id"], offset), (None, 0))
        before = found.get(key)
        if (
            before is not None
            and before.answer is not None
            and (answer is None or before.answer["outcome"] == "rebuilt")
        ):
            answer, at_ms = before.answer, before.answered_ms
        made_by = value.get("policy_hash", "")
        found[key] = RecordedRequest(
            Trigger(value["trigger"]), value["pending"], value["plan"], offset, answer, at_ms, made_by
        )
    return found

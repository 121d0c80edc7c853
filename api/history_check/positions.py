"""Checks of positions: a read that names the position of a write contains the write or fails; a retraction and an erasure are in
force from their position on.

A read with `X-Min-Position` may fail (503, 400), and this is always correct. What it must not do is answer 200 or 404
as if the write did not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from highwater.api.history_check.folds import Fold, Operation, Place, covers, highest, place_of
from highwater.api.history_check.history import Action, Completion, Invocation
from highwater.api.history_check.stored import channel_of

# A plain read may show what was retracted for this long (docs/architecture/withdrawal.md).
PLAIN_STALE_NS = 2_000_000_000
_LISTING = frozenset({Action.READ_FEED, Action.READ_CLUSTERS})


class ContainsItsWrite(Fold):
    """A positioned read of an insight, a channel or the subscriptions of a user contains the writes that it names."""

    name = "positioned read"

    def __init__(self) -> None:
        super().__init__()
        self._writes: dict[str, list[Operation]] = {}
        self._counted: dict[tuple[str, str, Place], tuple[set[str], int, Operation]] = {}
        self._registers: dict[str, _Register] = {}
        self._allowed: dict[int, tuple[Operation, frozenset[str]]] = {}

    def invoked(self, invocation: Invocation) -> None:
        """Note a write that may take effect, and what a read of the subscriptions may show."""
        if invocation.action in (Action.REPLACE_SUBSCRIPTIONS, Action.ERASE_USER):
            register = self._registers.setdefault(user_of(invocation.resource), _Register())
            register.unknown.add(invocation.value)
        elif invocation.action is Action.READ_SUBSCRIPTIONS and invocation.min_positions:
            known = self._registers.get(user_of(invocation.resource), _Register())
            if known.last is not None and _names(invocation, known.last):
                value = known.last.invocation.value
                self._allowed[invocation.number] = (known.last, frozenset({value, *known.unknown}))

    def completed(self, operation: Operation, end: Completion) -> None:
        """Note an acknowledgement; compare a positioned read with the acknowledged writes that it names."""
        action = operation.invocation.action
        if action is Action.WRITE_INSIGHT and end.is_acknowledged:
            self._written(operation, end)
        elif action in (Action.REPLACE_SUBSCRIPTIONS, Action.ERASE_USER) and end.is_acknowledged:
            register = self._registers[user_of(operation.invocation.resource)]
            register.unknown.discard(operation.invocation.value)
            register.last = operation
        elif action is Action.READ_SUBSCRIPTIONS:
            self._compare_register(operation, end)
        elif not operation.invocation.min_positions:
            return
        elif action is Action.READ_INSIGHT and end.status in (200, 404, 410):
            self._compare_insight(operation, end)
        elif action is Action.READ_CHANNEL and end.status in (200, 404):
            self._compare_channel(operation, end)

    def _written(self, operation: Operation, end: Completion) -> None:
        invocation = operation.invocation
        self._writes.setdefault(invocation.resource, []).append(operation)
        for place, offset in map(place_of, end.positions):
            key = (invocation.client, channel_of(invocation.resource), place)
            ids, last, _ = self._counted.setdefault(key, (set(), -1, operation))
            ids.add(invocation.resource)
            if offset > last:
                self._counted[key] = (ids, offset, operation)

    def _compare_insight(self, operation: Operation, end: Completion) -> None:
        invocation = operation.invocation
        named = highest(invocation.min_positions)
        for write in self._writes.get(invocation.resource, ()):
            if write.completion is not None and covers(named, write.completion.positions):
                self.compared += 1
                if end.status == 404:
                    sentence = f"a read that names the position of {invocation.resource} does not contain it"
                    self.found(sentence, write, operation)
                return

    def _compare_channel(self, operation: Operation, end: Completion) -> None:
        invocation = operation.invocation
        channel = invocation.resource.partition(":")[2]
        at_least, proof = 0, operation
        for place, offset in highest(invocation.min_positions).items():
            ids, last, write = self._counted.get((invocation.client, channel, place), (set(), -1, operation))
            if ids and offset >= last:  # at the last write of this session: at all of them
                at_least, proof = at_least + len(ids), write
        if at_least == 0:
            return
        self.compared += 1
        shown = int(end.content["current_seq"]) if end.status == 200 else 0
        if shown < at_least:
            sentence = f"channel {channel} shows {shown} insights to a session that names the positions of {at_least}"
            self.found(sentence, proof, operation)

    def _compare_register(self, operation: Operation, end: Completion) -> None:
        expected = self._allowed.pop(operation.invocation.number, None)
        if expected is None or end.status != 200:
            return
        self.compared += 1
        write, allowed = expected
        if " ".join(end.content["channels"]) not in allowed:
            user = user_of(operation.invocation.resource)
            self.found(f"the subscriptions of {user} are not those of the write that the read names", write, operation)


@dataclass(slots=True)
class _Register:
    """The subscriptions of a user, which one client writes: the last acknowledged write, and values that may come yet.

    A write that was not answered may reach the log after a later one, from a process that was stopped meanwhile.
    """

    last: Operation | None = None
    unknown: set[str] = field(default_factory=set)


def _names(read: Invocation, write: Operation) -> bool:
    """Return whether a read names the position of a write."""
    return write.completion is not None and covers(highest(read.min_positions), write.completion.positions)


def user_of(resource: str) -> str:
    """Return the user of `KIND:USER`."""
    return resource.partition(":")[2]


class InForce(Fold):
    """A retracted insight and the feed of an erased user are in no read that names the position, and soon in no other."""

    name = "retraction and erasure"

    def __init__(self) -> None:
        super().__init__()
        self._retracted: dict[str, Operation] = {}
        self._erased: dict[str, Operation] = {}
        self._unknown: dict[str, int] = {}  # subscriptions that were not acknowledged (yet): they may come later
        self._applied_ns: dict[str, int] = {}

    def invoked(self, invocation: Invocation) -> None:
        """A user that subscribes again has a feed again."""
        if invocation.action is Action.REPLACE_SUBSCRIPTIONS:
            user = user_of(invocation.resource)
            self._erased.pop(user, None)
            self._unknown[user] = self._unknown.get(user, 0) + 1

    def completed(self, operation: Operation, end: Completion) -> None:
        """Note what was withdrawn; compare reads with it."""
        invocation = operation.invocation
        action, resource = invocation.action, invocation.resource
        if action is Action.RETRACT_INSIGHT and end.is_acknowledged:
            self._retracted.setdefault(resource, operation)
        elif action is Action.ERASE_USER and end.is_acknowledged:
            self._erased[user_of(resource)] = operation
        elif action is Action.REPLACE_SUBSCRIPTIONS and end.is_acknowledged:
            self._unknown[user_of(resource)] -= 1
        elif action is Action.READ_INSIGHT and resource in self._retracted:
            self._compare_insight(operation, end, self._retracted[resource])
        elif action in _LISTING and end.status == 200 and not end.is_stale:
            self._compare_listing(operation, end.content.get("insights", ()))

    def _compare_insight(self, operation: Operation, end: Completion, withdrawal: Operation) -> None:
        if end.is_retracted:
            self._applied_ns.setdefault(operation.invocation.resource, end.at_ns)
        elif end.status == 200 and self._is_in_force(operation, withdrawal):
            self.found(f"{operation.invocation.resource} is readable after its retraction", withdrawal, operation)
        self.compared += 1

    def _compare_listing(self, operation: Operation, shown: list[str]) -> None:
        user = user_of(operation.invocation.resource)
        self.compared += 1
        erasure = None if self._unknown.get(user) else self._erased.get(user)
        if shown and erasure is not None and self._is_in_force(operation, erasure):
            self.found(f"the erased user {user} has {len(shown)} insights", erasure, operation)
        for insight in shown:
            withdrawal = self._retracted.get(insight)
            if withdrawal is not None and self._is_in_force(operation, withdrawal):
                self.found(
                    f"{operation.invocation.resource} shows {insight}, which is retracted", withdrawal, operation
                )

    def _is_in_force(self, read: Operation, withdrawal: Operation) -> bool:
        """Return whether a read must not show what was withdrawn: it names the position, or was invoked two seconds after
        another read had proved that the withdrawal is applied.
        """
        if read.invocation.at_ns < withdrawal.invocation.at_ns:
            return False
        applied_ns = self._applied_ns.get(withdrawal.invocation.resource)
        is_late = applied_ns is not None and read.invocation.at_ns > applied_ns + PLAIN_STALE_NS
        return is_late or (bool(read.invocation.min_positions) and _names(read.invocation, withdrawal))

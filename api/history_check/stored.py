"""Checks of what is stored: each acknowledged insight once, `seq` dense and in the order of the log, a key one query.

A write that was refused or not answered may be stored or not: the event may have reached the log before the answer was
lost. `highwater history-check` reads every insight at the end of a run; without these final reads less is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from highwater.api.history_check.folds import Fold, Operation, place_of
from highwater.api.history_check.history import Action, Completion, Invocation


@dataclass(slots=True)
class _Insight:
    """The writes of an insight, and its final read."""

    value: str
    write: Operation
    acknowledged: Operation | None = None
    positions: set[str] = field(default_factory=set)
    unknown: int = 0  # writes that were not acknowledged (yet)
    is_retracted: bool = False
    final: Operation | None = None


class ExactlyOnce(Fold):
    """Each acknowledged insight is stored once, as its first write has it; a repeat makes neither a second one nor a conflict."""

    name = "exactly once"

    def __init__(self) -> None:
        super().__init__()
        self._insights: dict[str, _Insight] = {}

    def invoked(self, invocation: Invocation) -> None:
        """Note a write."""
        if invocation.action is Action.WRITE_INSIGHT:
            made = _Insight(invocation.value, Operation(invocation))
            self._insights.setdefault(invocation.resource, made).unknown += 1
        elif invocation.action is Action.RETRACT_INSIGHT and invocation.resource in self._insights:
            self._insights[invocation.resource].is_retracted = True

    def completed(self, operation: Operation, end: Completion) -> None:
        """Note an acknowledgement; compare what a read shows with the writes."""
        action, resource = operation.invocation.action, operation.invocation.resource
        if action is Action.WRITE_INSIGHT and end.is_acknowledged:
            insight = self._insights[resource]
            insight.unknown -= 1
            insight.positions |= set(end.positions)
            insight.acknowledged = insight.acknowledged or operation
            if end.content.get("conflicts"):
                self.found(
                    f"a repeat of {resource} with the same content was called a conflict", insight.write, operation
                )
        elif action is Action.READ_INSIGHT and end.status in (200, 404, 410):
            self._compare(operation, end)

    def _compare(self, operation: Operation, end: Completion) -> None:
        resource = operation.invocation.resource
        insight = self._insights.get(resource)
        if insight is None:
            if end.status == 200:
                self.found(f"{resource} is stored, which no client had written", operation)
            return
        self.compared += 1
        if operation.invocation.is_final:
            insight.final = operation
        if end.is_retracted and not insight.is_retracted:
            self.found(f"{resource} counts as retracted, and no client retracted it", insight.write, operation)
        if end.status != 200:
            return
        if end.content.get("text") != insight.value:
            self.found(f"{resource} is stored with another text than its write had", insight.write, operation)
        if not insight.unknown and end.content.get("position") not in insight.positions:
            proof = insight.acknowledged or insight.write
            self.found(f"{resource} is stored from a position that no write of it has", proof, operation)

    def finished(self) -> None:
        """Compare the acknowledgements with the final reads."""
        for resource, insight in self._insights.items():
            if insight.acknowledged is None or insight.final is None:
                continue
            end = insight.final.completion
            if end is not None and end.status == 404:
                self.found(f"{resource} was acknowledged and is not stored", insight.acknowledged, insight.final)


@dataclass(slots=True)
class _Channel:
    """Where the insights of a channel stand, and the newest read of its head."""

    by_seq: dict[int, Operation] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)  # stored, but of unknown place
    is_complete: bool = True
    head: Operation | None = None


class DenseOrder(Fold):
    """`seq` of a channel has no gap and no repeat, and follows the order of each partition of the log."""

    name = "dense order"

    def __init__(self) -> None:
        super().__init__()
        self._channels: dict[str, _Channel] = {}
        self._places: dict[str, tuple[int, Operation]] = {}

    def _channel(self, name: str) -> _Channel:
        return self._channels.setdefault(name, _Channel())

    def completed(self, operation: Operation, end: Completion) -> None:
        """Note the place of an insight, or the head of a channel."""
        invocation = operation.invocation
        if invocation.action is Action.READ_INSIGHT:
            channel = self._channel(channel_of(invocation.resource))
            if end.status == 200:
                self._place(channel, operation, int(end.content["seq"]))
            elif invocation.is_final:
                self._final(channel, operation, end)
        elif invocation.action is Action.READ_CHANNEL and end.status == 200 and invocation.is_final:
            self._channel(invocation.resource.partition(":")[2]).head = operation

    def _final(self, channel: _Channel, operation: Operation, end: Completion) -> None:
        if end.status == 410:
            if operation.invocation.resource not in self._places:
                channel.withdrawn.add(operation.invocation.resource)
        elif end.status != 404:
            channel.is_complete = False

    def _place(self, channel: _Channel, operation: Operation, seq: int) -> None:
        self.compared += 1
        resource = operation.invocation.resource
        known = self._places.setdefault(resource, (seq, operation))
        if known[0] != seq:
            self.found(f"{resource} had the seq {known[0]} and now has {seq}", known[1], operation)
        other = channel.by_seq.setdefault(seq, operation)
        if other.invocation.resource != resource:
            self.found(f"{other.invocation.resource} and {resource} have the same seq {seq}", other, operation)

    def finished(self) -> None:
        """Compare the places with the head of each channel, and with the order of the log."""
        for name, channel in self._channels.items():
            head = channel.head
            if head is not None and head.completion is not None:
                self._compare_head(name, channel, head, int(head.completion.content["current_seq"]))
            self._compare_log(name, channel)

    def _compare_head(self, name: str, channel: _Channel, head: Operation, current: int) -> None:
        beyond = max(channel.by_seq, default=0)
        if beyond > current:
            self.found(f"channel {name} ends at seq {current}, before an insight of it", channel.by_seq[beyond], head)
            return
        missing = [seq for seq in range(1, current + 1) if seq not in channel.by_seq]
        if len(missing) == len(channel.withdrawn) or not channel.is_complete:
            return
        near = [channel.by_seq[seq - 1] for seq in missing[:1] if seq - 1 in channel.by_seq]
        self.found(
            f"channel {name} counts {current} insights and {len(channel.by_seq) + len(channel.withdrawn)} are stored"
            + (f", seq {missing[0]} is the first that no read insight has" if missing else ""),
            *near,
            head,
        )

    def _compare_log(self, name: str, channel: _Channel) -> None:
        last: dict[tuple[str, int], tuple[int, Operation]] = {}
        for seq in range(1, max(channel.by_seq, default=0) + 1):
            operation = channel.by_seq.get(seq)
            if operation is None or operation.completion is None:
                continue
            place, offset = place_of(operation.completion.content["position"])
            before = last.get(place)
            if before is not None and before[0] > offset:
                self.found(
                    f"channel {name} has seq {seq} against the order of {place[0]}/{place[1]}", before[1], operation
                )
            last[place] = (offset, operation)


def channel_of(resource: str) -> str:
    """Return the channel of `insight:CHANNEL/ID`."""
    return resource.partition(":")[2].rpartition("/")[0]


class OneRequestPerKey(Fold):
    """An idempotency key is one request: every repeat gets its id, and its user has it once."""

    name = "idempotency keys"

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[tuple[str, str], tuple[str, Operation]] = {}
        self._keys: dict[str, set[str]] = {}

    def invoked(self, invocation: Invocation) -> None:
        """Note a key."""
        if invocation.action is Action.SUBMIT_QUERY:
            self._keys.setdefault(invocation.resource, set()).add(invocation.idempotency_key or "")

    def completed(self, operation: Operation, end: Completion) -> None:
        """Compare the id of a repeat with the first one, and a list of requests with the ids."""
        invocation = operation.invocation
        if invocation.action is Action.SUBMIT_QUERY and end.is_acknowledged:
            self.compared += 1
            key = (invocation.resource, invocation.idempotency_key or "")
            known = self._ids.setdefault(key, (end.content["request_id"], operation))
            if known[0] != end.content["request_id"]:
                self.found(f"the key {key[1]} of {key[0]} stands for two requests", known[1], operation)
        elif invocation.action is Action.READ_QUERIES and invocation.is_final and end.status == 200:
            self._compare(operation, end.content["request_ids"])

    def _compare(self, operation: Operation, listed: list[str]) -> None:
        resource = operation.invocation.resource
        if len(set(listed)) < len(listed) or len(listed) > len(self._keys.get(resource, ())):
            self.found(f"{resource} has more requests than idempotency keys", operation)
        for (of, key), (request_id, submitted) in self._ids.items():
            if of == resource and request_id not in listed:
                self.found(f"the request of the key {key} was acknowledged and is not stored", submitted, operation)

"""Checks of versions and ETags: nothing older after something newer, one ETag one body, 304 only for the current ETag.

A read that says that it is old (`X-Stale`) may be older than another one; its ETag still has one body.
"""

from __future__ import annotations

from highwater.api.history_check.folds import Fold, Operation
from highwater.api.history_check.history import READS, Action, Completion, Invocation

# The version of an insight does not grow. It is absent, then stored, then retracted, and never an earlier state again.
_STATES = {404: 0, 200: 1, 410: 2}
_NAMES = ("absent", "stored", "retracted")
_CONDITIONAL = READS - {Action.READ_SUBSCRIPTIONS, Action.READ_QUERIES}
_ABSENT_AT_FIRST = frozenset({Action.READ_CHANNEL, Action.READ_PAGE})

Seen = tuple[int, Operation]


class VersionOrder(Fold):
    """A read that begins after another one was completed sees no older version: in its session and in any API process."""

    name = "real-time order"

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, Seen] = {}
        self._floors: dict[int, Seen] = {}
        self._tags: dict[tuple[str, str], int] = {}

    def invoked(self, invocation: Invocation) -> None:
        """Note the newest version that a completed read has seen: this one must not be older."""
        if invocation.action in _CONDITIONAL and invocation.resource in self._newest:
            self._floors[invocation.number] = self._newest[invocation.resource]

    def completed(self, operation: Operation, end: Completion) -> None:
        """Compare, and raise the newest version."""
        invocation = operation.invocation
        if invocation.action not in _CONDITIONAL:
            return
        floor = self._floors.pop(invocation.number, None)
        version = self._version(invocation, end)
        if version is None:
            return
        if floor is not None and not end.is_stale:
            self.compared += 1
            if version < floor[0]:
                self._older(operation, version, *floor)
        newest = self._newest.get(invocation.resource)
        if newest is None or version > newest[0]:
            self._newest[invocation.resource] = (version, operation)

    def _older(self, operation: Operation, version: int, floor: int, newer: Operation) -> None:
        resource = operation.invocation.resource
        if operation.invocation.action is Action.READ_INSIGHT:
            sentence = f"{resource} was {_NAMES[version]} after it had been {_NAMES[floor]}"
        else:
            sentence = f"version {version} of {resource} was read after version {floor}"
        if operation.completion is not None and operation.completion.status == 304:
            self.found(f"{sentence}, as current (304)", newer, operation, name="304 for the current ETag")
        elif newer.invocation.client == operation.invocation.client:
            self.found(sentence, newer, operation, name="monotonic reads")
        else:
            self.found(sentence, newer, operation)

    def _version(self, invocation: Invocation, end: Completion) -> int | None:
        """Return the version that a read has seen: for a 304 that of its ETag, as an earlier 200 had it."""
        if invocation.action is Action.READ_INSIGHT:
            if end.status == 410 and not end.is_retracted:
                return None  # the position is gone, so the read failed
            return 1 if end.status == 304 else _STATES.get(end.status or 0)
        if end.status == 404 and invocation.action in _ABSENT_AT_FIRST:
            return 0
        if end.status == 304:
            return self._tags.get((invocation.resource, weak(end.etag)), end.version)
        if end.status != 200 or end.version is None:
            return None
        self._tags.setdefault((invocation.resource, weak(end.etag)), end.version)
        return end.version


class OneTagOneBody(Fold):
    """An ETag of a resource and representation has one body, and a version of a resource one content."""

    name = "one ETag, one body"

    def __init__(self) -> None:
        super().__init__()
        self._bodies: dict[tuple[str, str, str], tuple[str | None, Operation]] = {}
        self._contents: dict[tuple[str, int], tuple[str | None, Operation]] = {}

    def completed(self, operation: Operation, end: Completion) -> None:
        """Compare a body with the first one under its ETag, and under its version."""
        invocation = operation.invocation
        if invocation.action not in _CONDITIONAL or end.status != 200 or end.etag is None:
            return
        self.compared += 1
        # A weak ETag stands for every encoding of a version, a strong one for the bytes of one encoding.
        representation = "" if end.etag.startswith("W/") else end.encoding or "identity"
        first = self._bodies.setdefault((invocation.resource, representation, end.etag), (end.body_hash, operation))
        if first[0] != end.body_hash:
            self.found(f"ETag {end.etag} of {invocation.resource} had two bodies", first[1], operation)
            return
        if end.version is None:
            return
        first = self._contents.setdefault((invocation.resource, end.version), (end.body_hash, operation))
        if first[0] != end.body_hash:
            self.found(f"version {end.version} of {invocation.resource} had two contents", first[1], operation)


class OnlyTheCurrentTag(Fold):
    """A 304 answers a request with a condition, for an ETag that this condition names."""

    name = "304 for the current ETag"

    def completed(self, operation: Operation, end: Completion) -> None:
        """Compare the ETag of a 304 with its condition; `VersionOrder` compares its version."""
        if end.status != 304:
            return
        self.compared += 1
        condition = operation.invocation.condition
        if condition is None:
            self.found(f"{operation.invocation.resource} was answered 304 without a condition", operation)
        elif weak(end.etag) != weak(condition):
            self.found(f"304 of {operation.invocation.resource} names another ETag than {condition}", operation)


def weak(etag: str | None) -> str:
    """Return an ETag as it is compared weakly (RFC 9110, section 8.8.3.2)."""
    return (etag or "").removeprefix("W/")

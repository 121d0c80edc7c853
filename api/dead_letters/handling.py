"""Actions on dead letters: resend, edit, delete; every action is recorded.

Invariants: a resent record names its origin in its own headers, so that no crash can separate the two; an event on
`streams.dead-letter-handled` repeats this with the new position once the broker has it. A letter stays in its topic
until it is deleted, and a letter that was resent is not resent by accident.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from highwater.api.dead_letters.letter import (
    KEY,
    WHOLE_VALUE,
    Action,
    Change,
    Letter,
    RefusedLetterError,
    Replacement,
    canonical,
    changes_between,
    edited_key,
    plan_sending,
)
from highwater.api.dead_letters.reading import HANDLED
from highwater.connectors.kafka.admin import REQUEST_SECONDS, LogRange
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import make_headers
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS
from highwater.streams.clock import Clock, fresh_id
from highwater.streams.validation import check_event
from highwater.streams.wording import counted

SOURCE = "/cli/dlq"
# Acknowledgements that are awaited together; each record beyond the producer's own limit costs a position and a future.
_BATCH = 500

Place = tuple[str, int]


@dataclass(slots=True)
class Outcome:
    """The outcome of resending letters: the old and new positions, and why others were not sent."""

    redriven: list[tuple[Position, Position]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    def refuse(self, letter: Letter, error: Exception) -> None:
        """Note a letter that cannot be sent."""
        why = "without_origin" if letter.origin is None else "without_bytes"
        self.skipped["too_large" if isinstance(error, InvalidEventError) else why] += 1
        self.refused.append(f"{error}" if isinstance(error, RefusedLetterError) else f"{letter.position}: {error}")


def planned_edit(
    letter: Letter, document: Mapping[str, Any], before: Mapping[str, Any], codec: Codec, embedding_dimensions: int
) -> Replacement:
    """Return what is sent for a letter that was edited to a document; `before` is the original document.

    Raises:
        InvalidEventError: the document is not an event of the topic; names the field.
    """
    topic = TOPICS[letter.topic]
    event, after = canonical(topic.name, document)
    if topic.outsider:  # what its sink would refuse is refused here, or it would become another dead letter
        check_event(topic.name, event, embedding_dimensions=embedding_dimensions)
    key = edited_key(topic, event, letter.record.key)
    changes = changes_between(before, after)
    if key != letter.record.key and topic.key not in {change.field for change in changes}:
        changes = (*changes, Change(KEY, letter.record.key, key))
    return Replacement(key, codec.encode(topic.name, event), changes)


def replaced_bytes(letter: Letter, value: bytes | None) -> Replacement:
    """Return what is sent for a letter whose value is replaced, without validation."""
    size = None if letter.record.value is None else len(letter.record.value)
    return Replacement(letter.record.key, value, (Change(WHOLE_VALUE, size, None if value is None else len(value)),))


class Handler:
    """Resends, edits and deletes dead letters, and records each action.

    Args:
        producer: created on the running loop.
        codec: includes the topic of the records.
        partitions: of every topic on the broker.
        clock: the current time.
        by: the user.
        note: the user's reason, if given.
    """

    def __init__(
        self,
        producer: AsyncProducer,
        codec: Codec,
        partitions: Mapping[str, int],
        clock: Clock,
        *,
        by: str,
        note: str | None = None,
    ) -> None:
        self._producer = producer
        self._codec = codec
        self._partitions = partitions
        self._clock = clock
        self._by = by
        self._note = note
        if HANDLED not in partitions:
            raise UnavailableError(
                f"{HANDLED} is not on the broker, and every action must be recorded: run `highwater init`"
            )

    async def redrive(self, letters: AsyncIterator[Letter], *, again: bool) -> Outcome:
        """Send letters unchanged to the topics they came from; those sent before only with `again`.

        Raises:
            UnavailableError: Kafka did not accept all of them; lists the accepted ones.
        """
        outcome = Outcome()
        under_way: list[tuple[Letter, asyncio.Future[Any]]] = []
        try:
            async for letter in letters:
                if not letter.is_open and not again:
                    outcome.skipped["sent_before"] += 1
                    continue
                try:
                    under_way.append((letter, await self._enqueue(letter, None)))
                except (RefusedLetterError, InvalidEventError) as error:
                    outcome.refuse(letter, error)
                if len(under_way) >= _BATCH:
                    await self._acknowledged(under_way, outcome)
        finally:  # however it ended: record what the broker has
            await self._acknowledged(under_way, outcome)
        return outcome

    async def edit(self, letter: Letter, replacement: Replacement) -> Position:
        """Send the replacement of a letter and return its position.

        Raises:
            RefusedLetterError: it does not name its origin.
            UnavailableError: Kafka did not accept it.
            InvalidEventError: it is larger than its topic accepts.
        """
        position: Position = await (await self._enqueue(letter, replacement))
        await self._trace(letter, Action.EDITED, position, changed=replacement.changed)
        return position

    async def drop(self, client: Mapping[str, str], ends: Mapping[Place, int], ranges: Mapping[Place, LogRange]) -> int:
        """Delete and record dead letters before an end offset per partition; return how many.

        Raises:
            UnavailableError: Kafka did not delete them.
        """
        wanted = {place: end for place, end in ends.items() if end > ranges[place].low}
        if not wanted:
            return 0
        await asyncio.to_thread(_delete, client, wanted)
        count = 0
        for place, end in wanted.items():
            count += end - ranges[place].low
            event = self._event(Position(*place, end - 1), Action.DROPPED, count=end - ranges[place].low)
            await (await self._told(event, Position(*place, end - 1)))
        return count

    async def _enqueue(self, letter: Letter, replacement: Replacement | None) -> asyncio.Future[Any]:
        planned = plan_sending(letter, replacement, self._partitions, by=self._by, now_ms=self._clock())
        return await self._producer.enqueue(
            planned.topic, planned.value, key=planned.key, headers=planned.headers, partition=planned.partition
        )

    async def _acknowledged(self, under_way: list[tuple[Letter, asyncio.Future[Any]]], outcome: Outcome) -> None:
        """Wait for the sent records, and record those that the broker has, even if some failed."""
        sent = await asyncio.gather(*(future for _, future in under_way), return_exceptions=True)
        failed: BaseException | None = None
        told = []
        for (letter, _), position in zip(under_way, sent, strict=True):
            if isinstance(position, InvalidEventError):
                outcome.refuse(letter, position)
            elif isinstance(position, BaseException):
                failed = failed or position
            else:
                outcome.redriven.append((letter.position, Position(*position)))
                told.append(await self._told(self._event_of(letter, Action.REDRIVEN, position), letter.position))
        under_way.clear()
        await asyncio.gather(*told)
        if failed is not None:
            raise UnavailableError(
                f"{failed}; {counted(len(outcome.redriven), 'dead letter was', 'dead letters were')} sent again"
            ) from failed

    async def _trace(self, letter: Letter, action: Action, position: Position, *, changed: Iterable[str]) -> None:
        await (await self._told(self._event_of(letter, action, position, changed), letter.position))

    async def _told(self, event: Mapping[str, Any], letter: Position) -> asyncio.Future[Any]:
        """Publish the event of an action, with the letter as its cause."""
        value = self._codec.encode(HANDLED, event)
        headers = make_headers(
            event_id=fresh_id(), event_type=HANDLED, source=SOURCE, now_ms=event["handled_at"], caused_by=letter
        )
        return await self._producer.enqueue(HANDLED, value, key=TOPICS[HANDLED].key_of(event), headers=headers)

    def _event_of(
        self, letter: Letter, action: Action, position: Position, changed: Iterable[str] = ()
    ) -> dict[str, Any]:
        told = self._event(letter.position, action)
        return {**told, "position": str(position), "reason": letter.reason, "changed": list(changed)}

    def _event(self, letter: Position, action: Action, *, count: int = 1) -> dict[str, Any]:
        return {
            "topic": letter.topic.removesuffix(DEAD_LETTER_SUFFIX),
            "letter": str(letter),
            "action": action.value,
            "count": count,
            "position": None,
            "reason": None,
            "changed": [],
            "by": self._by,
            "note": self._note,
            "handled_at": self._clock(),
        }


def _delete(client: Mapping[str, str], ends: Mapping[Place, int]) -> None:
    asked = [TopicPartition(*place, end) for place, end in ends.items()]
    admin = AdminClient(dict(client))  # kept: without the client its futures would never be resolved
    try:
        for future in admin.delete_records(asked, request_timeout=REQUEST_SECONDS).values():
            future.result(2 * REQUEST_SECONDS)
    except KafkaException as error:
        raise UnavailableError(f"Kafka did not delete: {error.args[0].str()}") from error

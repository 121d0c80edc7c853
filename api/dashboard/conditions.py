"""The condition of the topic browser: the same language and the same rules as `highwater replay --where`.

Law: a condition sees one record and nothing else; one that cannot be read is told with a caret under the spot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from highwater.api.dashboard.tails import Shown
from highwater.connectors.replay.decoding import Decoder
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.subject import Subject
from highwater.connectors.replay.where import Where, WhereError
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import Topic
from highwater.streams.access import RegistryAccess


class UnreadableConditionError(HighwaterError):
    """The condition cannot be read. Correct it."""


class Condition:
    """One condition over records of one topic. Blocking: it asks the registry once."""

    def __init__(self, text: str, topic: Topic, registry: RegistryAccess | None) -> None:
        """Read the condition.

        Raises:
            UnreadableConditionError: it is none.
            UnavailableError: the registry does not answer.
        """
        self._topic = topic.name
        self._decoder = Decoder(Subject.fetch(topic, registry))
        try:
            self._where = Where(text, self._decoder.arrow_type, topic.name)
        except WhereError as error:
            raise UnreadableConditionError(_told(error)) from error

    def kept(self, records: Sequence[Shown]) -> list[Shown]:
        """The records that meet it.

        Raises:
            UnreadableConditionError: its answer is not true or false.
        """
        found = [one.record for one in records]
        batch = Batch(
            self._topic,
            np.array([one.partition for one in found], np.int32),
            np.array([one.offset for one in found], np.int64),
            np.array([one.arrived_ms for one in found], np.int64),
            [one.key for one in found],
            [one.headers for one in found],
            [one.value for one in found],
        )
        try:
            return [records[place] for place in self._where.kept(self._decoder.decode(batch))]
        except WhereError as error:
            raise UnreadableConditionError(_told(error)) from error


def _told(error: WhereError) -> str:
    return f"{error.pointer()}\n{str(error).removeprefix('--where, ')}"

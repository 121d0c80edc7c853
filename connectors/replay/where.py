"""The condition of a replay: compiled and evaluated in a process of its own (`condition.py`), batch by batch.

Invariant: the memory and time of a condition are limited wherever it is used; beyond a limit it is an error
like that of an invalid one. Its process ends with the condition, and with this process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from subprocess import Popen
from typing import IO, Any, cast
from weakref import finalize

import pyarrow as pa

from highwater.connectors.children import limit_passed
from highwater.connectors.replay.condition_task import CHARACTERS_MAX, NAMES, NO_ANSWER, Outcomes, Records
from highwater.connectors.replay.decoding import Decoded
from highwater.connectors.replay.processes import hand_over, started
from highwater.connectors.replay.where_error import WhereError
from highwater.schemas.envelope import Headers, text_of

__all__ = ["CHARACTERS_MAX", "NAMES", "NO_ANSWER", "Where", "WhereError"]

_PROGRAM = (
    "import sys; from highwater.connectors.replay.condition import main; main(int(sys.argv[1]), float(sys.argv[2]))"
)
# A batch is a megabyte, or one record; its values as objects of Python and then of CEL take ten times as much.
MEMORY_BYTES_MAX = 256 << 20
# Processor time; a batch usually takes a tenth of a second.
BATCH_SECONDS_MAX = 10.0
_EMPTY: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[], Any]]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_list, list),
    (pa.types.is_map, dict),
)


class Where:
    """A compiled condition. `close` ends its process, as does the end of the object."""

    def __init__(
        self, text: str, kind: pa.StructType, topic: str, *, is_open: bool = False, option: str = "--where"
    ) -> None:
        """`kind` is the Arrow type of the topic's events; `is_open`: they are any JSON values, whose fields are unknown.
        `option` is named in errors.

        Raises:
            WhereError: the text is not a condition over a record of this topic.
        """
        self._text = text
        self._option = option
        self._kind = kind
        self._topic = topic
        self.outcomes = Outcomes()
        stack = ExitStack()
        self._process: Popen[bytes] = stack.enter_context(
            started(_PROGRAM, str(MEMORY_BYTES_MAX), str(BATCH_SECONDS_MAX))
        )
        self.close = finalize(self, stack.close)
        times = [field.name for field in kind if pa.types.is_timestamp(field.type)]
        records = Records(topic, [field.name for field in kind], times, is_open)
        try:
            self._used, self._fields = self._ask("compile", text, records)
        except WhereError:
            self.close()
            raise

    @property
    def failed(self) -> int:
        """Return the number of records without a result, except tombstones."""
        return self.outcomes.failed

    @property
    def first_failure(self) -> str | None:
        """Return why the first of them has none."""
        return self.outcomes.first_failure

    @property
    def answered(self) -> int:
        """Return the number of records for which it was true or false."""
        return self.outcomes.answered

    def require_condition(self) -> None:
        """Refuse an expression that is not true or false for a record of empty values; without a result there, the
        records decide.

        Raises:
            WhereError: it is not true or false.
        """
        value = _empty(self._kind)
        example = {"key": "", "value": value, "headers": {}, "time": 0, "topic": self._topic}
        self._ask(
            "require_condition", {name: [{**example, "partition": 0, "offset": 0}[name]] for name in self._used}, 1
        )

    def kept(self, decoded: Decoded) -> list[int]:
        """Return the indexes of the records in a batch that match the condition.

        Raises:
            WhereError: its result is not true or false, or it needs more memory or time than it may have.
        """
        return cast("list[int]", self._evaluated("kept", decoded))

    def answers(self, decoded: Decoded) -> list[Any]:
        """Return the expression's value for each record of a batch, as it is counted and shown; `NO_ANSWER` without one.

        Raises:
            WhereError: it needs more memory or time than it may have.
        """
        return cast("list[Any]", self._evaluated("answers", decoded))

    def _evaluated(self, name: str, decoded: Decoded) -> Any:
        batch = decoded.batch
        make: Mapping[str, Callable[[], Sequence[Any]]] = {
            "key": lambda: [text_of(key) for key in batch.keys],
            "value": lambda: decoded.some(self._fields),
            "headers": lambda: [_last_values(one) for one in batch.headers],
            "time": batch.times_ms.tolist,
            "topic": lambda: [batch.topic] * len(batch),
            "partition": batch.partitions.tolist,
            "offset": batch.offsets.tolist,
        }
        found, self.outcomes = self._ask(name, {one: make[one]() for one in self._used}, len(batch))
        return found

    def _ask(self, name: str, *arguments: object) -> Any:
        hand_over((name, arguments), self._process)
        try:
            reply = pickle.load(cast("IO[bytes]", self._process.stdout))  # noqa: S301 - from our own process
        except (EOFError, pickle.UnpicklingError):
            status = self._process.wait()
            why = limit_passed(status) or f"ended its process ({status})"
            raise WhereError(f"it {why}", self._text, option=self._option) from None
        if isinstance(reply, WhereError):
            raise WhereError(reply.message, reply.text, reply.line, reply.column, self._option)
        return reply


def _empty(kind: pa.DataType) -> Any:
    """Return an empty value of an Arrow type."""
    if pa.types.is_struct(kind):
        return {field.name: _empty(field.type) for field in kind}
    if pa.types.is_timestamp(kind):
        return 0
    return next((value() for is_kind, value in _EMPTY if is_kind(kind)), None)


def _last_values(headers: Headers | None) -> dict[str, str | None]:
    """Return headers as conditions see them: of several with one name the last."""
    return {name: text_of(value) for name, value in headers or ()}

"""Counts how many records have which value of an expression.

Invariant: every record of the selection is counted; a record without a value of the expression is counted separately.
The number of distinct values is limited, since each is held in memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from highwater.connectors.replay.decoding import Decoded
from highwater.connectors.replay.where import NAMES, NO_ANSWER, Where
from highwater.schemas.errors import HighwaterError

# About 100 MB; nobody reads a table of that size.
VALUES_MAX = 500_000
VALUES_BYTES_MAX = 64 << 20


class TooManyValuesError(HighwaterError):
    """There are too many different values. Group by a coarser expression, or narrow the records."""


# The path of a field of a value with unknown fields.
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


def expression_of(text: str, fields: Iterable[str] | None) -> str:
    """Return the expression of a text: the path of a field may omit `value.`. `fields` None: they are unknown."""
    first = text.strip().partition(".")[0]
    if fields is None:
        is_path = _PATH.fullmatch(text.strip()) is not None and first not in (*NAMES, "true", "false", "null")
        return f"value.{text.strip()}" if is_path else text
    return f"value.{text.strip()}" if first in set(fields) - set(NAMES) else text


class Counting:
    """Counts by an expression."""

    def __init__(self, expression: str, decoder_type: Any, topic: str, *, is_open: bool = False) -> None:
        """`decoder_type` is the Arrow type of the topic's events; `is_open`: they are any JSON values, whose fields are
        unknown.

        Raises:
            WhereError: the text is not an expression over a record of this topic.
        """
        self._expression = Where(expression, decoder_type, topic, is_open=is_open, option="--by")
        # Conditions have doubles for the numbers of other applications; the path of a field leads to the number itself.
        is_path = is_open and expression.startswith("value.") and _PATH.fullmatch(expression) is not None
        self._path = expression.split(".")[1:] if is_path else []
        self._counts: Counter[Any] = Counter()
        self._bytes = 0
        self.counted = 0

    @property
    def without_answer(self) -> int:
        """Return the number of records without a value, except tombstones."""
        return self._expression.failed

    @property
    def first_failure(self) -> str | None:
        """Return why the first of them has none."""
        return self._expression.first_failure

    def add(self, decoded: Decoded) -> None:
        """Count a batch.

        Raises:
            TooManyValuesError: there are too many different values.
            WhereError: the expression needs more memory or time than it may have.
        """
        answers = self._expression.answers(decoded)
        if self._path:
            answers = [self._exact(one, row) for one, row in zip(answers, decoded.rows, strict=True)]
        found = [one for one in answers if one is not NO_ANSWER]
        self.counted += len(found)
        self._bytes += sum(len(one) for one in set(found) - self._counts.keys() if isinstance(one, str))
        self._counts.update(found)
        if len(self._counts) > VALUES_MAX or self._bytes > VALUES_BYTES_MAX:
            raise TooManyValuesError(
                f"--by has more than {VALUES_MAX:,} different values, or {VALUES_BYTES_MAX >> 20} MiB of them;"
                " group by a coarser expression"
            )

    def _exact(self, answer: Any, row: Any) -> Any:
        if isinstance(answer, float):
            for name in self._path:
                row = row[name]
            return row
        return answer

    @property
    def distinct(self) -> int:
        """Return the number of distinct values."""
        return len(self._counts)

    def top(self, count: int) -> list[tuple[Any, int]]:
        """Return the most frequent values; ties in text order."""
        return sorted(self._counts.items(), key=lambda item: (-item[1], str(item[0])))[:count]

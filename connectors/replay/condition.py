"""The process of a condition: an expression in CEL over key, value, headers, time, topic, partition and offset.

Invariants. A condition sees only the current record; it cannot reach files, the network or Python. An invalid one is
refused, with the place of the error, before anything is read; a record for which it has no result is left out and
counted. The kernel limits the memory of the process, and its processor time for each batch: a few letters of CEL can need
any amount of both. It ends with its parent (`where.py`), and loads neither Arrow nor the client of Kafka.

Language: Common Expression Language (github.com/google/cel-spec), core and strings, math and lists of its extensions.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from highwater.connectors.children import limit_child, limit_processor_time
from highwater.connectors.replay.cel_alone import STDLIB_FUNCTIONS, add_stdlib_to_context, cel
from highwater.connectors.replay.condition_task import CHARACTERS_MAX, NAMES, NO_ANSWER, Outcomes, Records
from highwater.connectors.replay.processes import own_output
from highwater.connectors.replay.where_error import WhereError
from highwater.schemas.envelope import iso_from_ms

# Values of an expression for a batch, which the parent holds, too.
ANSWERS_BYTES_MAX = 16 << 20

Columns = Mapping[str, Sequence[Any]]


_FAULT = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_LITERAL = re.compile(
    r"""(?:\b[rRbB]{1,2})?(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")""", re.DOTALL
)
_VALUE = re.compile(r"(?<![\w.])value\b")
_FIELD = re.compile(r"\s*\.\s*([A-Za-z_]\w*)\b(?!\s*\()")
_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
# What the language makes of this error of an extension's function.
_NO_MEMORY = "Python function call failed: MemoryError"
_UNDEFINED = re.compile(r"Undefined variable or function: '([^']*)'")
# The functions of the language. For a string function on null the library reports that no such function exists, so the
# existing ones must be known beforehand.
_CORE_FUNCTIONS = {
    "size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string", "bytes", "bool", "timestamp",
    "duration", "type", "dyn", "min", "max", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate",
    "getDayOfWeek", "getHours", "getMinutes", "getSeconds", "getMilliseconds",
}  # fmt: skip
_FUNCTIONS = _CORE_FUNCTIONS | {name.rpartition(".")[2] for name in STDLIB_FUNCTIONS}
_NAMESPACES = {name.partition(".")[0] for name in STDLIB_FUNCTIONS if "." in name}
_TYPES = {"int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "timestamp", "duration"}


def main(memory_bytes_max: int, batch_seconds_max: float) -> None:
    """Compile the expression on standard input and evaluate it for the batches that follow, each within its time."""
    pipe, requests = own_output(), sys.stdin.buffer
    # A library that gets no memory writes a line of its own; the parent says what happened.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    limit_child(memory_bytes_max, batch_seconds_max)
    with suppress(EOFError, BrokenPipeError), os.fdopen(pipe, "wb") as replies:
        condition = None
        while True:
            try:
                name, arguments = pickle.load(requests)  # noqa: S301 - from the parent
                limit_processor_time(batch_seconds_max)
                reply: object
                if condition is None:
                    condition = Condition(*arguments)
                    reply = condition.used, condition.fields
                else:
                    reply = getattr(condition, name)(*arguments), condition.outcomes
            except WhereError as error:
                reply = error
            except MemoryError:
                os.abort()  # as a library does
            pickle.dump(reply, replies)
            replies.flush()


class Condition:
    """A compiled expression."""

    def __init__(self, text: str, records: Records) -> None:
        """Compile it.

        Raises:
            WhereError: the text is not an expression over a record of this topic.
        """
        self._text = text
        self._program = _compiled(text)
        self._bare = _LITERAL.sub(lambda found: " " * len(found[0]), text)
        self.used = [name for name in NAMES if name in self._program.variables()]
        self._check_names()
        self.fields = [] if records.is_open else self._fields_used(records.fields, records.topic)
        self._times = [name for name in self.fields if name in records.times]
        self._context = cel.Context()
        add_stdlib_to_context(self._context)
        self.outcomes = Outcomes()

    def _check_names(self) -> None:
        known = {*NAMES, *_NAMESPACES, *_TYPES, *_BOUND.findall(self._bare)}
        for name in self._program.variables():
            if name not in known:
                raise self._at(name, f"there is no {name!r}; there are {', '.join(NAMES)}")
        for name in self._program.functions():
            if name.isidentifier() and name not in _FUNCTIONS and name != "_":
                raise self._at(name, f"there is no function {name!r}")

    def _at(self, name: str, message: str) -> WhereError:
        """Return an error at the first place of a name."""
        found = re.search(rf"(?<![\w.]){name}\b", self._bare) or re.search(rf"\b{name}\b", self._bare)
        before = self._text[: found.start() if found else 0]
        return WhereError(message, self._text, before.count("\n") + 1, len(before) - before.rfind("\n"))

    def _fields_used(self, known: Sequence[str], topic: str) -> list[str]:
        """Return the fields that the condition reads; all if it reads the whole event."""
        used = set()
        for place in _VALUE.finditer(self._bare):
            field = _FIELD.match(self._bare, place.end())
            if field is None:
                return list(known)
            if field[1] not in known:
                before = self._text[: field.start(1)]
                raise WhereError(
                    f"events of {topic} have no field {field[1]!r}; they have {', '.join(known)}",
                    self._text,
                    before.count("\n") + 1,
                    len(before) - before.rfind("\n"),
                )
            used.add(field[1])
        return [name for name in known if name in used]

    def require_condition(self, columns: Columns, count: int) -> None:
        """Refuse an expression that is not true or false for these records, which do not count.

        Raises:
            WhereError: it is not.
        """
        self.kept(columns, count)
        self.outcomes = Outcomes()

    def kept(self, columns: Columns, count: int) -> list[int]:
        """Return the indexes of the records that match the condition; `columns` hold what it uses of them.

        Raises:
            WhereError: its result is not true or false.
        """
        return [place for place, known in enumerate(self._known(columns, count)) if self._is_met(known)]

    def answers(self, columns: Columns, count: int) -> list[Any]:
        """Return the expression's value for each record, as it is counted and shown; `NO_ANSWER` without one.

        Raises:
            WhereError: the values take too much memory.
        """
        answers, size = [], 0
        for known in self._known(columns, count):
            answers.append(countable(self._answer(known)))
            size += len(answers[-1]) if isinstance(answers[-1], str) else 0
            if size > ANSWERS_BYTES_MAX:
                raise WhereError(f"the values of a batch take more than {ANSWERS_BYTES_MAX >> 20} MiB", self._text)
        return answers

    def _known(self, columns: Columns, count: int) -> Iterator[dict[str, Any]]:
        """Yield what the condition may read, by record."""
        if not self.used:
            yield from ({} for _ in range(count))
            return
        made = {name: iter(columns[name]) for name in self.used}
        if "time" in made:
            made["time"] = map(_moment, columns["time"])
        if self._times and "value" in made:
            made["value"] = map(self._with_times, columns["value"])
        for row in zip(*made.values(), strict=True):
            yield dict(zip(self.used, row, strict=True))

    def _with_times(self, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            value.update({name: _moment(value[name]) for name in self._times if value[name] is not None})
        return value

    def _is_met(self, known: dict[str, Any]) -> bool:
        answer = self._answer(known)
        if answer is NO_ANSWER:
            return False
        if not isinstance(answer, bool):
            raise WhereError(f"the answer is {type(answer).__name__}, not true or false", self._text)
        self.outcomes.answered += 1
        return answer

    def _answer(self, known: dict[str, Any]) -> Any:
        self._context.update(known)
        try:
            return self._program.execute(self._context)
        except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError, IndexError) as error:
            if _NO_MEMORY in str(error):
                raise MemoryError from error
            # A tombstone has no fields; that is not an error of the condition.
            if known.get("value", ()) is not None:
                self.outcomes.failed += 1
                self.outcomes.first_failure = self.outcomes.first_failure or _said(error)
            return NO_ANSWER


def _said(error: Exception) -> str:
    undefined = _UNDEFINED.match(str(error))
    if undefined is not None:
        return f"{undefined[1]} of a value that has none"
    if str(error).startswith("No such overload"):
        return "a value of another type than the expression needs"
    return f"no field {error}" if isinstance(error, KeyError) else str(error).split(". ", maxsplit=1)[0]


def _moment(ms: int) -> datetime | int:
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    except (ValueError, OverflowError, OSError):
        return ms  # beyond the year 9999


def _compiled(text: str) -> Any:
    """Return the compiled program of a text.

    Raises:
        WhereError: it cannot be parsed.
    """
    if len(text) > CHARACTERS_MAX:
        raise WhereError(f"it has {len(text):,} characters; at most {CHARACTERS_MAX:,} are read", text[:80])
    try:
        return cel.compile(text)
    except ValueError as error:
        faults = [(int(line), int(column), what) for line, column, what in _FAULT.findall(str(error))]
        # Backticks name the parser's internal nodes, which are consequences of the actual error.
        faults = [fault for fault in faults if "`" not in fault[2]] or faults
        line, column, what = min(faults, key=lambda fault: fault[:2], default=(1, 1, "it does not parse"))
        raise WhereError(_in_words(what), text, line, column) from error


def _in_words(what: str) -> str:
    """Return the parser's message without the list of everything that it would have accepted."""
    if "Recursion limit" in what:
        return "it is nested too deeply"
    if "'<EOF>'" in what and not what.endswith("expecting <EOF>"):
        return "it ends too early"
    return what.split(" expecting ", maxsplit=1)[0].strip() or "it does not parse"


def countable(value: Any) -> Any:
    """Return a value as it is counted and shown; times in ISO 8601, nested values as text."""
    if value is NO_ANSWER:
        return value
    if isinstance(value, datetime):
        return iso_from_ms(round(value.timestamp() * 1_000))
    if value is None or isinstance(value, str | int | float | bool):
        # In a dictionary True equals 1, and neither is a text.
        return str(value).lower() if isinstance(value, bool) else value
    return str(value)

"""The condition of a replay: an expression in CEL over key, value, headers, time, topic, partition and offset.

Invariant: a condition sees only the current record; it cannot reach files, the network or Python. An invalid one is
refused, with the place of the error, before anything is read; a record for which it has no result is left out and
counted.

Language: Common Expression Language (github.com/google/cel-spec), core and strings, math and lists of its extensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from highwater.connectors.replay.cel_alone import STDLIB_FUNCTIONS, add_stdlib_to_context, cel
from highwater.connectors.replay.decoding import Decoded
from highwater.connectors.replay.where_error import WhereError
from highwater.schemas.envelope import Headers, text_of

__all__ = ["CHARACTERS_MAX", "NAMES", "NO_ANSWER", "Where", "WhereError"]

# Marks a record for which the expression has no result.
NO_ANSWER = object()

NAMES = ("key", "value", "headers", "time", "topic", "partition", "offset")
# Nobody writes a longer one by hand, and parsing time grows with the length.
CHARACTERS_MAX = 4_000

_FAULT = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_LITERAL = re.compile(
    r"""(?:\b[rRbB]{1,2})?(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")""", re.DOTALL
)
_VALUE = re.compile(r"(?<![\w.])value\b")
_FIELD = re.compile(r"\s*\.\s*([A-Za-z_]\w*)\b(?!\s*\()")
_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
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
    """A compiled condition."""

    def __init__(self, text: str, kind: pa.StructType, topic: str, *, is_open: bool = False) -> None:
        """`kind` is the Arrow type of the topic's events; `is_open`: they are any JSON values, whose fields are
        unknown.

        Raises:
            WhereError: the text is not a condition over a record of this topic.
        """
        self._text = text
        self._program = _compiled(text)
        self._bare = _LITERAL.sub(lambda found: " " * len(found[0]), text)
        self._used = [name for name in NAMES if name in self._program.variables()]
        self._check_names()
        self._fields = [] if is_open else self._fields_used([field.name for field in kind], topic)
        self._times = {field.name for field in kind if pa.types.is_timestamp(field.type)}
        self._kind, self._topic = kind, topic
        self._context = cel.Context()
        add_stdlib_to_context(self._context)
        self.answered = 0
        self.failed = 0
        self.first_failure: str | None = None

    def _check_names(self) -> None:
        known = {*NAMES, *_NAMESPACES, *_TYPES, *_BOUND.findall(self._bare)}
        for name in self._program.variables():
            if name not in known:
                raise self._at(name, f"there is no {name!r}; there are {', '.join(NAMES)}")
        for name in self._program.functions():
            if name.isidentifier() and name not in _FUNCTIONS and name != "_":
                raise self._at(name, f"there is no function {name!r}")

    def require_condition(self) -> None:
        """Refuse an expression that is not true or false for a record of empty values; without a result there, the
        records decide.

        Raises:
            WhereError: it is not true or false.
        """
        example = {"key": "", "value": _empty(self._kind), "headers": {}, "time": _moment(0), "topic": self._topic}
        self._is_met({name: {**example, "partition": 0, "offset": 0}[name] for name in self._used})
        self.answered, self.failed, self.first_failure = 0, 0, None

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

    def kept(self, decoded: Decoded) -> list[int]:
        """Return the indexes of the records in a batch that match the condition.

        Raises:
            WhereError: its result is not true or false.
        """
        return [place for place, known in enumerate(self._known(decoded)) if self._is_met(known)]

    def _known(self, decoded: Decoded) -> Sequence[dict[str, Any]]:
        """Return what the condition may read, by record; only what it uses is computed."""
        batch = decoded.batch
        make: dict[str, Callable[[], Sequence[Any]]] = {
            "key": lambda: [text_of(key) for key in batch.keys],
            "value": lambda: self._values(decoded),
            "headers": lambda: [_last_values(one) for one in batch.headers],
            "time": lambda: [_moment(ms) for ms in batch.times_ms.tolist()],
            "topic": lambda: [batch.topic] * len(batch),
            "partition": batch.partitions.tolist,
            "offset": batch.offsets.tolist,
        }
        columns = [make[name]() for name in self._used]
        if not columns:
            return [{} for _ in range(len(batch))]
        return [dict(zip(self._used, row, strict=True)) for row in zip(*columns, strict=True)]

    def _values(self, decoded: Decoded) -> Sequence[Any]:
        rows = decoded.some(self._fields)
        times = [name for name in self._fields if name in self._times]
        for row in rows if times else ():
            if row is not None:
                for name in times:
                    row[name] = None if row[name] is None else _moment(row[name])
        return rows

    def answers(self, decoded: Decoded) -> list[Any]:
        """Return the expression's value for each record of a batch, of any type; `NO_ANSWER` without one."""
        return [self._answer(known) for known in self._known(decoded)]

    def _is_met(self, known: dict[str, Any]) -> bool:
        answer = self._answer(known)
        if answer is NO_ANSWER:
            return False
        if not isinstance(answer, bool):
            raise WhereError(f"the answer is {type(answer).__name__}, not true or false", self._text)
        self.answered += 1
        return answer

    def _answer(self, known: dict[str, Any]) -> Any:
        self._context.update(known)
        try:
            return self._program.execute(self._context)
        except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError, IndexError) as error:
            # A tombstone has no fields; that is not an error of the condition.
            if known.get("value", ()) is not None:
                self.failed += 1
                self.first_failure = self.first_failure or _said(error)
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


def _empty(kind: pa.DataType) -> Any:
    """Return an empty value of an Arrow type."""
    if pa.types.is_struct(kind):
        return {field.name: _empty(field.type) for field in kind}
    if pa.types.is_timestamp(kind):
        return _moment(0)
    return next((value() for is_kind, value in _EMPTY if is_kind(kind)), None)


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


def _last_values(headers: Headers | None) -> dict[str, str | None]:
    """Return headers as conditions see them: of several with one name the last."""
    return {name: text_of(value) for name, value in headers or ()}

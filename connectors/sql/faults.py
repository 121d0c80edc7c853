"""DuckDB's errors in one line of plain English, with the nearest table or column."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import duckdb

from highwater.connectors.sql.catalogue import nearest
from highwater.connectors.sql.foreign_topics import VALUE
from highwater.connectors.sql.query_task import OUT_OF_MEMORY

_TABLE = re.compile(r'Table with name "?([^"\s]+)"? does not exist')
_COLUMN = re.compile(r'(?:Referenced column|does not have a column named) "([^"]+)"')
_NO_FUNCTION = re.compile(r"(?<!\w)((?:\w+ )?Function) with name (\S+) does not exist!(?:\nDid you mean (.*))?")
_NEAR = re.compile(r'at or near "([^"]+)"')
# A word that is not a limit of rows.
_OFFSET = re.compile(r"(?<![\w.\"])offset\b(?!\s*\d)", re.IGNORECASE)
_LINE = re.compile(r"\nLINE (\d+): (.*)\n( *)\^")
_KIND = re.compile(r"^[A-Za-z ]+ Error: ")
_KINDS_IN_ROWS: Mapping[str, type[duckdb.Error]] = {
    "INTERRUPT Error": duckdb.InterruptException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
}
# "LINE 1: " and the part of a long line before the caret.
_MARGIN = len("LINE 1: ")


def error_in_rows(error: Exception) -> Exception:
    """Return DuckDB's error for one that ended its rows: Arrow, which hands them over, knows only the text."""
    if isinstance(error, duckdb.Error) or not _KIND.match(str(error)):
        return error
    kinds = (kind for name, kind in _KINDS_IN_ROWS.items() if str(error).startswith(name))
    return next(kinds, duckdb.Error)(str(error))


def told(
    error: duckdb.Error, query: str, tables: Callable[[], Iterable[str]], columns: Mapping[str, Sequence[str]]
) -> str:
    """Return the error in one line. `tables` returns all names; `columns` are those of the tables in the query."""
    text = str(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return OUT_OF_MEMORY
    missing = _TABLE.search(text)
    if missing is not None:
        near = nearest(missing[1], tables())
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `highwater sql --tables` lists all tables"
        return f"there is no table {missing[1]!r}{hint}"
    column = _COLUMN.search(text)
    if column is not None and columns:
        return f"there is no column {column[1]!r}{_near_column(column[1], columns)}"
    function = _NO_FUNCTION.search(text)
    if function is not None:
        hint = f"; did you mean {function[3]}?" if function[3] else ""
        return f"there is no {function[1].lower()} {function[2]!r}{hint}"
    first = _KIND.sub("", text).split("\n", maxsplit=1)[0].rstrip("!")
    hint = ""
    if isinstance(error, duckdb.ParserException):
        unread = _NEAR.search(first)
        hint = _topic_hint(query, "" if unread is None else unread[1], tables()) or _keyword_hint(query)
    return f"{first}{_place(text)}{hint}"


def _near_column(name: str, columns: Mapping[str, Sequence[str]]) -> str:
    known = list(dict.fromkeys(one for names in columns.values() for one in names))
    if (
        VALUE in known
        and name.isidentifier()
        and not difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.75)
    ):
        return f"; a field of the value is {VALUE}.{name}"
    near = difflib.get_close_matches(name.casefold(), known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return "; there are " + ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")


def _place(text: str) -> str:
    found = _LINE.search(text)
    if found is None or found[2].startswith("..."):
        return "" if found is None else f" (line {found[1]})"
    return f" (line {found[1]}, column {len(found[3]) - _MARGIN + 1})"


def _keyword_hint(query: str) -> str:
    """The column that is meant by a word that SQL keeps for itself."""
    return "; the offset of a record is the column _offset" if _OFFSET.search(query) else ""


def _topic_hint(query: str, near: str, tables: Iterable[str]) -> str:
    """What a topic that was written as it is called is called here; `near` is where the query could not be read."""
    for table in tables:
        topic = table.strip('"')
        if topic != table:
            is_bare = re.search(rf'(?<![\w"\'.-]){re.escape(topic)}(?![\w"\'-])', query) is not None
            if is_bare and (topic == near or not topic.isidentifier()):
                return f"; the topic {topic} needs quotes: {table}"
            continue
        room, _, rest = table.partition(".")
        if "_" in rest and f"{room}.{rest.replace('_', '-')}" in query.casefold():
            return f"; the topic {room}.{rest.replace('_', '-')} is the table {table}"
    return ""

"""Owns DuckDB's errors in one line of plain English, with the nearest table or column."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import duckdb

from highwater.connectors.sql.catalogue import nearest
from highwater.connectors.sql.foreign_topics import VALUE
from highwater.schemas.errors import HighwaterError

_TABLE = re.compile(r'Table with name "?([^"\s]+)"? does not exist')
_COLUMN = re.compile(r'(?:Referenced column|does not have a column named) "([^"]+)"')
_NO_FUNCTION = re.compile(r"((?:\w+ )?Function) with name (\S+) does not exist!(?:\nDid you mean (.*))?")
_LINE = re.compile(r"\nLINE (\d+): (.*)\n( *)\^")
_KIND = re.compile(r"^[A-Za-z ]+ Error: ")
# "LINE 1: " and what stands before the caret of a long line.
_MARGIN = len("LINE 1: ")


class InvalidQueryError(HighwaterError):
    """The query cannot be run. Correct what the message names."""


def told(
    error: duckdb.Error, query: str, tables: Callable[[], Iterable[str]], columns: Mapping[str, Sequence[str]]
) -> str:
    """The error in one line. `tables` gives all there are; `columns` are those of the tables that the query names."""
    text = str(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return (
            "the query needs more memory than it may have; select fewer columns, aggregate, or narrow it by _timestamp"
        )
    missing = _TABLE.search(text)
    if missing is not None:
        near = nearest(missing[1], tables())
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `highwater sql --tables` lists those there are"
        return f"there is no table {missing[1]!r}{hint}"
    column = _COLUMN.search(text)
    if column is not None and columns:
        return f"there is no column {column[1]!r}{_near_column(column[1], columns)}"
    function = _NO_FUNCTION.search(text)
    if function is not None:
        hint = f"; did you mean {function[3]}?" if function[3] else ""
        return f"there is no {function[1].lower()} {function[2]!r}{hint}"
    first = _KIND.sub("", text).split("\n", maxsplit=1)[0].rstrip("!")
    hint = _topic_hint(query, tables()) if isinstance(error, duckdb.ParserException) else ""
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


def _topic_hint(query: str, tables: Iterable[str]) -> str:
    """What a topic that was written as it is called is called here."""
    for table in tables:
        topic = table.strip('"')
        if topic != table:
            if re.search(rf'(?<![\w"\'.-]){re.escape(topic)}(?![\w"\'-])', query) and not topic.isidentifier():
                return f"; the topic {topic} needs quotes: {table}"
            continue
        room, _, rest = table.partition(".")
        if "_" in rest and f"{room}.{rest.replace('_', '-')}" in query.casefold():
            return f"; the topic {room}.{rest.replace('_', '-')} is the table {table}"
    return ""

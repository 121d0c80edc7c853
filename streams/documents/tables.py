"""Tables of documents as Markdown, the form in which every later step reads them (`prose.tables_of`).

Invariant: the words of every cell are kept, in order, each once. Only a table with a header becomes one; rows without it
stay lines of text, since the meaning of their columns is unknown. Reading takes linear time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import islice

from highwater.streams.documents.chunking import Block

# A longer cell belongs to the layout of a page, not to a table.
_CELL_CHARACTERS_MAX = 1_000
# Columns of a table, and rows that a cell may span; more is a mistake or an attack.
_COLUMNS_MAX = _SPAN_MAX = 64
# What separates the values of a line, and the lines that decide which of them it is.
_DELIMITERS, _LINES_TRIED = ("\t", ";", ",", "|"), 20
# The line before a table by which Excel names its separator; it is not a row.
_SEPARATOR = re.compile(r"sep=([\t;,|:^~ ])\n")


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table (GFM 4.10), the first of them as its header. Shorter rows stay short, as GFM allows:
    a table would be as long as its rows times its columns.
    """
    width = max(map(len, rows))
    lines = list(map(_line, rows))
    return "\n".join((lines[0], "|" + " - |" * width, *lines[1:]))


def _line(row: Sequence[str]) -> str:
    cells = [" ".join(cell.replace("|", "\\|").split()) for cell in row]
    return f"| {' | '.join(cells)} |"


def csv_block(text: str) -> Block | None:
    """Return comma-separated values (RFC 4180) as a table, also separated by tabs, semicolons or bars; None if the text
    has not at least two rows of two values.
    """
    named = _SEPARATOR.match(text)
    told = text if named is None else text[named.end() :]
    try:
        delimiter = max(_DELIMITERS, key=lambda one: _columns(told, one)) if named is None else named[1]
        rows = [row for row in _rows(told, delimiter) if any(map(str.strip, row))]
    except csv.Error:  # a value larger than the library's limit
        return None
    if len(rows) < 2 or min(len(row) for row in rows[:2]) < 2:
        return None
    return Block(markdown_table([_within(row, len(rows[0])) for row in rows]))


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    """Yield rows; a quoted value may have line ends."""
    return csv.reader(StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)


def _within(row: Sequence[str], width: int) -> Sequence[str]:
    """Return a row whose values beyond the header are in its last column: a text with unquoted separators."""
    return row if len(row) <= width else [*row[: width - 1], ", ".join(row[width - 1 :])]


def _columns(text: str, delimiter: str) -> int:
    """Return the number of columns of the header if most of the first lines are separated by this, else 1. A line may
    end before its last, empty values.
    """
    counts = [len(row) for row in islice(_rows(text, delimiter), _LINES_TRIED) if row]
    is_table = 2 * sum(1 < count <= counts[0] for count in counts) > len(counts)
    return counts[0] if is_table else 1


class HtmlTable:
    """The rows of an HTML table while it is read.

    `start`: the number of blocks before its first row; None until there is one.
    """

    def __init__(self) -> None:
        self.start: int | None = None
        self.is_data = True
        self._rows: list[list[str]] = []
        self._has_header = False
        self._cell: list[str] | None = None
        self._columns, self._is_head = 1, False
        # Rows that a cell above still covers, by column.
        self._covered: dict[int, int] = {}

    def begin_row(self) -> None:
        """End the cell before, and begin a row."""
        self.end_cell()
        self._rows.append([])
        self._cover()

    def begin_cell(self, tag: str, attributes: Mapping[str, str | None], *, is_in_head: bool) -> None:
        """End the cell before, and begin one, of any row."""
        self.end_cell()
        if not self._rows:
            self.begin_row()
        self._cell, self._columns = [], _span(attributes.get("colspan"))
        self._is_head = tag == "th" or is_in_head
        rows = _span(attributes.get("rowspan"))
        place = len(self._rows[-1])
        if rows > 1:
            self._covered.update(dict.fromkeys(range(place, place + self._columns), rows))

    def add(self, text: str) -> None:
        """Add a text to the open cell. A text outside a cell shows that this is not a table of values."""
        if self._cell is not None:
            self._cell.append(text)
        elif self._rows and text.strip():
            self.is_data = False

    def end_cell(self) -> None:
        """End the open cell, if there is one."""
        if self._cell is None:
            return
        text, row = " ".join("".join(self._cell).split()), self._rows[-1]
        self._cell = None
        self.is_data &= len(text) <= _CELL_CHARACTERS_MAX and len(row) + self._columns <= _COLUMNS_MAX
        if not self.is_data:
            return
        if len(self._rows) == 1:
            self._has_header = (self._is_head or not text) and (self._has_header or not row)
        row += [text, *[""] * (self._columns - 1)]
        self._cover()

    def block(self) -> Block | None:
        """Return the table; None if it has no header, or arranges a page."""
        self.end_cell()
        rows = [row for row in self._rows if any(row)]
        is_table = self.is_data and self._has_header and len(rows) > 1 and sum(map(bool, self._rows[0])) > 1
        return Block(markdown_table(rows)) if is_table else None

    def _cover(self) -> None:
        """Leave the cells of the open row empty that a cell above covers."""
        row = self._rows[-1]
        while self._covered.get(len(row), 0) > 1:
            self._covered[len(row)] -= 1
            row.append("")


def _span(value: str | None) -> int:
    return min(_SPAN_MAX, max(1, int(value))) if value and value.isascii() and value.isdigit() else 1

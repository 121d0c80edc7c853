"""Text tables: columns wrap between words on a narrow terminal, and become lists on a narrower one.

Invariant: no word is broken and nothing is cut off, at any width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len

_GAP = "  "


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, right: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table, its header first, or of lists if it does not fit; `right` names columns of numbers."""
    table = [columns, *rows]
    least = [max(map(_longest_word, column)) for column in zip(*table, strict=True)]
    if sum(least) + len(_GAP) * (len(least) - 1) > width:
        return _lists(columns, rows)
    wanted = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    widths = _shrunk(wanted, least, width - len(_GAP) * (len(least) - 1))
    is_right = [column in right for column in columns]
    return [line for row in table for line in _row(row, widths, is_right)]


def is_table(lines: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether the first line is a header."""
    return bool(lines) and lines[0].split() == " ".join(columns).split()


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _shrunk(wanted_widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Reduce widths to the room: the widest column shrinks first, down to its longest word."""
    widths = list(wanted_widths)
    while sum(widths) > room:
        places = [place for place, width in enumerate(widths) if width > least[place]]
        widest = max(places, key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> list[str]:
    wrapped = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped))):
        pieces = [lines_of[number] if number < len(lines_of) else "" for lines_of in wrapped]
        padded = [
            " " * (width - cell_len(piece)) + piece if to_right else piece + " " * (width - cell_len(piece))
            for piece, width, to_right in zip(pieces, widths, is_right, strict=True)
        ]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _lists(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return each row as lines of name and value, with an empty line between rows; the terminal wraps longer lines."""
    name_width = max(map(cell_len, columns), default=0)
    found: list[str] = []
    for row in rows:
        found += [""] if found else []
        for name, cell in zip(columns, row, strict=True):
            if cell:
                found.append(f"{name}{' ' * (name_width - cell_len(name))}{_GAP}{cell}")
    return found

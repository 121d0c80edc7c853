"""Text that came from outside, as people can read it on a terminal and in a line of a log.

Invariant: nothing in it is interpreted: control, format and separator characters are escaped.
"""

from __future__ import annotations

from typing import Any


def printable(value: Any) -> str:
    """Return a value as text with control, format and separator characters escaped, since a terminal interprets them."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return a text as `printable`, with its ends of lines and tabs."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))

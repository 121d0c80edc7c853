"""Owns what is said of a condition that cannot be read; apart from the language, which takes long to load."""

from __future__ import annotations

from highwater.schemas.errors import HighwaterError


class WhereError(HighwaterError):
    """A condition cannot be read. Correct `--where`.

    `line` of the text (from 1) and `column` (from 1) are where it goes wrong.
    """

    def __init__(self, message: str, text: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"--where, line {line}, column {column}: {message}")
        self.message = message
        self.text = text
        self.line = line
        self.column = column

    def __reduce__(self) -> tuple[type[WhereError], tuple[str, str, int, int]]:
        """As it was made, for it may come from another process."""
        return type(self), (self.message, self.text, self.line, self.column)

    def pointer(self) -> str:
        """The line at fault, and beneath it a caret under the spot."""
        lines = self.text.splitlines() or [""]
        at_fault = lines[min(self.line, len(lines)) - 1].replace("\t", " ")
        return f"{at_fault}\n{' ' * (self.column - 1)}^"

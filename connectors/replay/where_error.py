"""The error of an invalid expression; separate from the language, which takes long to load."""

from __future__ import annotations

from highwater.schemas.errors import HighwaterError


class WhereError(HighwaterError):
    """A condition, or another expression, cannot be read. Correct `--where` or the option that the message names.

    `line` of the text (from 1) and `column` (from 1) are where it goes wrong.
    """

    def __init__(self, message: str, text: str, line: int = 1, column: int = 1, option: str = "--where") -> None:
        super().__init__(f"{option}, line {line}, column {column}: {message}")
        self.option = option
        self.message = message
        self.text = text
        self.line = line
        self.column = column

    def __reduce__(self) -> tuple[type[WhereError], tuple[str, str, int, int, str]]:
        """Pickle it, since it may come from another process."""
        return type(self), (self.message, self.text, self.line, self.column, self.option)

    def pointer(self) -> str:
        """Return the line at fault, and beneath it a caret under the error."""
        lines = self.text.splitlines() or [""]
        at_fault = lines[min(self.line, len(lines)) - 1].replace("\t", " ")
        return f"{at_fault}\n{' ' * (self.column - 1)}^"

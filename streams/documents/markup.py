"""Removes Markdown markup from a text: links, images, tags, emphasis; code and escaped marks are set aside.

Invariant: removing takes linear time for any text. A mark is compared with the next place where it could end, and that place is
searched once, however many marks are open before it; `re` would try each of them with each of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from highwater.streams.letters import unbroken

# The text of a link; its address, which has no spaces, with a title after it; the name of a reference.
_LABEL_CHARACTERS_MAX, _ADDRESS_CHARACTERS_MAX, _TITLE_CHARACTERS_MAX, _REFERENCE_CHARACTERS_MAX = 300, 2_000, 300, 100
_COMMENT_CHARACTERS_MAX, _STRONG_CHARACTERS_MAX = 2_000, 400

# Code, and an escaped mark (CommonMark 2.4).
_CODE = re.compile(r"(`{1,3})(?!`)([^`]{1,300})\1|\\([\\`*_{}\[\]()#+.!|<>~-])")
# Around the number of a piece of code while marks are removed: private characters, which no text has a use for.
_BEGIN, _END = "\ue000", "\ue001"
_CODE_PLACE = re.compile(f"{_BEGIN}([0-9]+){_END}")
_STRONG_BEGINS = re.compile(r"(?<![^\W_])(?:\*\*|__)(?=\S)")
_STRONG_ENDS = re.compile(r"(?<=\S)__(?![^\W_])")
_EMPHASIS = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_]{1,400}?)(?<=\S)\1(?![\w*])")
# An address in angle brackets (CommonMark 6.5), which is not a tag.
_ADDRESS = re.compile(r"<((?:mailto:)?[\w.+-]{1,64}@[\w.-]{1,200}|[a-z][a-z+.-]{1,30}:[^\s<>]{1,2000})>", re.IGNORECASE)
_TAG = re.compile(r"<(?:!--|/?[A-Za-z][^<>]{0,200}>)")


class _Next:
    """The next place of a pattern at or after a place, the end of the text if there is none.

    The places of the questions must not decrease: each part of the text is searched once.
    """

    def __init__(self, pattern: str | re.Pattern[str], text: str) -> None:
        self._pattern = re.compile(pattern)
        self._text = text
        self._found = -1

    def __call__(self, place: int) -> int:
        if self._found < place:
            found = self._pattern.search(self._text, place)
            self._found = len(self._text) if found is None else found.start()
        return self._found


class _Mark(NamedTuple):
    """A part of a text that is replaced by one within it."""

    start: int
    end: int
    kept: slice = slice(0, 0)


def without_marks(text: str) -> tuple[str, list[str]]:
    """Return a text in one line without markup, and the pieces of code and escaped marks whose numbers stand in it."""
    codes: list[str] = []

    def set_aside(code: re.Match[str]) -> str:
        codes.append(code[2] or code[3])
        return f"{_BEGIN}{len(codes) - 1}{_END}"

    text = _CODE.sub(set_aside, text.replace(_BEGIN, " "))
    text = _replaced(text, _links(text, "![", 0, with_references=False))
    text = _replaced(text, _links(text, "[", 1, with_references=True))
    text = _ADDRESS.sub(r"\1", text)
    text = _replaced(text, _tags(text))
    text = _replaced(text, _strong(text))
    return " ".join(unbroken(_EMPHASIS.sub(r"\2", text)).split()), codes


def restored(text: str, codes: list[str]) -> str:
    """Return a part of a text without markup with its pieces of code."""
    return " ".join(_CODE_PLACE.sub(lambda place: codes[int(place[1])], text).split()) if codes else text


def _replaced(text: str, marks: Iterable[_Mark]) -> str:
    parts: list[str] = []
    end = 0
    for mark in marks:
        parts += text[end : mark.start], text[mark.kept]
        end = mark.end
    return "".join((*parts, text[end:]))


def _links(text: str, opening: str, label_characters_min: int, *, with_references: bool) -> Iterator[_Mark]:
    """Yield links or images, whose label stays: `[label](address "title")` and `[label][reference]`."""
    label_end, target_end = _Next(r"\]", text), _Next(r"\)", text)
    address_end, reference_end = _Next(r"\s", text), _Next(r"\]", text)

    def end_of(target: int) -> int:
        """Return the end of what is behind a label, 0 if it is not a target."""
        sign, start = text[target : target + 1], target + 1
        if sign == "(":
            end = target_end(start)
            address = min(address_end(start), end, start + _ADDRESS_CHARACTERS_MAX)
            return end + 1 if end < len(text) and end - address <= _TITLE_CHARACTERS_MAX else 0
        if sign == "[" and with_references:
            end = reference_end(start)
            return end + 1 if end < len(text) and end - start <= _REFERENCE_CHARACTERS_MAX else 0
        return 0

    place = text.find(opening)
    while place >= 0:
        start = place + len(opening)
        close = label_end(start)
        if close == len(text):
            return
        is_label = label_characters_min <= close - start <= _LABEL_CHARACTERS_MAX
        end = end_of(close + 1) if is_label else 0
        if end:
            yield _Mark(place, end, slice(start, close))
        # The labels that begin earlier are longer than a label may be.
        place = text.find(opening, end or max(place + 1, close - _LABEL_CHARACTERS_MAX - len(opening)))


def _tags(text: str) -> Iterator[_Mark]:
    """Yield tags and comments."""
    comment_end, end = _Next("-->", text), 0
    for tag in _TAG.finditer(text):
        if tag.start() < end:  # within a comment
            continue
        if not tag[0].startswith("<!"):
            yield _Mark(*tag.span())
        elif (closing := comment_end(tag.end())) < len(text) and closing - tag.end() <= _COMMENT_CHARACTERS_MAX:
            end = closing + len("-->")
            yield _Mark(tag.start(), end)


def _strong(text: str) -> Iterator[_Mark]:
    """Yield strong emphasis, whose text stays: one between stars has none within, one between lines may have lines."""
    star, lines = _Next(r"\*", text), _Next(_STRONG_ENDS, text)
    found = _STRONG_BEGINS.search(text)
    while found is not None:
        start, end, place = found.end(), star(found.end()), found.start() + 1
        if found[0] == "__":
            closing = lines(start + 1)
            is_strong = closing < end
        else:
            closing = end
            is_strong = (
                text.startswith("**", end)
                and end > start
                and not text[end - 1].isspace()
                and not text[end + 2 : end + 3].isalnum()
            )
        if is_strong and closing - start <= _STRONG_CHARACTERS_MAX:
            place = closing + 2
            yield _Mark(found.start(), place, slice(start, closing))
        found = _STRONG_BEGINS.search(text, place)

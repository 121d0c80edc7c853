"""Splits text into pieces that belong together: what a reader sees as one letter, and what must stay on one line.

Invariant: the pieces joined are the text. Letters are nearly Unicode's grapheme clusters (TR 29): marks, joined emoji,
flags, and syllables of Indic scripts stay whole. Lines break at spaces, and between Chinese and Japanese letters (TR
14), where no line begins with a closing mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import category, combining

_ZERO_WIDTH_JOINER = 0x200D
_VIRAMA_CLASS = 9
# # Thai and Lao vowels that are letters to Unicode and attach to the one before.
_HANGING = frozenset((0x0E33, 0x0EB3))
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_SKIN_TONES = range(0x1F3FB, 0x1F400)
# # Vowels and finals of decomposed Hangul.
_HANGUL_PARTS = range(0x1160, 0x1200)

_HAN = (
    "\u2e80-\u2fdf\u3003-\u3007\u3012-\u301f\u3021-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff01-\uffef\U00020000-\U0003ffff"
)
_OPENS = "「『（［｛【《〈〔〖“"  # noqa: RUF001 - as they are written
_CLOSES = "、。，．！？：；」』）］｝】》〉〕〗”’…ー々ゝゞぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ・％"  # noqa: RUF001 - as above
_PIECE = re.compile(
    rf"(?=\S)[{_OPENS}]*(?:[{_HAN}][\u0300-\u036f\u3099\u309a\ufe00-\ufe0f]*|[^\s{_HAN}{_OPENS}]+)?[{_CLOSES}]*\s*"
)


def letters_of(text: str) -> Iterator[str]:
    """Yield the letters of a text, in order."""
    start = flags = 0
    for place in range(1, len(text)):
        number, before = ord(text[place]), ord(text[place - 1])
        flags = flags + 1 if before in _FLAG_LETTERS else 0
        is_joined = (
            category(text[place])[0] == "M"
            or number in _HANGING
            or number in (_ZERO_WIDTH_JOINER, 0x200C)
            or number in _SKIN_TONES
            or number in _HANGUL_PARTS
            or (before == _ZERO_WIDTH_JOINER and not text[place].isspace())
            or (number in _FLAG_LETTERS and flags % 2 == 1)
            or (combining(text[place - 1]) == _VIRAMA_CLASS and category(text[place])[0] == "L")
        )
        if not is_joined:
            yield text[start:place]
            start = place
    if text:
        yield text[start:]


def pieces_of(text: str) -> list[str]:
    """Return the pieces between which a line may be broken, each with its trailing spaces; leading spaces of the text
    are dropped.
    """
    return _PIECE.findall(text)

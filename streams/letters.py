"""What is one letter to a reader, in any script: marks belong to the letter before them (Unicode Standard Annex 29).

Invariant: a text is cut only between letters. Python's class of letters and digits has no marks, so a pattern of it
would cut a word of an Indic script at each of its vowels.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

# What joins or parts two letters of one word, in Persian and in Indic scripts.
JOINERS = "\u200c\u200d"
# Scripts written without spaces: Thai, Lao, Myanmar, Khmer, Japanese and Chinese.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
# Letters and marks of Chinese and Japanese, between which the end of a line is not a space; a hyphen that only divides a
# word at the end of its line.
_WIDE = r"[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff00-\uffef]"
_LINE_END_WITHIN = re.compile(
    rf"(?<={_WIDE})[ \t]*\n[ \t]*(?={_WIDE})|(?<=[^\W\d_])[\u2010\u00ad][ \t]*\n[ \t]*(?=[^\W\d_])"
)
# Letters of Thai and Lao that belong to the one before them, and to the one after them.
_LETTERS_BEHIND = frozenset("\u0e30\u0e32\u0e33\u0e45\u0e46\u0eb0\u0eb2\u0eb3\u0ec6")
_LETTERS_AHEAD = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")
# Points of Hebrew and Arabic, and the stretching of an Arabic word: most writers omit them, so they are not part of a
# word.
_POINTS = re.compile(
    r"[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8"
    r"\u06ea-\u06ed]"
)
_PLAIN_RUN = re.compile(r"[^\W_]+")


def is_mark(character: str) -> bool:
    """Whether a character belongs to the letter before it: an accent, or a vowel of an Indic script or of Thai."""
    return unicodedata.category(character).startswith("M")


def is_within_letter(written: str, cut: int) -> bool:
    """Whether what stands on both sides of a cut is one letter to a reader."""
    if not 0 < cut < len(written):
        return False
    before, after = written[cut - 1], written[cut]
    return after in _LETTERS_BEHIND or before in _LETTERS_AHEAD or after in JOINERS or is_mark(after)


def cut_to(line: str, characters_max: int) -> str:
    """A line, or its beginning up to a space, else up to the end of a letter, with a sign that it was cut."""
    if len(line) <= characters_max:
        return line
    head, space, _ = line[:characters_max].rpartition(" ")
    if not space:
        cut = characters_max - 1
        while is_within_letter(line, cut):
            cut -= 1
        head = line[:cut]
    return f"{head}\u2026"


def unbroken(text: str) -> str:
    """Return a text without the ends of its lines between letters of Chinese and Japanese and within divided words, where no
    space was written.
    """
    return text if text.isascii() else _LINE_END_WITHIN.sub("", text)


def width_of(text: str) -> int:
    """How long a text is to a reader: a letter of Chinese, Japanese or Korean says as much as two, a mark adds nothing."""
    return sum(
        0 if is_mark(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text
    )


@cache
def marks() -> str:
    """Return the marks of every script and the joiners, for a class of a pattern: 2,000 for which `re` has no class,
    found in 10 ms.
    """
    return "".join(map(re.escape, filter(is_mark, map(chr, range(0x300, 0x10000))))) + JOINERS


def runs_in(text: str) -> list[str]:
    """Return the runs of letters and digits of a text, each letter with its marks."""
    return (_PLAIN_RUN if text.isascii() else _marked_run()).findall(text)


@cache
def _marked_run() -> re.Pattern[str]:
    return re.compile(rf"[^\W_](?:[^\W_]|[{marks()}])*")


def comparable(text: str) -> str:
    """Return a text in the form for comparing its words: without points; in scripts without spaces pairs of
    neighbouring letters are words.
    """
    return text if text.isascii() else UNSPACED.sub(_in_pairs, _POINTS.sub("", text))


def _in_pairs(match: re.Match[str]) -> str:
    run = match.group()
    cuts = [cut for cut in range(len(run) + 1) if not is_within_letter(run, cut)]
    pairs = (run[first:last] for first, last in zip(cuts, cuts[2:] or cuts[1:], strict=False))
    return f" {' '.join(pairs)} "


# In a word of fewer letters an ending is part of the word: `need`, `ring`, `his`.
_STEM_CHARACTERS_MIN = 3
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("s", ""))


def without_ending(word: str) -> str:
    """Return an English word in small letters without its ending, so that its forms are one: `files`, `filed`, `filing`."""
    for ending, instead in _ENDINGS:
        if (
            word.endswith(ending)
            and len(word) - len(ending) >= _STEM_CHARACTERS_MIN
            and not word.endswith(("ss", "us", "is"))
        ):
            word = word.removesuffix(ending) + instead
            break
    return word.removesuffix("e") if len(word) > _STEM_CHARACTERS_MIN else word

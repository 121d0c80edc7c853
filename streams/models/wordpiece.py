"""Texts to the tokens of BERT's uncased vocabulary (WordPiece, Devlin et al. 2018), and which texts a model of English reads.

Its law: a pure function of the text and the vocabulary. It gives the numbers that the library `tokenizers` gives for the same
`tokenizer.json`, but for `[CLS]` and its like within a text, which are taken as the letters that they are. It is here because
that library brings eleven packages more, a client of a model hub among them, for a thousandth of the time that the model takes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

# A longer word is unknown, as in the model's training.
_WORD_CHARACTERS_MAX = 100
# Words repeat; without this a word of 20 letters takes up to 200 looks into the vocabulary. 16,384 of them take some 3 MB.
_WORDS_CACHED_MAX = 1 << 14
# Of all of Unicode at once an attacker's text would otherwise keep 50 MB.
_CHARACTERS_CACHED_MAX = 1 << 14
_CONTINUED = "##"
# With what a text begins and ends, a word that has no pieces; the vocabulary's names.
_BEGIN, _END, _UNKNOWN = "[CLS]", "[SEP]", "[UNK]"

# A text is read if its letters are mostly Latin and are at least a third of what is seen of it: of numbers, signs and
# encoded data the model was shown little.
_LATIN_SHARE_MIN, _LETTER_SHARE_MIN = 1 / 2, 1 / 3

# Ideographs stand for words, so each is one (tokenization.py of BERT: `_is_chinese_char`).
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_ASCII_WORDS = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ASCII_LETTERS = re.compile(r"[A-Za-z]")
_SPACES = re.compile(r"\s")


class WordPieces:
    """A vocabulary. Threads may share it."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._begin, self._end, self._unknown = numbers[_BEGIN], numbers[_END], numbers[_UNKNOWN]
        self._cached: dict[str, tuple[int, ...]] = {}

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, without those that mark its ends."""
        found: list[int] = []
        for word in words_of(text):
            pieces = self._cached.get(word)
            if pieces is None:
                pieces = self._pieces(word)
                if len(self._cached) >= _WORDS_CACHED_MAX:
                    self._cached.clear()
                self._cached[word] = pieces
            found += pieces
        return found

    def windows(self, text: str, *, tokens_max: int, windows_max: int) -> list[list[int]]:
        """A text as windows of up to `tokens_max` tokens, their marked ends counted; what is behind the last is left out."""
        tokens, inner = self.tokens(text), tokens_max - 2
        starts = range(0, min(len(tokens), inner * windows_max), inner)
        return [[self._begin, *tokens[start : start + inner], self._end] for start in starts]

    def pair(self, first: Sequence[int], second: Sequence[int], *, tokens_max: int) -> tuple[list[int], list[int]]:
        """Two texts as one, their marked ends counted, the second cut to what is left; and of which text each token is."""
        left = [self._begin, *first, self._end]
        right = [*second[: max(0, tokens_max - len(left) - 1)], self._end]
        return [*left, *right], [0] * len(left) + [1] * len(right)

    def _pieces(self, word: str) -> tuple[int, ...]:
        """The longest piece that is known, then the longest of the rest; unknown as a whole if some rest is."""
        if len(word) > _WORD_CHARACTERS_MAX:
            return (self._unknown,)
        found, first = [], 0
        while first < len(word):
            mark = _CONTINUED if first else ""
            for last in range(len(word), first, -1):
                number = self._numbers.get(mark + word[first:last])
                if number is not None:
                    break
            else:
                return (self._unknown,)
            found.append(number)
            first = last
        return tuple(found)


def read_vocabulary(content: bytes) -> WordPieces:
    """The vocabulary in a `tokenizer.json`.

    Raises:
        ValueError: it holds no WordPiece vocabulary of lower-cased words.
    """
    try:
        told: dict[str, Any] = orjson.loads(content)
        model, is_lower = told["model"], told["normalizer"]["lowercase"]
        if model["type"] != "WordPiece" or model["continuing_subword_prefix"] != _CONTINUED or not is_lower:
            raise ValueError("it is of another kind")
        return WordPieces(model["vocab"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"no vocabulary: {error!r}") from error


def words_of(text: str) -> list[str]:
    """Lower-cased words without accents; a sign of punctuation and an ideograph are words of their own."""
    if text.isascii():
        return _ASCII_WORDS.findall(_ASCII_CONTROL.sub("", text).lower())
    return "".join(map(_split, unicodedata.normalize("NFD", text))).split()


def is_read(text: str) -> bool:
    """Whether a model of English reads a text: mostly Latin letters, and not mostly numbers and signs."""
    letters, latin = _letters(text)
    seen = len(_SPACES.sub("", text))
    return latin > 0 and latin >= _LATIN_SHARE_MIN * letters and letters >= _LETTER_SHARE_MIN * seen


def _letters(text: str) -> tuple[int, int]:
    """How many letters a text has, and how many of them are Latin."""
    if text.isascii():
        count = len(_ASCII_LETTERS.findall(text))
        return count, count
    letters = [character for character in text if character.isalpha()]
    return len(letters), sum(map(_is_latin, letters))


@lru_cache(_CHARACTERS_CACHED_MAX)
def _is_latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith(("LATIN ", "FULLWIDTH LATIN "))


@lru_cache(_CHARACTERS_CACHED_MAX)
def _split(character: str) -> str:
    """What becomes of a character of a decomposed text: nothing, a space, a word of its own, or its lower case."""
    kind = unicodedata.category(character)
    if character in "\t\n\r" or kind in ("Zs", "Zl", "Zp"):
        return " "
    if kind in ("Mn", "Cc", "Cf", "Co", "Cs") or character in "\0\ufffd":
        return ""
    code = ord(character)
    if any(low <= code <= high for low, high in _IDEOGRAPHS):
        return f" {character} "
    if kind.startswith("P") or (code < 128 and not character.isalnum()):
        return f" {character} "
    return character.lower()

"""Converts texts to the tokens of BERT's uncased vocabulary (WordPiece, Devlin et al. 2018), and decides which texts an
English model reads.

Invariant: a pure function of the text and the vocabulary. It returns the numbers that the library `tokenizers` returns
for the same `tokenizer.json`, except that `[CLS]` and similar tokens within a text are ordinary letters. It exists
because that library brings eleven more packages, including a client of a model hub, for a thousandth of the model's
time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from highwater.streams.languages import text_language

# A longer word is unknown, as in the model's training.
_WORD_CHARACTERS_MAX = 100
# Words repeat; without this cache a word of 20 letters takes up to 200 lookups in the vocabulary. 16,384 of them take
# some 3 MB.
_WORDS_CACHED_MAX = 1 << 14
# Otherwise a text with all of Unicode, sent by an attacker, would keep 50 MB.
_CHARACTERS_CACHED_MAX = 1 << 14
_CONTINUED = "##"
# The tokens at the beginning and end of a text, and for a word without pieces; the vocabulary's names.
_BEGIN, _END, _UNKNOWN = "[CLS]", "[SEP]", "[UNK]"

# A text is read if its letters are mostly Latin and are at least a third of its visible characters: the model was
# trained on few numbers, symbols and encoded data.
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
        """Return the tokens of a text, without those that mark its ends."""
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
        """Return a text as windows of up to `tokens_max` tokens, including the end marks; the rest after the last
        window is left out.
        """
        tokens, inner = self.tokens(text), tokens_max - 2
        starts = range(0, min(len(tokens), inner * windows_max), inner)
        return [[self._begin, *tokens[start : start + inner], self._end] for start in starts]

    def pair(self, first: Sequence[int], second: Sequence[int], *, tokens_max: int) -> tuple[list[int], list[int]]:
        """Return two texts as one, including the end marks, the second cut to the remaining length; and which text each
        token belongs to.
        """
        left = [self._begin, *first, self._end]
        right = [*second[: max(0, tokens_max - len(left) - 1)], self._end]
        return [*left, *right], [0] * len(left) + [1] * len(right)

    def _pieces(self, word: str) -> tuple[int, ...]:
        """Return the longest known piece, then the longest of the rest; unknown as a whole if any rest is."""
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
    """Parse the vocabulary in a `tokenizer.json`.

    Raises:
        ValueError: it has no WordPiece vocabulary of lower-cased words.
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
    """Return lower-cased words without accents; a punctuation mark and an ideograph are words of their own."""
    if text.isascii():
        return _ASCII_WORDS.findall(_ASCII_CONTROL.sub("", text).lower())
    return "".join(map(_split, unicodedata.normalize("NFD", text))).split()


def reads_english(text: str) -> bool:
    """Return whether an English model understands a text: it reads its letters, and its words are of no other language."""
    return is_read(text) and text_language(text) is None


def is_read(text: str) -> bool:
    """Return whether an English model reads a text: mostly Latin letters, and not mostly numbers and symbols."""
    letters, latin = _letters(text)
    seen = len(_SPACES.sub("", text))
    return latin > 0 and latin >= _LATIN_SHARE_MIN * letters and letters >= _LETTER_SHARE_MIN * seen


def _letters(text: str) -> tuple[int, int]:
    """Return how many letters a text has, and how many of them are Latin."""
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
    """Return the result for a character of a decomposed text: nothing, a space, a word of its own, or its lower case."""
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

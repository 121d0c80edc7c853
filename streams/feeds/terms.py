"""Finds the terms of many texts at once. Invariant: for each text exactly the terms of `basis.terms_of`, in the same
order.

A regular expression costs a microsecond to begin and many nanoseconds per character, so a batch of short texts is split
by array operations on its characters instead: one look-up gives the kind of every character of the batch, differences
of neighbours the edges of words. Texts that this cannot decide (other scripts, an apostrophe beside a digit, a text
without words) are processed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.basis import terms_of
from highwater.streams.feeds.tokens import STOP_WORDS, WORD_CHARACTERS_MAX, without_addresses

Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.int64]

# Bits of the kind of a character.
_LOWER, _UPPER, _DIGIT, _UNDERSCORE, _HEX = 1, 2, 4, 8, 16
_LETTER, _ALNUM, _WORD = _LOWER | _UPPER, _LOWER | _UPPER | _DIGIT, _LOWER | _UPPER | _DIGIT | _UNDERSCORE
_KINDS = np.zeros(256, dtype=np.uint8)
_KINDS[list(b"abcdefghijklmnopqrstuvwxyz")] = _LOWER
_KINDS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")] = _UPPER
_KINDS[list(b"0123456789")] = _DIGIT
_KINDS[list(b"_")] = _UNDERSCORE
_KINDS[list(b"abcdef0123456789")] |= _HEX
# Counts of characters, each in 20 bits of one number, so that one running sum counts all: digits, hexadecimal digits,
# and characters that the first part of an issue key cannot have. A batch of the embedder has far fewer than 2^20
# characters.
_COUNT_BITS = 20
_COUNT_MAX = (1 << _COUNT_BITS) - 1
_DIGITS, _HEX_DIGITS, _NOT_OF_KEYS = 0, _COUNT_BITS, 2 * _COUNT_BITS
_COUNTED = (
    ((_KINDS & _DIGIT) != 0).astype(np.int64)
    + (((_KINDS & _HEX) != 0).astype(np.int64) << _HEX_DIGITS)
    + (((_KINDS & (_LOWER | _UNDERSCORE)) != 0).astype(np.int64) << _NOT_OF_KEYS)
)
_HYPHEN, _APOSTROPHE = ord("-"), ord("'")
# `tokens._HASH`: the number of hexadecimal digits.
_HASH_CHARACTERS_MIN, _HASH_CHARACTERS_MAX = 7, 64


def terms_of_all(texts: Sequence[str | None], *, keeps_marks: bool = False) -> tuple[list[str], Places]:
    """The terms of each text, those of one text together and in order, and beside each term the number of its text.

    The texts are in any order. Together they have at most 1 Mi of characters.
    """
    cut = [without_addresses(text) for text in texts]
    plain = [i for i, text in enumerate(cut) if text.isascii()]
    words, owner, undecided = _words_of_plain([cut[i] for i in plain])
    text_of = np.array(plain, dtype=np.int64)[owner]
    is_stop = np.fromiter(map(STOP_WORDS.__contains__, words), dtype=np.bool_, count=len(words))
    has_telling = np.zeros(len(texts), dtype=np.bool_)
    has_telling[text_of[~is_stop]] = True
    slow = ~has_telling
    slow[np.array(plain, dtype=np.int64)[undecided]] = True
    kept = ~(is_stop | slow[text_of])
    terms, numbers = list(compress(words, kept.tolist())), [text_of[kept]]
    for i in np.flatnonzero(slow).tolist():
        found = terms_of(texts[i], keeps_marks=keeps_marks)
        terms += found
        numbers.append(np.full(len(found), i))
    return terms, np.concatenate(numbers)


def _words_of_plain(texts: Sequence[str]) -> tuple[list[str], Places, Places]:
    """Return the words of ASCII texts, the number of each word's text, and the numbers of texts that are not decided here."""
    joined = "\n".join(texts)
    begins = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]
    character = np.frombuffer(
        f"\n{joined}\n\n".encode("ascii"), dtype=np.uint8
    )  # a border, so that each has neighbours
    kind = _KINDS[character]
    counted = np.cumsum(_COUNTED[character])
    _blank_names(character, kind, counted)
    glue = _apostrophes(character, kind)
    starts, ends = _segments(kind, glue)

    digit_count = (counted[ends - 1] - counted[starts - 1]) & _COUNT_MAX
    length = ends - starts
    is_name = ((kind[starts] & _LETTER) != 0) & (length >= 3) & (2 * digit_count < length)
    is_word = (length <= WORD_CHARACTERS_MAX) & ((digit_count == 0) | is_name)

    text_of = np.searchsorted(begins, starts - 1, side="right") - 1
    undecided = np.zeros(0, dtype=np.int64)
    if len(glue):
        glues = np.searchsorted(glue, ends) - np.searchsorted(glue, starts)
        undecided = text_of[(glues > 1) | ((glues == 1) & (digit_count > 0))]
    lower = joined.lower()
    spans = zip((starts[is_word] - 1).tolist(), (ends[is_word] - 1).tolist(), strict=True)
    return [lower[first:last] for first, last in spans], text_of[is_word], undecided


def _blank_names(character: NDArray[np.uint8], kind: NDArray[np.uint8], counted: Places) -> None:
    """Remove issue keys and hashes (`tokens._ISSUE_KEY`, `tokens._HASH`) from the kinds of the characters."""
    edges = np.flatnonzero(np.diff(kind & _WORD != 0)) + 1
    starts, ends = edges[::2], edges[1::2]
    counts, length = counted[ends - 1] - counted[starts - 1], ends - starts
    digits = counts & _COUNT_MAX
    is_gone = (digits > 0) & (length >= _HASH_CHARACTERS_MIN) & (length <= _HASH_CHARACTERS_MAX)
    is_gone &= ((counts >> _HEX_DIGITS) & _COUNT_MAX) == length
    # A key: capitals and digits, a hyphen, digits.
    is_prefix = (length >= 2) & (kind[starts] & _UPPER != 0) & (counts >> _NOT_OF_KEYS == 0)
    is_joint = (ends[:-1] + 1 == starts[1:]) & (character[ends[:-1]] == _HYPHEN)
    is_key = is_prefix[:-1] & is_joint & (digits[1:] == length[1:])
    is_gone[:-1] |= is_key
    is_gone[1:] |= is_key
    step = np.zeros(len(kind), dtype=np.int8)
    step[starts[is_gone]], step[ends[is_gone]] = 1, -1
    kind[np.cumsum(step, dtype=np.int8) > 0] = 0


def _apostrophes(character: NDArray[np.uint8], kind: NDArray[np.uint8]) -> Places:
    """Return where an apostrophe is within a word: a letter or digit before it, a letter after it."""
    found: Places = np.flatnonzero(character == _APOSTROPHE)
    is_within: Flags = ((kind[found - 1] & _ALNUM) != 0) & ((kind[found + 1] & _LETTER) != 0)
    return np.compress(is_within, found)


def _segments(kind: NDArray[np.uint8], glue: Places) -> tuple[Places, Places]:
    """Return where runs of letters and digits begin and end, split at case changes (`tokens._CASE_CHANGE`)."""
    is_lower, is_upper, is_run = (kind & _LOWER) != 0, (kind & _UPPER) != 0, (kind & _ALNUM) != 0
    is_run[glue] = True
    # At i: a cut between i and i + 1.
    is_cut = is_lower[:-1] & is_upper[1:]
    is_cut[:-1] |= is_upper[:-2] & is_upper[1:-1] & is_lower[2:]
    is_start = is_run[1:] & (is_cut | ~is_run[:-1])
    is_end = is_run[:-1] & (is_cut | ~is_run[1:])
    return np.flatnonzero(is_start) + 1, np.flatnonzero(is_end) + 1

"""The direction of text: which letters of a line run from right to left, and their display order (Unicode TR 9).

Invariant: levels are those of the Unicode Bidirectional Algorithm for a paragraph without explicit embeddings,
overrides and isolates. Such marks are ignored: texts of decks contain them only by accident.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from unicodedata import bidirectional, category, mirrored, normalize

# Brackets open at once beyond which pairs are no longer matched (BD16).
_OPEN_MAX = 63
_STRONG = {"L": "L", "R": "R", "AL": "R"}
# The direction beside neutral letters (N1).
_SIDES = {"L": "L", "R": "R", "EN": "R", "AN": "R"}
_NEUTRAL = frozenset(("B", "S", "WS", "ON"))
_LEFT_OUT = frozenset(("BN", "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"))


def base_level(text: str) -> int:
    """Return 1 for a paragraph whose first letter with a direction runs from right to left, else 0 (P2, P3)."""
    return next((int(_STRONG[kind] == "R") for kind in map(bidirectional, text) if kind in _STRONG), 0)


def levels_of(text: str, base: int) -> list[int]:
    """Return the level of each letter of a paragraph; odd ones run from right to left. `base`: see `base_level`."""
    kept = [place for place, letter in enumerate(text) if bidirectional(letter) not in _LEFT_OUT]
    own = "R" if base else "L"
    kinds = [bidirectional(text[place]) or "L" for place in kept]
    _resolve_weak(kinds, own)
    _resolve_brackets(kinds, [text[place] for place in kept], own)
    _resolve_neutral(kinds, own)
    levels = [-1] * len(text)
    for place, kind in zip(kept, kinds, strict=True):
        levels[place] = base + _raised(kind, base)
    for place, level in enumerate(levels):  # an ignored character has the level of the one before it
        if level < 0:
            levels[place] = levels[place - 1] if place else base
    return levels


def shown_runs(text: str, levels: Sequence[int], base: int) -> list[tuple[int, int, int]]:
    """Return a line's runs of one level from left to right, as (start, end, level) (L1, L2)."""
    levels = list(levels)
    for place in range(len(text) - 1, -1, -1):  # spaces at the end of a line come after it
        if bidirectional(text[place]) not in ("WS", "S", "B", *_LEFT_OUT):
            break
        levels[place] = base
    runs = list(_runs(levels))
    for level in range(max(levels, default=0), 0, -1):
        first = 0
        while first < len(runs):
            last = first
            while last < len(runs) and runs[last][2] >= level:
                last += 1
            runs[first:last] = runs[first:last][::-1]
            first = last + 1
    return runs


def _runs(levels: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    start = 0
    for end in range(1, len(levels) + 1):
        if end == len(levels) or levels[end] != levels[start]:
            yield start, end, levels[start]
            start = end


def _raised(kind: str, base: int) -> int:
    """Return how many levels a letter is above the paragraph (I1, I2)."""
    if base:
        return int(kind != "R")
    return {"R": 1, "L": 0}.get(kind, 2)


def _resolve_weak(kinds: list[str], own: str) -> None:
    """Apply W1 to W7."""
    for place, kind in enumerate(kinds):
        if kind == "NSM":
            kinds[place] = kinds[place - 1] if place else own
    _resolve_numbers(kinds, own, after="AL", as_kind="AN")
    kinds[:] = ["R" if kind == "AL" else kind for kind in kinds]
    for place in range(1, len(kinds) - 1):
        before, after = kinds[place - 1], kinds[place + 1]
        is_between = kinds[place] == "CS" or (kinds[place] == "ES" and before == "EN")
        if is_between and before == after and before in ("EN", "AN"):
            kinds[place] = before
    for start, end in _stretches(kinds, frozenset(("ET",))):
        is_of_number = "EN" in (kinds[start - 1 : start] + kinds[end : end + 1])
        kinds[start:end] = ["EN" if is_of_number else "ON"] * (end - start)
    kinds[:] = ["ON" if kind in ("ES", "CS") else kind for kind in kinds]
    _resolve_numbers(kinds, own, after="L", as_kind="L")


def _resolve_numbers(kinds: list[str], own: str, *, after: str, as_kind: str) -> None:
    """Change the kind of European numbers after a letter of a direction (W2, W7)."""
    strong = own
    for place, kind in enumerate(kinds):
        if kind in _STRONG:
            strong = kind
        elif kind == "EN" and strong == after:
            kinds[place] = as_kind


def _resolve_brackets(kinds: list[str], letters: Sequence[str], own: str) -> None:
    """Apply N0: both brackets of a pair get the direction of their contents, or of the text before them."""
    for start, end in _pairs(kinds, letters):
        inner = {_SIDES[kind] for kind in kinds[start + 1 : end] if kind in _SIDES}
        if not inner:
            continue
        before = next((_SIDES[kind] for kind in reversed(kinds[:start]) if kind in _SIDES), own)
        found = own if own in inner else before
        for place in (start, end):
            kinds[place] = found
            after = place + 1
            while after < len(kinds) and bidirectional(letters[after]) == "NSM":
                kinds[after] = found
                after += 1


def _pairs(kinds: Sequence[str], letters: Sequence[str]) -> list[tuple[int, int]]:
    held: list[tuple[str, int]] = []
    pairs: list[tuple[int, int]] = []
    for place, letter in enumerate(letters):
        if kinds[place] != "ON" or not mirrored(letter):
            continue
        letter = normalize("NFD", letter)  # noqa: PLW2901 - angle brackets are written in two ways
        closing = _closing(letter)
        if closing is not None:
            if len(held) == _OPEN_MAX:
                return []
            held.append((closing, place))
            continue
        for depth in range(len(held) - 1, -1, -1):
            if held[depth][0] == letter:
                pairs.append((held[depth][1], place))
                del held[depth:]
                break
    return sorted(pairs)


@cache
def _closing(letter: str) -> str | None:
    """Return the bracket that closes this one; Unicode has them one or two code points apart."""
    if category(letter) != "Ps":
        return None
    after = (chr(ord(letter) + step) for step in (1, 2))
    return next((one for one in after if category(one) == "Pe" and mirrored(one)), None)


def _resolve_neutral(kinds: list[str], own: str) -> None:
    """Apply N1 and N2."""
    for start, end in _stretches(kinds, _NEUTRAL):
        before = _SIDES[kinds[start - 1]] if start else own
        after = _SIDES[kinds[end]] if end < len(kinds) else own
        kinds[start:end] = [before if before == after else own] * (end - start)


def _stretches(kinds: Sequence[str], words_wanted: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of letters of these kinds, as (start, end)."""
    end = 0
    while end < len(kinds):
        start = end
        while end < len(kinds) and kinds[end] in words_wanted:
            end += 1
        if end > start:
            yield start, end
        end = max(end, start + 1)

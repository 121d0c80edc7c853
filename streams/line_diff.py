"""Compares the lines of two texts that may come from outside.

Invariant: it takes a fraction of a second for any texts. `difflib` takes the cube of their lines for lines that alternate, so
texts that have too much in common in too many ways are one change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

# Of what is between the equal lines at both ends. 2,000 lines of each, of 100 kinds, take 0.15 s.
_LINES_PRODUCT_MAX, _PAIRS_MAX = 4_000_000, 50_000


class Part(NamedTuple):
    """Lines `begin` to `end` of the old text, and the lines of the new one in their place."""

    begin: int
    end: int
    new_begin: int
    new_end: int
    is_equal: bool


def parts(old: Sequence[str], new: Sequence[str]) -> list[Part]:
    """Return the parts of two texts that are equal or differ, in order."""
    shorter = min(len(old), len(new))
    first = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    left = shorter - first
    last = next((place for place in range(left) if old[-1 - place] != new[-1 - place]), left)
    ends = len(old) - last, len(new) - last
    found = [Part(0, first, 0, first, is_equal=True)] if first else []
    found += _middle(old[first : ends[0]], new[first : ends[1]], first)
    return [*found, Part(ends[0], len(old), ends[1], len(new), is_equal=True)] if last else found


def _middle(old: Sequence[str], new: Sequence[str], first: int) -> Iterator[Part]:
    counts = Counter(new)
    pairs = sum(counts[line] for line in old)
    if len(old) * len(new) > _LINES_PRODUCT_MAX or pairs > _PAIRS_MAX:
        yield Part(first, first + len(old), first, first + len(new), is_equal=False)
        return
    for kind, begin, end, new_begin, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield Part(first + begin, first + end, first + new_begin, first + new_end, is_equal=kind == "equal")


class _Compared(SequenceMatcher[str]):
    """Texts that were compared, to be grouped."""

    def __init__(self, found: Sequence[Part]) -> None:
        super().__init__()
        self._found = found

    def get_opcodes(self) -> Any:
        return [("equal" if one.is_equal else "replace", *one[:4]) for one in self._found]


def unified(old: Sequence[str], new: Sequence[str], context_lines: int) -> list[str]:
    """Return the differences in the form of `diff -u`, without its two header lines."""
    lines: list[str] = []
    for group in _Compared(parts(old, new)).get_grouped_opcodes(context_lines):
        (_, begin, _, new_begin, _), (_, _, end, _, new_end) = group[0], group[-1]
        lines.append(f"@@ -{_range(begin, end)} +{_range(new_begin, new_end)} @@")
        for kind, start, stop, new_start, new_stop in group:
            if kind == "equal":
                lines += (f" {line}" for line in old[start:stop])
            else:
                lines += (f"-{line}" for line in old[start:stop])
                lines += (f"+{line}" for line in new[new_start:new_stop])
    return lines


def _range(begin: int, end: int) -> str:
    """Return a range as `diff -u` writes it: an empty one begins at the line before it."""
    count = end - begin
    return f"{begin + 1}" if count == 1 else f"{begin + (count > 0)},{count}"

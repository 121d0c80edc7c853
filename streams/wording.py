"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things in words: `1 record`, `1,200 records`; `plural` only where it is not `noun` with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def agreed(number: int, one: str, many: str) -> str:
    """Return the words that agree with a number: `is` with 1, `are` with 0 and 2."""
    return one if number == 1 else many

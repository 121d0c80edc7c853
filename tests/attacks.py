"""Attacks on what computes on a stranger's text: texts that an expression tries in many ways, and how its time grows.

An attack on a regular expression is made from the expression itself: each part of it is repeated, after what stands before it,
and ends with something that does not fit.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf, log
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from time import thread_time
from typing import Any

ROOT = Path(__file__).parents[1]
# Letters of an attack on an expression: a linear one takes up to 0.05 ms for the longer, a quadratic one 1 ms.
ATTACK_CHARACTERS, ATTACK_SECONDS_MAX = (100, 1_000), 0.0005
# Texts whose times are compared, and the shortest time that says anything.
SIZES, SECONDS_MIN = (500, 2_000, 8_000), 0.001
# How expressions are used that are not used by their names.
USED_AS = {"stages._NAMED": {"fullmatch"}, "chunking._CUTS": {"finditer"}, "prose._RULE_CELL": {"fullmatch"}}
_ENDS = ("", "\x01")
_SCANS = frozenset({"search", "sub", "subn", "finditer", "findall", "split"})
_METHODS = "|".join(("match", "fullmatch", *_SCANS))
_OF_CATEGORY = {
    kinds.CATEGORY_DIGIT: "1",
    kinds.CATEGORY_NOT_DIGIT: "a",
    kinds.CATEGORY_SPACE: " ",
    kinds.CATEGORY_NOT_SPACE: "a",
    kinds.CATEGORY_WORD: "a",
    kinds.CATEGORY_NOT_WORD: " ",
}
_REPEATS = frozenset({kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT})


def expressions_in(folder: str) -> Iterator[tuple[str, str, re.Pattern[Any]]]:
    """Yield the expressions of the modules in a folder: the name, how it is used (`match`, `search`, ...), and itself."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re.compile" not in source:
            continue
        module = importlib.import_module(".".join(("highwater", *path.relative_to(ROOT).with_suffix("").parts)))
        for name, value in vars(module).items():
            patterns = [one for one in _flat(value) if isinstance(one, re.Pattern)]
            if patterns and re.search(rf"^{name}\b[^=\n]*= ", source, re.MULTILINE):
                used = (
                    USED_AS.get(f"{path.stem}.{name}")
                    or set(re.findall(rf"\b{name}\.({_METHODS})\b", source))
                    or set(re.findall(rf"\.({_METHODS})\b", source))
                )
                for pattern in patterns:
                    for how in sorted({"search" if one in _SCANS else one for one in used}):
                        yield f"{path.relative_to(ROOT)}: {name}", how, pattern


def slow_attack(pattern: re.Pattern[Any], how: str) -> str | None:
    """Return an attack on an expression whose time grows faster than it does; None if there is none."""
    scan = partial(_scan, pattern) if how == "search" else getattr(pattern, how)
    for before, part in _parts(pattern):
        for end in _ENDS:
            made = partial(_attack, pattern, before, part, end)
            is_suspect = any(_seconds(scan, made(size)) > ATTACK_SECONDS_MAX for size in ATTACK_CHARACTERS)
            if is_suspect and growth(scan, made) > GROWTH_MAX:
                return f"{before!r} + {part!r} * n + {end!r}"
    return None


def _scan(pattern: re.Pattern[Any], text: Any) -> int:
    return sum(1 for _ in pattern.finditer(text))


# An exponent of linear work is 1; one of quadratic work is 2. Half of the distance is left to a busy machine.
GROWTH_MAX = 1.5


def growth(work: Callable[[Any], object], text_of: Callable[[int], Any]) -> float:
    """Return the exponent with which the processor time of work grows with its text; 0 while it is too short to say."""
    times = []
    for size in SIZES:
        text = text_of(size)
        times.append(max(SECONDS_MIN, min(_seconds(work, text), _seconds(work, text))))
        if times[-1] > _SECONDS_ENOUGH:
            break
    if len(times) == 1:
        return inf
    return log(times[-1] / times[0]) / log(SIZES[len(times) - 1] / SIZES[0])


_SECONDS_ENOUGH = 0.5


def _seconds(work: Callable[[Any], object], text: Any) -> float:
    began = thread_time()
    work(text)
    return thread_time() - began


def _attack(pattern: re.Pattern[Any], before: str, part: str, end: str, size: int) -> Any:
    text = before + part * (size // len(part)) + end
    return text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _flat(one)
    else:
        yield value


def _parts(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """Return what is repeated in attacks, each with what is put before it."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    found = {("", sign) for sign in " \n\ta1.(-"}
    _collect(parser.parse(text, pattern.flags & (re.IGNORECASE | re.DOTALL | re.MULTILINE | re.VERBOSE)), "", found)
    return sorted(one for one in found if one[1])


def _collect(nodes: Sequence[Any], before: str, found: set[tuple[str, str]]) -> None:
    for place, (kind, value) in enumerate(nodes):
        start = before + _sample(list(nodes)[:place])
        found |= {(start, _sample([(kind, value)])), ("", start), ("", start + _sample([(kind, value)]))}
        if kind in _REPEATS:
            _collect(value[2], start, found)
        elif kind is kinds.SUBPATTERN:
            _collect(value[3], start, found)
        elif kind is kinds.ATOMIC_GROUP:
            _collect(value, start, found)
        elif kind is kinds.BRANCH:
            for branch in value[1]:
                _collect(branch, start, found)
        elif kind in (kinds.ASSERT, kinds.ASSERT_NOT):
            _collect(value[1], start, found)
        elif kind is kinds.IN and len(value) < 12:
            found |= {(start, _of_class([one])) for one in value if one[0] is not kinds.NEGATE}


def _sample(nodes: Sequence[Any]) -> str:
    """Return a text that fits."""
    return "".join(_sample_of(*node) for node in nodes)


def _sample_of(kind: Any, value: Any) -> str:
    if kind is kinds.LITERAL:
        return chr(value)
    if kind in (kinds.NOT_LITERAL, kinds.ANY):
        return "a" if value != ord("a") else "b"
    if kind is kinds.IN:
        return _of_class(value)
    if kind in _REPEATS:
        return _sample(value[2]) * max(value[0], 1)
    if kind in (kinds.SUBPATTERN, kinds.ATOMIC_GROUP):
        return _sample(value[3] if kind is kinds.SUBPATTERN else value)
    return _sample(value[1][0]) if kind is kinds.BRANCH else ""


def _of_class(items: Sequence[Any]) -> str:
    """Return a letter of a class."""
    kind, value = items[0]
    if kind is kinds.NEGATE:
        return next((sign for sign in "a 1\n-(x[.:*" if not any(_is_in(sign, *one) for one in items[1:])), "\u00e9")
    return _OF_CATEGORY[value] if kind is kinds.CATEGORY else chr(value if kind is kinds.LITERAL else value[0])


def _is_in(sign: str, kind: Any, value: Any) -> bool:
    if kind is kinds.CATEGORY:
        return re.fullmatch({"1": r"\d", " ": r"\s|\W"}.get(_OF_CATEGORY[value], r"\S|\w"), sign) is not None
    return ord(sign) == value if kind is kinds.LITERAL else value[0] <= ord(sign) <= value[1]

"""The built-in model for decks: what stands in for a language model when no service is configured. Law: it invents nothing.

It answers in the form that the prompts of `decks` ask for. An outline divides the passages it is given, in their order, into as
many parts as slides are wanted and names each by its most telling words; a slide quotes the sentences that share most with its
points. Without sources it says so. No clock, chance or state: the same message always gets the same answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import orjson

from highwater.streams.jobs.decks import OUTLINE

NO_SOURCES = "No document was given for this."
# A title of three words is read at a glance; points and bullets fill a slide and no more.
TITLE_WORDS, POINTS, BULLETS = 3, 3, 5
SENTENCE_CHARACTERS_MIN, SENTENCE_CHARACTERS_MAX = 20, 280
_WORD = re.compile(r"[^\W\d_][\w-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n(?=#)")
# Marks of headings and lists, which a slide has of its own.
_MARK = re.compile(r"\s*(#{1,6}|[-*+]|\d{1,3}[.)])\s+")
# Below this many letters a word names little: `the`, `and`, `not`.
_WORD_CHARACTERS_MIN = 4


def local_deck_answer(stage: str, user: str) -> str:
    """The answer to the message `user` of a step of a deck."""
    try:
        asked = orjson.loads(user)
    except orjson.JSONDecodeError:
        asked = {}
    answer = _outline(asked) if stage == OUTLINE else _slide(asked)
    return orjson.dumps(answer).decode()


def _outline(asked: Mapping[str, Any]) -> dict[str, Any]:
    query, count = str(asked.get("query", "")), int(asked.get("slides", 1))
    parts = _divided(_sentences(asked), count)
    everywhere = Counter(word for part in parts for word in {word for line in part for word in _words(line)})
    named = [_named(part, everywhere, len(parts)) for part in parts]
    title = _cut(query, 80) or "Untitled"
    slides = [
        {"title": name or f"{title} ({number})", "points": [_cut(line, 120) for line in part[:POINTS]]}
        for number, (name, part) in enumerate(zip(named, parts, strict=True), 1)
    ]
    return {"title": title, "slides": slides}


def _slide(asked: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {word for text in (asked.get("title", ""), *asked.get("points", ())) for word in _words(str(text))}
    lines = _sentences(asked)
    scored = [(len(wanted.intersection(_words(line))), -place) for place, line in enumerate(lines)]
    best = sorted(-place for score, place in sorted(scored, reverse=True)[:BULLETS] if score > 0)
    bullets = [lines[place] for place in best] or [NO_SOURCES]
    return {"title": asked.get("title") or "Untitled", "bullets": bullets, "notes": " ".join(bullets[:2])}


def _sentences(asked: Mapping[str, Any]) -> list[str]:
    """What the sources say, sentence by sentence, each once; what is no sentence is left out where there are others."""
    found = dict.fromkeys(
        _cut(_MARK.sub("", line, count=1) if _MARK.match(line) else line, SENTENCE_CHARACTERS_MAX)
        for source in asked.get("sources", ())
        for line in _SENTENCE_END.split(str(source.get("text", "")))
        if line.strip()
    )
    return [line for line in found if len(line) >= SENTENCE_CHARACTERS_MIN] or list(found)


def _divided(lines: Sequence[str], count: int) -> list[list[str]]:
    """In so many parts of the same size, in order; empty ones where there are fewer lines than parts."""
    return [list(lines[len(lines) * i // count : len(lines) * (i + 1) // count]) for i in range(count)]


def _named(part: Sequence[str], everywhere: Counter[str], parts: int) -> str:
    """The words that a part has often and others seldom, as they are written."""
    written = {word.casefold(): word for line in reversed(part) for word in _WORD.findall(line)}
    counts = Counter(word for line in part for word in _words(line))
    weight = {word: times * (1 + log(parts / everywhere[word])) for word, times in counts.items()}
    best = sorted(weight, key=lambda word: (-weight[word], word))[:TITLE_WORDS]
    name = ", ".join(written[word] for word in best)
    return name[:1].upper() + name[1:]


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if len(word) >= _WORD_CHARACTERS_MIN]


def _cut(text: str, characters_max: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters_max else f"{line[: characters_max - 1].rsplit(' ', 1)[0]}\u2026"

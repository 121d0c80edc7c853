"""The built-in model for decks: what stands in for a language model when no service is configured. Law: it invents nothing.

It answers in the form that the prompts of `decks` ask for. An outline has a slide for each section of the sources, named by its
heading; where slides are more or fewer, sections are divided or put together, and a part without a heading is named by the claim
of its first sentence. A slide quotes the sentences of its part, none that another slide quotes. Without sources it says so. No
clock, chance or state: the same message always gets the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from highwater.streams.documents.prose import Table, sentences_of, tables_of
from highwater.streams.jobs.decks import HEADING_BETWEEN, OUTLINE

NO_SOURCES = "No document was given for this."
# Points and bullets fill a slide and no more; what else a part says is for the speaker.
POINTS, BULLETS, NOTES = 3, 5, 3
SENTENCE_CHARACTERS_MIN, SENTENCE_CHARACTERS_MAX = 20, 280
POINT_CHARACTERS_MAX = 120
# A title is read at a glance: some eight words.
TITLE_CHARACTERS_MAX, TITLE_CHARACTERS_MIN = 64, 20
_CLAUSE_END = re.compile(
    r"[,;:(\u2013\u2014、，；：]|\s(?:because|which|that|but|while|when|where|if|since|so|after|before)\s"  # noqa: RUF001
)
_WORD = re.compile(r"[^\W\d_][\w-]*")
# Below this many letters a word names little: `the`, `and`, `not`.
_WORD_CHARACTERS_MIN = 4
# A sentence that begins so leans on the one before, and says less alone; so does one that ends with a colon, on what follows.
_LEANING = re.compile(
    r"(?:this|that|these|those|it|its|they|them|he|she|but|and|so|or|then|thus|hence|however|therefore|also|instead|otherwise)\b",
    re.IGNORECASE,
)
# Numbers before headings: `1.`, `2.3`, `IV.`
_HEADING_NUMBER = re.compile(r"^(?:\d+(?:\.\d+)*[.)]?|[IVX]+\.)\s+(?=\S)")


@dataclass(frozen=True, slots=True)
class _Line:
    """A sentence, its source, and its place among all."""

    text: str
    source: str
    place: int


@dataclass(slots=True)
class _Part:
    """What one slide is about. `headings`: the path of each section in it."""

    lines: list[_Line] = field(default_factory=list)
    headings: list[tuple[str, ...]] = field(default_factory=list)
    document: str = ""


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
    title = _cut(query, 80) or "Untitled"
    parts = list(_padded(_divided(_merged(_sections(asked), count), count), count))
    slides: list[dict[str, Any]] = []
    named = set[str]()
    for number, part in enumerate(parts, start=1):
        name = next((name for name in _names(part) if name not in named), f"{title} ({number})")
        named.add(name)
        slides.append(
            {"title": name, "points": [_cut(line.text, POINT_CHARACTERS_MAX) for line in part.lines[:POINTS]]}
        )
    return {"title": title, "slides": slides}


def _slide(asked: Mapping[str, Any]) -> dict[str, Any]:
    title = str(asked.get("title") or "Untitled")
    lines = [line for part in _sections(asked) for line in part.lines]
    said = set(map(str, asked.get("said", ())))
    own = [line for line in _own(asked, lines) if line.text not in said]
    chosen = _chosen(own, title)
    if not chosen:
        return {"title": title, "bullets": [NO_SOURCES], "notes": ""}
    shown = {line.place for line in chosen}
    rest = [line.text for line in own if line.place not in shown][:NOTES]
    table = _table_of(asked, {line.source for line in own})
    return {
        "title": title,
        "bullets": [{"text": line.text, "source": line.source} for line in chosen],
        "notes": " ".join(rest),
        **({} if table is None else {"table": {"header": table.header, "rows": table.rows}}),
    }


def _sections(asked: Mapping[str, Any]) -> list[_Part]:
    """The sources section by section, each sentence once; what is no sentence is left out where there are others."""
    parts: list[_Part] = []
    seen = set[str]()
    place = 0
    for number, source in enumerate(asked.get("sources", ()), start=1):
        document, heading = str(source.get("document", "")), str(source.get("heading", ""))
        path = tuple(filter(None, heading.split(HEADING_BETWEEN)))
        if not parts or (parts[-1].document, parts[-1].headings[0]) != (document, path):
            parts.append(_Part(headings=[path], document=document))
        for sentence in sentences_of(str(source.get("text", ""))):
            text = _cut(sentence, SENTENCE_CHARACTERS_MAX)
            if text not in seen:
                seen.add(text)
                parts[-1].lines.append(_Line(text, str(source.get("id", f"S{number}")), place))
                place += 1
    if any(len(line.text) >= SENTENCE_CHARACTERS_MIN for part in parts for line in part.lines):
        for part in parts:
            part.lines = [line for line in part.lines if len(line.text) >= SENTENCE_CHARACTERS_MIN]
    return [part for part in parts if part.lines]


def _merged(parts: list[_Part], count: int) -> list[_Part]:
    """At most so many parts: neighbours are put together, the smallest ones of one document first."""
    parts = list(parts)
    while len(parts) > count:

        def cost(place: int) -> tuple[bool, bool, int, int]:
            first, second = parts[place], parts[place + 1]
            is_apart = first.headings[0][:-1] != second.headings[0][:-1]
            return first.document != second.document, is_apart, len(first.lines) + len(second.lines), place

        place = min(range(len(parts) - 1), key=cost)
        first, second = parts[place], parts[place + 1]
        parts[place : place + 2] = [
            _Part([*first.lines, *second.lines], [*first.headings, *second.headings], first.document)
        ]
    return parts


def _divided(parts: list[_Part], count: int) -> list[_Part]:
    """So many parts where there are lines enough: the longest is divided; what goes on of a section has no heading of its own."""
    parts = list(parts)
    while 0 < len(parts) < count:
        place = max(range(len(parts)), key=lambda place: (len(parts[place].lines), -place))
        part, middle = parts[place], (len(parts[place].lines) + 1) // 2
        if len(part.lines) < 2:
            break
        parts[place : place + 1] = [
            _Part(part.lines[:middle], part.headings, part.document),
            _Part(part.lines[middle:], [()], part.document),
        ]
    return parts


def _padded(parts: list[_Part], count: int) -> Iterator[_Part]:
    yield from parts
    for _ in range(count - len(parts)):
        yield _Part(headings=[()])


def _names(part: _Part) -> Iterator[str]:
    """What a part may be called, the best first: its heading, the one above its sections, or the claim of a sentence."""
    leaves = list(dict.fromkeys(_heading(path[-1]) for path in part.headings if path))
    if len(leaves) == 1:
        yield leaves[0]
    elif leaves:
        shared = _shared(part.headings)
        both = " and ".join(leaves) if len(leaves) == 2 else ""
        if both and len(both) <= TITLE_CHARACTERS_MAX:
            yield both
        if shared:
            yield _heading(shared[-1])
        yield f"{_cut(leaves[0], TITLE_CHARACTERS_MAX - 10)} and more"
    for line in part.lines:
        yield _claim(line.text)


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    shared = paths[0]
    for path in paths[1:]:
        length = next(
            (place for place, (one, other) in enumerate(zip(shared, path, strict=False)) if one != other),
            min(len(shared), len(path)),
        )
        shared = shared[:length]
    return shared


def _heading(text: str) -> str:
    return _cut(_HEADING_NUMBER.sub("", text).rstrip(" .:"), TITLE_CHARACTERS_MAX) or text


def _claim(sentence: str) -> str:
    """What a sentence says first, as a title."""
    text = sentence.rstrip(" .。।:;")
    if len(text) > TITLE_CHARACTERS_MAX:
        ends = [found.start() for found in _CLAUSE_END.finditer(text)]
        end = max((end for end in ends if TITLE_CHARACTERS_MIN <= end <= TITLE_CHARACTERS_MAX), default=0)
        text = text[:end].rstrip(" ,;:") if end else _cut(text, TITLE_CHARACTERS_MAX)
    return text[:1].upper() + text[1:]


def _own(asked: Mapping[str, Any], lines: Sequence[_Line]) -> list[_Line]:
    """The lines from the first point of a slide up to a point of another; all where none of its points is a line."""
    slides, number = asked.get("deck", {}).get("slides", ()), asked.get("number")
    points = {
        str(point): place
        for place, slide in enumerate(slides, start=1)
        if isinstance(slide, Mapping)
        for point in slide.get("points", ())
    }
    by_point = [points.get(_cut(line.text, POINT_CHARACTERS_MAX)) for line in lines]
    if number not in by_point:
        return [line for line, of in zip(lines, by_point, strict=True) if of is None] or list(lines)
    own, current = [], None
    for line, of in zip(lines, by_point, strict=True):
        current = of if of is not None else current
        if current == number:
            own.append(line)
    return own


def _chosen(lines: Sequence[_Line], title: str) -> list[_Line]:
    """The lines that stand best for themselves, in their order: the first, those that name the subject, none that leans."""
    wanted = set(_words(title))

    def worth(line: _Line) -> tuple[bool, int, int]:
        is_alone = _LEANING.match(line.text) is None and not line.text.endswith(":")
        return is_alone, len(wanted.intersection(_words(line.text))), -line.place

    best = sorted(lines[1:], key=worth, reverse=True)[: BULLETS - 1]
    return [*lines[:1], *sorted(best, key=lambda line: line.place)]


def _table_of(asked: Mapping[str, Any], sources: set[str]) -> Table | None:
    """The first table of the sources that a slide quotes; one of pictures alone says nothing without them."""
    for number, source in enumerate(asked.get("sources", ()), start=1):
        if str(source.get("id", f"S{number}")) in sources:
            for table in tables_of(str(source.get("text", ""))):
                if any(cell for row in table.rows for cell in row[1:]):
                    return table
    return None


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if len(word) >= _WORD_CHARACTERS_MIN]


def _cut(text: str, characters_max: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters_max else f"{line[: characters_max - 1].rsplit(' ', 1)[0]}\u2026"

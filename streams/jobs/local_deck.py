"""The built-in model for decks, used when no language model is configured. Invariant: it invents nothing.

It answers in the form that the prompts of `decks` request. An outline has a slide for each section of the sources,
named by its heading. If more slides are requested, sections are divided; if fewer, neighbours that one title covers are
joined, and of the rest the least relevant to the query are dropped. A part without a heading is named by the claim of
its first sentence. A slide quotes sentences of its part, never one that another slide quotes. If the sources contain
fewer sentences than slides, there are fewer slides. Without sources it answers that there are none. It uses no clock,
chance or state: the same message always gets the same answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import orjson

from highwater.streams.documents.prose import Table, sentences_of, tables_of
from highwater.streams.jobs.deck_lines import (
    BULLETS,
    clause,
    continues,
    cut_line,
    depends,
    heading_of,
    is_apparatus,
    is_introduction,
    is_marked,
    is_subordinate,
    rows_of,
    says_something,
    stands_alone,
    term_of,
    words_in,
)
from highwater.streams.jobs.decks import HEADING_BETWEEN, OUTLINE, POINTS_MAX

NO_SOURCES = "No document was given for this."
NOTHING_MORE = "The sources say no more about this."
# Points and bullets that fill a slide; the rest of a part is for the speaker.
POINTS, NOTES = 3, 3
POINT_CHARACTERS_MAX = 120
# A title is read at a glance: some eight words.
TITLE_CHARACTERS_MAX, TITLE_CHARACTERS_MIN = 64, 20
# Between headings of one title: a sign, since the deck may be in any language.
_TITLE_BETWEEN = " \u00b7 "
_TITLE_HEADINGS_MAX = 3
# A list of terms stays on one line.
_LIST_CHARACTERS_MAX = 48
# Sections that an outline is chosen from; each is compared with all others.
_SECTIONS_MAX = 200
_CLAUSE_END = re.compile(
    r"[,;:(\u2013\u2014、，；：]|\s(?:because|which|that|but|while|when|where|if|since|so|after|before)\s"  # noqa: RUF001
)
# A name of a program, which is written as it is.
_CALL = re.compile(r"\w*[_(.]\w*")
# The subject of a paragraph, before its first sentence.
_RUN_IN = re.compile(r"([^\s:][^:]{2,58}[^\s:]):\s")
# The number of a request at the end of a change note: the same note may stand with and without it.
_NUMBERED = re.compile(r"(?<!\s)\s*+\(#\d+\)\Z")
# A query names a section by a word that at most this share of the slides would have in their titles.
_NAMED_SHARE_MAX = 0.5
# Sections of this few lines share a slide even without a common heading.
_SMALL_LINES = 2


@dataclass(frozen=True, slots=True)
class _Line:
    """A sentence, or a row of a table; its source, and its place among all."""

    text: str
    source: str
    place: int
    section: int
    is_row: bool = False


@dataclass(slots=True)
class _Part:
    """The subject of one slide. `headings`: the path of each section; `tables`: each with the place of the line before it."""

    lines: list[_Line] = field(default_factory=list)
    headings: list[tuple[str, ...]] = field(default_factory=list)
    document: str = ""
    tables: list[tuple[Table, int]] = field(default_factory=list)

    @property
    def is_table(self) -> bool:
        """Return whether it has nothing to say but a table."""
        return all(line.is_row for line in self.lines)

    @property
    def words(self) -> set[str]:
        """Return the words of its headings and lines."""
        texts = (*sum(self.headings, ()), *(line.text for line in self.lines))
        return {word for text in texts for word in words_in(text)}

    @property
    def points(self) -> list[str]:
        """Return the points of its slide: at least one line of each section, since a slide is identified by its points."""
        first = {line.section: line for line in reversed(self.lines)}
        chosen = list(dict.fromkeys((*first.values(), *self.lines)))[: min(max(POINTS, len(first)), POINTS_MAX)]
        lines = sorted(chosen, key=lambda line: line.place)
        return [cut_line(line.text, POINT_CHARACTERS_MAX) for line in lines]


def local_deck_answer(stage: str, user: str) -> str:
    """Return the answer to the message `user` of a step of a deck."""
    try:
        asked = orjson.loads(user)
    except orjson.JSONDecodeError:
        asked = {}
    answer = _outline(asked) if stage == OUTLINE else _slide(asked)
    return orjson.dumps(answer).decode()


def _outline(arguments: Mapping[str, Any]) -> dict[str, Any]:
    query, count = str(arguments.get("query", "")), int(arguments.get("slides", 1))
    title = cut_line(query, 80) or "Untitled"
    parts = _divided(_merged(_sections(arguments), count, query), count) or [_Part(headings=[()])]
    slides: list[dict[str, Any]] = []
    named = set[str]()
    for number, part in enumerate(parts, start=1):
        name = next(
            (name for name in _names(part, is_first=number == 1) if name not in named),
            f"{title} ({number})" if named else title,
        )
        named.add(name)
        slides.append({"title": name, "points": part.points})
    return {"title": title, "slides": slides, "is_exhausted": len(slides) < count}


def _slide(arguments: Mapping[str, Any]) -> dict[str, Any]:
    title = str(arguments.get("title") or "Untitled")
    parts = _sections(arguments)
    lines = [line for part in parts for line in part.lines]
    said = set(map(str, arguments.get("said", ())))
    own = [line for line in _own(arguments, lines) if line.text not in said]
    chosen = _chosen(own, title, str(arguments.get("query", "")))
    if not chosen:
        return {"title": title, "bullets": [NOTHING_MORE if lines else NO_SOURCES], "notes": ""}
    shown = {line.place for line in chosen}
    rest = [line.text for line in own if line.place not in shown][:NOTES]
    table = _table_of(parts, own, f"{title} {arguments.get('query', '')}")
    return {
        "title": title,
        "bullets": [{"text": line.text, "source": line.source} for line in chosen],
        "notes": " ".join(rest),
        **({} if table is None else {"table": table._asdict()}),
    }


def _sections(arguments: Mapping[str, Any]) -> list[_Part]:
    """Return the sources section by section, without repeated sentences; lines that mean nothing alone are dropped if
    there are others.

    A section that is only a table of numbers is represented by its first rows.
    """
    parts: list[_Part] = []
    seen = set[str]()
    place = 0
    for number, source in enumerate(arguments.get("sources", ()), start=1):
        document, heading = str(source.get("document", "")), str(source.get("heading", ""))
        path = tuple(filter(None, heading.split(HEADING_BETWEEN)))
        if not parts or (parts[-1].document, parts[-1].headings[0]) != (document, path):
            parts.append(_Part(headings=[path], document=document))
        part, text, name = parts[-1], str(source.get("text", "")), str(source.get("id", f"S{number}"))
        tables = [table for table in tables_of(text) if any(cell for row in table.rows for cell in row[1:])]
        told = [clause(sentence) for sentence in sentences_of(text)]
        rows = [] if told or part.lines or not tables else rows_of(tables[0])
        for line in told or rows:
            if (said := _NUMBERED.sub("", line)) not in seen:
                seen.add(said)
                part.lines.append(_Line(line, name, place, len(parts), line in rows))
                place += 1
        part.tables += [(table, place - 1) for table in tables]
    if any(says_something(line.text) for part in parts for line in part.lines):
        for part in parts:
            is_of_numbers = any(table.numbers for table, _ in part.tables)
            part.lines = [line for line in part.lines if (line.is_row and is_of_numbers) or says_something(line.text)]
            if not part.is_table:
                part.lines = [line for line in part.lines if not line.is_row]
    held = [part for part in parts if part.lines]
    return [part for part in held if not any(map(is_apparatus, part.headings[0]))] or held


def _merged(parts: Sequence[_Part], count: int, query: str) -> list[_Part]:
    """Return at most this many parts: neighbours with one title are joined, then the least relevant parts are dropped.

    A section that the query names is not joined with others.
    """
    wanted = set(words_in(query))
    parts = _worthiest(parts, _SECTIONS_MAX, wanted)
    named = _named(parts, count, wanted) if count > 2 else set()
    while len(parts) > count:
        spans = (span for span in _spans(parts, count) if not any(id(part) in named for part in parts[slice(*span)]))
        span = min(spans, key=lambda span: _cost(parts, *span), default=None)
        if span is None:
            break
        start, end = span
        lines = [line for part in parts[start:end] for line in part.lines]
        headings = [path for part in parts[start:end] for path in part.headings]
        parts[start:end] = [_Part(lines, headings, parts[start].document)]
    return _worthiest(parts, count, wanted)


def _named(parts: Sequence[_Part], count: int, wanted: set[str]) -> set[int]:
    """Return which parts the query names: a requested word is in their own heading, and in that of few others."""
    headings = [set(words_in(part.headings[0][-1] if part.headings[0] else "")) & wanted for part in parts]
    counts = Counter(word for words in headings for word in words)
    rare = {word for word, number in counts.items() if number <= max(1, _NAMED_SHARE_MAX * count)}
    return {id(part) for part, words in zip(parts, headings, strict=True) if words & rare}


def _worthiest(parts: Sequence[_Part], count: int, words_wanted: set[str]) -> list[_Part]:
    """Return the parts that contain the most requested words, those of few parts and of headings counting more, longer
    ones first, in their order; an introduction is dropped last.
    """
    bags = [part.words & words_wanted for part in parts]
    holders = Counter(word for bag in bags for word in bag)
    weights = {word: log(1 + len(parts) / number) for word, number in holders.items()}
    introduction = _introduction(parts)

    def worth(place: int) -> tuple[bool, float, int, int]:
        part = parts[place]
        headed = {word for path in part.headings for word in words_in("".join(path[-1:]))} & words_wanted
        weight = sum(weights[word] * (1 + (word in headed)) for word in sorted(bags[place]))
        is_kept = place == introduction and count > 2 and len(part.lines) > 1
        return is_kept, weight, len(part.lines), -place

    return [parts[place] for place in sorted(sorted(range(len(parts)), key=worth, reverse=True)[:count])]


def _introduction(parts: Sequence[_Part]) -> int | None:
    """Return the place of the first section that is named as an introduction, else of a first section below no other."""
    paths = [part.headings[0] for part in parts]
    # Deeper ones introduce a section of the document.
    named = (place for place, path in enumerate(paths) if 0 < len(path) <= 2 and is_introduction(path[-1]))
    return next(named, 0 if paths and len(paths[0]) < 2 else None)


def _cost(parts: Sequence[_Part], start: int, end: int) -> tuple[bool, bool, int, int]:
    """Return the cost of joining parts: lowest if they are small and under one heading."""
    inside = parts[start:end]
    is_apart = len({part.headings[0][:-1] for part in inside}) > 1
    return len({part.document for part in inside}) > 1, is_apart, sum(len(part.lines) for part in inside), start


def _spans(parts: Sequence[_Part], count: int) -> Iterator[tuple[int, int]]:
    """Yield neighbours that may be joined, as (start, end): two small ones that fit a title, or all under one heading."""
    for start in range(len(parts) - 1):
        both = parts[start : start + 2]
        is_small = all(len(part.lines) <= _SMALL_LINES * len(part.headings) for part in both)
        if is_small and _joined([*both[0].headings, *both[1].headings]) is not None:
            yield start, start + 2
    below: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for place, part in enumerate(parts):
        shared = _shared(part.headings)
        for depth in range(1, len(shared) + 1):
            below.setdefault((part.document, shared[:depth]), []).append(place)
    for places in below.values():
        start, end = places[0], places[-1] + 1
        if end - start == len(places) and 2 <= len(places) <= len(parts) - count + 1:
            yield start, end


def _joined(paths: Sequence[tuple[str, ...]]) -> str | None:
    """Return the headings of sections as one title; empty if none has one, None if they are too many or too long for it."""
    leaves = list(dict.fromkeys(heading_of(path[-1], TITLE_CHARACTERS_MAX) for path in paths if path))
    title = _TITLE_BETWEEN.join(leaves)
    fits = len(leaves) == 1 or (len(leaves) <= _TITLE_HEADINGS_MAX and len(title) <= TITLE_CHARACTERS_MAX)
    return title if fits else None


def _divided(parts: list[_Part], count: int) -> list[_Part]:
    """Divide the longest parts until there are this many, if there are enough lines; the continuation of a section has
    no heading of its own.
    """
    parts = list(parts)
    while 0 < len(parts) < count:
        place = max(range(len(parts)), key=lambda place: (not parts[place].is_table, len(parts[place].lines), -place))
        part, middle = parts[place], (len(parts[place].lines) + 1) // 2
        if len(part.lines) < 2 or part.is_table:
            break
        parts[place : place + 1] = [
            _Part(part.lines[:middle], part.headings, part.document),
            _Part(part.lines[middle:], [()], part.document),
        ]
    return parts


def _names(part: _Part, *, is_first: bool) -> Iterator[str]:
    """Yield possible names of a part, the best first: its headings, the one above its sections, or the claim of a sentence."""
    joined = _joined(part.headings)
    above = part.headings[0][-2:-1] if is_first else ()
    if joined and joined.endswith("\u2026") and above and len(above[0]) <= TITLE_CHARACTERS_MAX:
        yield heading_of(above[0], TITLE_CHARACTERS_MAX)
    if joined:
        yield joined
    if len(part.headings) > 1 and (shared := _shared(part.headings)):
        yield heading_of(shared[-1], TITLE_CHARACTERS_MAX)
    if part.is_table:
        return
    terms = [term for line in part.lines if (term := term_of(line.text)) is not None]
    if len(terms) > 1 and 3 * len(terms) >= len(part.lines) and len(set(terms)) == len(terms):
        yield _listed(terms)
    # A text cut within a list or a clause is the last choice; before it, one that depends on the sentence before.
    claims = [(_claim(line.text), len(line.text)) for line in part.lines]
    yield from (claim for claim, _ in sorted(claims, key=lambda one: _weakness(*one)))


def _listed(terms: Sequence[str]) -> str:
    """Return the first of these terms that fit a title together."""
    title = cut_line(terms[0], TITLE_CHARACTERS_MAX)
    for term in dict.fromkeys(terms[1:]):
        longer = f"{title}{_TITLE_BETWEEN}{term}"
        if len(longer) > _LIST_CHARACTERS_MAX:
            return f"{title}{_TITLE_BETWEEN}\u2026"
        title = longer
    return title


def _weakness(claim: str, characters: int) -> tuple[bool, bool, bool]:
    """Return what makes a claim a bad title, the worst first."""
    is_cut = len(claim) + 2 < characters
    return claim.endswith("\u2026"), depends(claim) or (is_cut and is_subordinate(claim)), "," in claim and is_cut


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    shared = paths[0]
    for path in paths[1:]:
        length = next(
            (place for place, (one, other) in enumerate(zip(shared, path, strict=False)) if one != other),
            min(len(shared), len(path)),
        )
        shared = shared[:length]
    return shared


def _claim(sentence: str) -> str:
    """Return the first claim of a sentence, as a title."""
    text = sentence.rstrip(" .。।:;")
    if len(text) > TITLE_CHARACTERS_MAX and (run_in := _RUN_IN.match(text)):
        text = run_in[1]
    if len(text) > TITLE_CHARACTERS_MAX:
        ends = [found.start() for found in _CLAUSE_END.finditer(text)]
        end = max((end for end in ends if TITLE_CHARACTERS_MIN <= end <= TITLE_CHARACTERS_MAX), default=0)
        text = text[:end].rstrip(" ,;:") if end else cut_line(text, TITLE_CHARACTERS_MAX)
    return text if _CALL.match(text) else text[:1].upper() + text[1:]


def _own(arguments: Mapping[str, Any], lines: Sequence[_Line]) -> list[_Line]:
    """Return the lines from the first point of a slide up to another's, in its sections; all of them if none of its
    points is a line.
    """
    slides, number = arguments.get("deck", {}).get("slides", ()), arguments.get("number")
    points = {
        str(point): place
        for place, slide in enumerate(slides, start=1)
        if isinstance(slide, Mapping)
        for point in slide.get("points", ())
    }
    by_point = [points.get(cut_line(line.text, POINT_CHARACTERS_MAX)) for line in lines]
    if number not in by_point:
        return [line for line, of in zip(lines, by_point, strict=True) if of is None] or list(lines)
    sections = {line.section for line, of in zip(lines, by_point, strict=True) if of == number}
    own, current = [], None
    for line, of in zip(lines, by_point, strict=True):
        current = of if of is not None else current
        if current == number and line.section in sections:
            own.append(line)
    return own


def _chosen(lines: Sequence[_Line], title: str, query: str) -> list[_Line]:
    """Return the lines that are clearest alone, in their order: complete ones that name the subject or what the query
    asks for, none that depends on another.
    """
    counts = Counter(word for line in lines for word in set(words_in(line.text)))
    wanted = {*words_in(title), *(word for word in words_in(query) if 2 * counts[word] <= len(lines))}
    # If most sentences end with a mark, one without is a fragment: a page ended within it.
    are_marked = 2 * sum(map(is_marked, (line.text for line in lines))) > len(lines)

    def worth(line: _Line) -> tuple[bool, int, int]:
        is_alone = stands_alone(line.text) and not (are_marked and not is_marked(line.text))
        return is_alone, len(wanted.intersection(words_in(line.text))), -line.place

    best = sorted(lines, key=worth, reverse=True)[:BULLETS]
    alone = [line for line in best if worth(line)[0]]
    chosen = _continued(alone, lines) if len(alone) > 1 else best
    return sorted(chosen, key=lambda line: line.place)


def _continued(alone: Sequence[_Line], lines: Sequence[_Line]) -> list[_Line]:
    """Return lines, and while they do not fill a slide those behind them of the same passage that continue them."""
    chosen = {line.place: line for line in alone}
    for line in lines:
        before = chosen.get(line.place - 1)
        if len(chosen) < BULLETS and before is not None and before.source == line.source and continues(line.text):
            chosen.setdefault(line.place, line)
    return list(chosen.values())


def _table_of(parts: Sequence[_Part], own: Sequence[_Line], wanted: str) -> Table | None:
    """Return the best table near the lines of a slide: one with numbers, then with the most requested words, then the first."""
    places, words = {line.place for line in own}, set(words_in(wanted))

    def worth(table: Table) -> tuple[bool, int]:
        cells = " ".join((*table.header, *sum(table.rows, ())))
        return table.numbers > 0, len(words.intersection(words_in(cells)))

    beside = [table for part in parts for table, place in part.tables if _line_before(part, place) in places]
    return max(beside, key=worth, default=None)


def _line_before(part: _Part, place: int) -> int:
    """Return the last line of a part up to a place, or its first."""
    return next((line.place for line in reversed(part.lines) if line.place <= place), part.lines[0].place)

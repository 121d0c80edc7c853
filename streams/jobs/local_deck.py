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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from highwater.streams.documents.prose import Table, sentences_of, tables_of
from highwater.streams.jobs.decks import HEADING_BETWEEN, OUTLINE, POINTS_MAX
from highwater.streams.letters import cut_to, is_mark, runs_in, width_of

NO_SOURCES = "No document was given for this."
NOTHING_MORE = "The sources say no more about this."
# Points and bullets that fill a slide; the rest of a part is for the speaker.
POINTS, BULLETS, NOTES = 3, 5, 3
SENTENCE_CHARACTERS_MIN, SENTENCE_CHARACTERS_MAX = 20, 240
POINT_CHARACTERS_MAX = 120
# A title is read at a glance: some eight words.
TITLE_CHARACTERS_MAX, TITLE_CHARACTERS_MIN = 64, 20
# Between headings of one title: a sign, since the deck may be in any language.
_TITLE_BETWEEN = " \u00b7 "
_TITLE_HEADINGS_MAX = 3
# Sections that an outline is chosen from; each is compared with all others.
_SECTIONS_MAX = 200
_CLAUSE_END = re.compile(
    r"[,;:(\u2013\u2014、，；：]|\s(?:because|which|that|but|while|when|where|if|since|so|after|before)\s"  # noqa: RUF001
)
_WORD = re.compile(r"[^\W\d_][\w-]*")
# Where a sentence could have ended.
_STOP = re.compile(r"[;:](?=\s)")
_CLAUSE_CHARACTERS_MIN = 60
# What ends a sentence, and what may follow it.
_SENTENCE_MARKS, _CLOSING = frozenset(".!?;\u2026\u3002\uff01\uff1f\u0964\u061f\u06d4"), ")]\"'\u201d\u2019\u00bb\u300d"
# The form of a change note: such a line begins with a small letter and is complete.
_FILED = re.compile(r"\w+(?:\([^)]*\))?!?:\s")
# The subject of a paragraph, before its first sentence.
_RUN_IN = re.compile(r"([^\s:][^:]{2,58}[^\s:]):\s")
# A shorter word names little: `the`, `and`, `not`.
_WORD_CHARACTERS_MIN = 4
# A sentence that begins like this depends on the one before and says less alone; so does one that ends with a colon, on
# the one after.
_LEANING = re.compile(
    r"(?:this|that|these|those|it|its|they|them|he|she|but|and|so|or|then|thus|hence|however|therefore|also|instead|otherwise"
    r"|second|third|next|finally|here|both|neither|either|note|let.s|you can see)\b",
    re.IGNORECASE,
)
# Addresses, which are useless on a slide; `name at host.org` hides one from robots.
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+|[\w.+-]{1,64}(?:@|\sat\s)(?:[\w-]{1,64}\.){1,8}\w{2,20}")
_EMPTY_BRACKETS = re.compile(r"\(\s*\)|\[\s*\]")
# A line of a list of references, and a sentence that only refers elsewhere.
_REFERENCE = re.compile(r"\[\w{1,20}\]\s")
_POINTER = re.compile(r"(?:see|refer to|for more|for details|more details)\b.{0,100}", re.IGNORECASE)
# A mark of a list of references, after a word.
_CITED = re.compile(r"(?<=\w)\[[A-Z][\w.-]{1,20}\]")
# Words in most sentences that name no subject of a section.
_COMMON = frozenset(
    "about does from have into more some than that their them then they this what when where which with".split()  # noqa: SIM905
)
# A line of fewer words is a name or a call, not a statement.
_WORDS_MIN = 4
# Sections of this few lines share a slide even without a common heading.
_SMALL_LINES = 2
# A line of fewer letters is a number, a mark or a name.
_LETTERS_MIN, _LETTERS_SHARE_MIN = 10, 0.4
# Numbers before headings: `1.`, `2.3`, `IV.`
_HEADING_NUMBER = re.compile(r"^(?:\d+(?:\.\d+)*[.)]?|[IVX]+\.)\s+(?=\S)")


@dataclass(frozen=True, slots=True)
class _Line:
    """A sentence, its source, and its place among all."""

    text: str
    source: str
    place: int
    section: int


@dataclass(slots=True)
class _Part:
    """The subject of one slide. `headings`: the path of each section; `tables`: each with the place of the line before it."""

    lines: list[_Line] = field(default_factory=list)
    headings: list[tuple[str, ...]] = field(default_factory=list)
    document: str = ""
    tables: list[tuple[Table, int]] = field(default_factory=list)

    @property
    def points(self) -> list[str]:
        """Return the points of its slide: at least one line of each section, since a slide is identified by its points."""
        first = {line.section: line for line in reversed(self.lines)}
        chosen = list(dict.fromkeys((*first.values(), *self.lines)))[: min(max(POINTS, len(first)), POINTS_MAX)]
        lines = sorted(chosen, key=lambda line: line.place)
        return [_cut(line.text, POINT_CHARACTERS_MAX) for line in lines]


def local_deck_answer(stage: str, user: str) -> str:
    """Return the answer to the message `user` of a step of a deck."""
    try:
        asked = orjson.loads(user)
    except orjson.JSONDecodeError:
        asked = {}
    answer = _outline(asked) if stage == OUTLINE else _slide(asked)
    return orjson.dumps(answer).decode()


def _outline(asked: Mapping[str, Any]) -> dict[str, Any]:
    query, count = str(asked.get("query", "")), int(asked.get("slides", 1))
    title = _cut(query, 80) or "Untitled"
    parts = _divided(_merged(_sections(asked), count, query), count) or [_Part(headings=[()])]
    slides: list[dict[str, Any]] = []
    named = set[str]()
    for number, part in enumerate(parts, start=1):
        name = next((name for name in _names(part) if name not in named), f"{title} ({number})" if named else title)
        named.add(name)
        slides.append({"title": name, "points": part.points})
    return {"title": title, "slides": slides, "is_exhausted": len(slides) < count}


def _slide(asked: Mapping[str, Any]) -> dict[str, Any]:
    title = str(asked.get("title") or "Untitled")
    parts = _sections(asked)
    lines = [line for part in parts for line in part.lines]
    said = set(map(str, asked.get("said", ())))
    own = [line for line in _own(asked, lines) if line.text not in said]
    chosen = _chosen(own, title)
    if not chosen:
        return {"title": title, "bullets": [NOTHING_MORE if lines else NO_SOURCES], "notes": ""}
    shown = {line.place for line in chosen}
    rest = [line.text for line in own if line.place not in shown][:NOTES]
    table = _table_of(parts, own, f"{title} {asked.get('query', '')}")
    return {
        "title": title,
        "bullets": [{"text": line.text, "source": line.source} for line in chosen],
        "notes": " ".join(rest),
        **({} if table is None else {"table": table._asdict()}),
    }


def _sections(asked: Mapping[str, Any]) -> list[_Part]:
    """Return the sources section by section, without repeated sentences; lines that mean nothing alone are dropped if
    there are others.

    A section that is only a table of numbers is represented by its header.
    """
    parts: list[_Part] = []
    seen = set[str]()
    place = 0
    for number, source in enumerate(asked.get("sources", ()), start=1):
        document, heading = str(source.get("document", "")), str(source.get("heading", ""))
        path = tuple(filter(None, heading.split(HEADING_BETWEEN)))
        if not parts or (parts[-1].document, parts[-1].headings[0]) != (document, path):
            parts.append(_Part(headings=[path], document=document))
        part, text, name = parts[-1], str(source.get("text", "")), str(source.get("id", f"S{number}"))
        tables = [table for table in tables_of(text) if any(cell for row in table.rows for cell in row[1:])]
        told = [_clause(_CITED.sub("", sentence)) for sentence in sentences_of(text)]
        if not told and not part.lines:
            told = [_TITLE_BETWEEN.join(table.header) for table in tables if table.numbers]
        for line in told:
            if line not in seen:
                seen.add(line)
                part.lines.append(_Line(line, name, place, len(parts)))
                place += 1
        part.tables += [(table, place - 1) for table in tables]
    if any(_says_something(line.text) for part in parts for line in part.lines):
        for part in parts:
            part.lines = [line for line in part.lines if _says_something(line.text)]
    return [part for part in parts if part.lines]


def _says_something(text: str) -> bool:
    """Return whether a line is meaningful alone: no address, page number, reference, or mere pointer to another place."""
    bare, addresses = _ADDRESS.subn("", text)
    letters = sum(letter.isalpha() or is_mark(letter) for letter in bare)
    return (
        (len(text) if text.isascii() else width_of(text)) >= SENTENCE_CHARACTERS_MIN
        and addresses < 2
        and letters >= max(_LETTERS_MIN, _LETTERS_SHARE_MIN * len(bare.replace(" ", "")))
        and not _REFERENCE.match(text)
        and not _POINTER.fullmatch(text)
        and text[-1] not in ":\uff1a"  # the list that it introduces is not on the slide
    )


def _merged(parts: Sequence[_Part], count: int, query: str) -> list[_Part]:
    """Return at most this many parts: neighbours with one title are joined, then the least relevant parts are dropped."""
    wanted = set(_words(query))
    parts = _worthiest(parts, _SECTIONS_MAX, wanted)
    while len(parts) > count:
        span = min(_spans(parts, count), key=lambda span: _cost(parts, *span), default=None)
        if span is None:
            break
        start, end = span
        lines = [line for part in parts[start:end] for line in part.lines]
        headings = [path for part in parts[start:end] for path in part.headings]
        parts[start:end] = [_Part(lines, headings, parts[start].document)]
    return _worthiest(parts, count, wanted)


def _worthiest(parts: Sequence[_Part], count: int, wanted: set[str]) -> list[_Part]:
    """Return the parts that contain the most requested words, longer ones first, in their order; an introduction is
    dropped last.
    """

    def worth(place: int) -> tuple[bool, int, int, int]:
        part = parts[place]
        words = {
            word for text in (*sum(part.headings, ()), *(line.text for line in part.lines)) for word in _words(text)
        }
        is_introduction = place == 0 and count > 2 and len(part.lines) > 1 and len(part.headings[0]) < 2
        return is_introduction, len(wanted & words), len(part.lines), -place

    return [parts[place] for place in sorted(sorted(range(len(parts)), key=worth, reverse=True)[:count])]


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
    leaves = list(dict.fromkeys(_heading(path[-1]) for path in paths if path))
    title = _TITLE_BETWEEN.join(leaves)
    fits = len(leaves) == 1 or (len(leaves) <= _TITLE_HEADINGS_MAX and len(title) <= TITLE_CHARACTERS_MAX)
    return title if fits else None


def _divided(parts: list[_Part], count: int) -> list[_Part]:
    """Divide the longest parts until there are this many, if there are enough lines; the continuation of a section has
    no heading of its own.
    """
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


def _names(part: _Part) -> Iterator[str]:
    """Yield possible names of a part, the best first: its headings, the one above its sections, or the claim of a sentence."""
    if joined := _joined(part.headings):
        yield joined
    if len(part.headings) > 1 and (shared := _shared(part.headings)):
        yield _heading(shared[-1])
    # A text cut within a list or a clause is the last choice.
    claims = [(_claim(line.text), len(line.text)) for line in part.lines]
    yield from (claim for claim, _ in sorted(claims, key=lambda one: (one[0].endswith("\u2026"), _is_cut_list(*one))))


def _is_cut_list(claim: str, characters: int) -> bool:
    return "," in claim and len(claim) + 2 < characters


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
    bare = _EMPTY_BRACKETS.sub("", _ADDRESS.sub("", _HEADING_NUMBER.sub("", text)))
    return _cut(bare.rstrip(" .:"), TITLE_CHARACTERS_MAX) or _cut(text, TITLE_CHARACTERS_MAX)


def _claim(sentence: str) -> str:
    """Return the first claim of a sentence, as a title."""
    text = sentence.rstrip(" .。।:;")
    if len(text) > TITLE_CHARACTERS_MAX and (run_in := _RUN_IN.match(text)):
        text = run_in[1]
    if len(text) > TITLE_CHARACTERS_MAX:
        ends = [found.start() for found in _CLAUSE_END.finditer(text)]
        end = max((end for end in ends if TITLE_CHARACTERS_MIN <= end <= TITLE_CHARACTERS_MAX), default=0)
        text = text[:end].rstrip(" ,;:") if end else _cut(text, TITLE_CHARACTERS_MAX)
    return text[:1].upper() + text[1:]


def _own(asked: Mapping[str, Any], lines: Sequence[_Line]) -> list[_Line]:
    """Return the lines from the first point of a slide up to another's, in its sections; all of them if none of its
    points is a line.
    """
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
    sections = {line.section for line, of in zip(lines, by_point, strict=True) if of == number}
    own, current = [], None
    for line, of in zip(lines, by_point, strict=True):
        current = of if of is not None else current
        if current == number and line.section in sections:
            own.append(line)
    return own


def _chosen(lines: Sequence[_Line], title: str) -> list[_Line]:
    """Return the lines that are clearest alone, in their order: complete ones that name the subject, none that depends
    on another.
    """
    wanted = set(_words(title))
    # If most sentences end with a mark, one without is a fragment: a page ended within it.
    are_marked = 2 * sum(map(_is_marked, (line.text for line in lines))) > len(lines)

    def worth(line: _Line) -> tuple[bool, int, int]:
        words = len(line.text.split())
        is_said = words >= _WORDS_MIN or not line.text.isascii()
        is_part = line.text[0].islower() and _FILED.match(line.text) is None
        is_part |= are_marked and not _is_marked(line.text)
        is_alone = is_said and not is_part and _LEANING.match(line.text) is None and line.text[-1] not in "?!\u2026"
        return is_alone, len(wanted.intersection(_words(line.text))), -line.place

    best = sorted(lines, key=worth, reverse=True)[:BULLETS]
    alone = [line for line in best if worth(line)[0]]
    return sorted(alone if len(alone) >= POINTS else best, key=lambda line: line.place)


def _is_marked(text: str) -> bool:
    """Return whether it ends as a sentence does."""
    return text.rstrip(_CLOSING)[-1:] in _SENTENCE_MARKS


def _table_of(parts: Sequence[_Part], own: Sequence[_Line], wanted: str) -> Table | None:
    """Return the best table near the lines of a slide: one with numbers, then with the most requested words, then the first."""
    places, words = {line.place for line in own}, set(_words(wanted))

    def worth(table: Table) -> tuple[bool, int]:
        cells = " ".join((*table.header, *sum(table.rows, ())))
        return table.numbers > 0, len(words.intersection(_words(cells)))

    beside = [table for part in parts for table, place in part.tables if _line_before(part, place) in places]
    return max(beside, key=worth, default=None)


def _line_before(part: _Part, place: int) -> int:
    """Return the last line of a part up to a place, or its first."""
    return next((line.place for line in reversed(part.lines) if line.place <= place), part.lines[0].place)


def _words(text: str) -> list[str]:
    found = (_WORD.findall if text.isascii() else runs_in)(text.casefold())
    return [word for word in found if len(word) >= _WORD_CHARACTERS_MIN and word not in _COMMON]


def _clause(sentence: str) -> str:
    """Return a sentence that fits a bullet: all of it, or up to the end of a clause."""
    line = " ".join(sentence.split())
    if len(line) <= SENTENCE_CHARACTERS_MAX:
        return line
    parts = [line[: found.start()] for found in _STOP.finditer(line, 0, SENTENCE_CHARACTERS_MAX)]
    whole = [part for part in parts if len(part) >= _CLAUSE_CHARACTERS_MIN and part.count("(") == part.count(")")]
    return f"{whole[-1]}." if whole else _cut(line, SENTENCE_CHARACTERS_MAX)


def _cut(text: str, characters_max: int) -> str:
    return cut_to(" ".join(text.split()), characters_max)

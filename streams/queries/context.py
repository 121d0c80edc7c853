"""The inputs of the stages: the Analyzer's input, the draft, the payload (R1.17, R1.20 to R1.23).

Invariant: the query and the Mentor's prompt are complete; everything else is cut, in this order: memory (the oldest
first), sources (the least similar first), history (the oldest first). Earlier messages and ingested texts are data: no
text can open or close one of our tags, so none can pass for another part of the draft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from highwater.streams.letters import runs_in
from highwater.streams.models.answers import clean_text
from highwater.streams.models.tokens import count_tokens, cut_to_tokens, surely_fits

# R1.22.
PAYLOAD_TOKENS_MAX = 8_000
# Twice the most that the Assembler may return: enough to choose from; with prompt and answer it fits a window of 32,000.
DRAFT_TOKENS_MAX = 16_000
# Reserved for sources however long the history is: ten log rows can be long answers, and would leave room for no source.
SOURCES_TOKENS_MIN = 4_000
# An entry is cut rather than dropped if at least this much of it stays; less is a meaningless fragment.
ENTRY_TOKENS_MIN = 48
# The analysis is JSON that a model wrote; a longer one is a second draft, not a reference.
ANALYSIS_TOKENS_MAX = 1_000
ATTRIBUTE_CHARACTERS_MAX = 240

QUERY_TAG, CONTEXT_TAG = "query", "assembled_context"
NOT_SEARCHED_TAG = "not_searched"
_TAGS = (
    "user_query", "history", "raw_logs", "log", "analysis", "memory", "record", "sources", "source", "mentor",
    QUERY_TAG, CONTEXT_TAG, NOT_SEARCHED_TAG,
)  # fmt: skip


def _opening_of(names: str) -> re.Pattern[str]:
    """Match the bracket that begins one of these tags: closing in any case, opening as we write it (`List<Record>` is code)."""
    return re.compile(rf"<(?=\s*/\s*(?i:{names})\b|\s*(?:{names})\b)")


_TAG_OF_OURS = _opening_of("|".join(_TAGS))
_WRAPPER = _opening_of(f"{QUERY_TAG}|{CONTEXT_TAG}")
# Replaces the opening bracket of a text that would be one of our tags. One character, and not `&lt;`: a query may
# consist only of such tags and must still fit completely. Everything else stays unchanged, above all code and
# comparisons.
BRACKET = "\u2039"
_NO_ATTRIBUTE = str.maketrans({"<": BRACKET, ">": "\u203a", '"': "'"})
_NUMBER = re.compile(r"\D*([0-9]{1,18})")
_POINTER = re.compile(r"(?:\A|_)(?:ids?|lsm|memory|memories|records?)(?:\Z|_)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# A keyword of one or two letters is within half of all words.
_KEYWORD_CHARACTERS_MIN = 3


class LogLine(NamedTuple):
    """A row of `raw_logs`."""

    message_type: str
    content: str
    created_ms: int


class Memory(NamedTuple):
    """A row of `lsm_storage`; `start` and `end` are ISO dates."""

    memory_id: int
    start: str
    end: str
    tags: tuple[str, ...]
    summary: str


class Source(NamedTuple):
    """An insight or chunk that was retrieved for a query; `similarity` is larger for nearer ones.

    `share`: the share of the weight of the query's words that it contains. `document` and `heading`: the place of a
    chunk.
    """

    insight_id: str
    channel_id: str
    ts_ms: int
    text: str
    position: str
    similarity: float
    share: float = 0.0
    document: str = ""
    heading: str = ""


class Matching(NamedTuple):
    """The number of insights that contain all of some words."""

    number: int
    words: tuple[str, ...]


def analyzer_input(query: str, memories: Sequence[Memory], tokens_max: int | None = None) -> str:
    """Return the message to the Analyzer: a JSON object of the query and the latest memories (R1.17), unchanged; without the
    oldest of them where the model reads less.
    """
    newest = sorted(memories, key=lambda one: (one.start, one.memory_id))
    while tokens_max is not None and newest and count_tokens(_analyzer_json(query, memories)) > tokens_max:
        newest = newest[1:]
        memories = [one for one in memories if one in newest]
    return _analyzer_json(query, memories)


def _analyzer_json(query: str, memories: Sequence[Memory]) -> str:
    summaries = [
        {
            "id": one.memory_id,
            "start": one.start,
            "end": one.end,
            "tags": list(one.tags),
            "summary": clean_text(one.summary),
        }
        for one in memories
    ]
    return orjson.dumps({"user_query": clean_text(query), "lsm_summary": summaries}).decode()


def records_pointed_at(analysis: Mapping[str, Any], memories: Sequence[Memory]) -> list[Memory]:
    """Return the memories that an analysis names by id (R1.20, 2.2), in their given order.

    `context_found` should name them as `{"lsm_ids": [7, 12]}`; other names for ids, texts such as "12" or "lsm:12" and
    unknown ids are tolerated. An analysis that names none but needs context gets the memories that share its keywords.
    """
    named = set(_ids_in(analysis.get("context_found"), is_pointer=False))
    found = [one for one in memories if one.memory_id in named]
    if found or not analysis.get("needs_context"):
        return found
    keywords = {word for keyword in analysis.get("search_keywords") or () for word in _words(keyword)}
    return [one for one in memories if not keywords.isdisjoint(_words(" ".join((*one.tags, one.summary))))]


def draft_context(
    query: str,
    logs: Sequence[LogLine],
    analysis: Mapping[str, Any],
    memories: Sequence[Memory],
    sources: Sequence[Source],
    mentor: str,
    *,
    matching: Matching | None = None,
    not_searched: str = "",
    tokens_max: int = DRAFT_TOKENS_MAX,
) -> str:
    """Return the draft in the order of R1.20, at most `tokens_max` tokens unless query and Mentor alone have more.

    Args:
        query: the question; never cut.
        logs: earlier messages, oldest first.
        analysis: the Analyzer's answer.
        memories: the records that it names.
        sources: ingested texts near the query, numbered in the given order; the nearest should be the first.
        matching: how many insights contain which words of the query, if it asks for a number.
        not_searched: what the search was not allowed to read; empty: nothing.
        mentor: the prompt for the answer; never cut. The Assembler's own prompt is sent as the system prompt.
        tokens_max: less where the model reads less.
    """
    head, foot = tagged("user_query", query), tagged("mentor", mentor)
    if not_searched:
        head = f"{head}\n{tagged(NOT_SEARCHED_TAG, not_searched)}"
    lines = [_log(one) for one in logs]
    # By id: they are given to a run in this order.
    records = [_record(one) for one in sorted(memories, key=lambda one: (one.start, one.memory_id))]
    listed = [_source(number, one) for number, one in enumerate(sources, 1)]
    told = escape(orjson.dumps(analysis).decode())
    whole = _joined(head, tagged("analysis", told, is_escaped=True), foot, lines, records, listed, matching)
    if surely_fits(told, ANALYSIS_TOKENS_MAX) and surely_fits(whole, tokens_max):
        return whole  # true for nearly every draft, so nothing has to be counted
    frame = count_tokens(_joined(head, tagged("analysis", ""), foot, [], [], [], matching))
    room_of_analysis = max(0, min(ANALYSIS_TOKENS_MAX, tokens_max - frame))
    said = cut_to_tokens(told, room_of_analysis)
    analysed = tagged("analysis", said, is_escaped=True)
    room = tokens_max - count_tokens(_joined(head, analysed, foot, [], [], [], matching))
    kept_for_sources = min(SOURCES_TOKENS_MIN, tokens_max // 4, sum(entry.tokens for entry in listed))
    lines, used = _newest(lines, room - kept_for_sources)
    nearest, used_by_sources = _fitting(listed, room - used)
    records, _ = _newest(records, room - used - used_by_sources)
    return _joined(head, analysed, foot, lines, records, nearest, matching)


def with_mentor(draft: str, mentor: str) -> str:
    """Return the draft with another Mentor's prompt, which is its last element; no text before it can open one (`escape`)."""
    opening = tagged("mentor", "").partition("\n")[0]
    return f"{draft.rpartition(opening)[0]}{tagged('mentor', mentor)}"


def final_payload(query: str, assembled: str, tokens_max: int = PAYLOAD_TOKENS_MAX) -> str:
    """Return the input of the final answer: the query, complete and first, and the Assembler's answer, cut so that all have
    `tokens_max` tokens.

    A query has at most 4,000 tokens; the few that escaping adds are taken from the Assembler's part.
    """
    head = tagged(QUERY_TAG, query)
    body = _WRAPPER.sub(BRACKET, clean_text(assembled).strip())
    frame = f"{head}\n<{CONTEXT_TAG}>\n\n</{CONTEXT_TAG}>"
    if not surely_fits(f"{frame}{body}", tokens_max):
        body = cut_to_tokens(body, max(0, tokens_max - count_tokens(frame)))
    return f"{head}\n<{CONTEXT_TAG}>\n{body}\n</{CONTEXT_TAG}>"


def shorter_payload(query: str, payload: str, tokens_max: int) -> str:
    """Return a payload for a model that reads less: the query complete, and the rest cut."""
    if surely_fits(payload, tokens_max):
        return payload
    _, _, body = payload.partition(f"<{CONTEXT_TAG}>\n")
    return final_payload(query, body.removesuffix(f"\n</{CONTEXT_TAG}>"), tokens_max)


def escape(text: str) -> str:
    """Return a text in which nothing opens or closes one of our tags; everything else stays unchanged."""
    return _TAG_OF_OURS.sub(BRACKET, clean_text(text))


def tagged(tag: str, text: str, *, is_escaped: bool = False, **attributes: str) -> str:
    """Return an element of the draft, its text escaped and on lines of its own."""
    given = "".join(f' {name}="{_attribute(value)}"' for name, value in attributes.items())
    return f"<{tag}{given}>\n{text if is_escaped else escape(text)}\n</{tag}>"


class _Entry(NamedTuple):
    """An element of a list in the draft, which may be cut or dropped."""

    open: str
    text: str
    close: str

    def __str__(self) -> str:
        return f"{self.open}{self.text}{self.close}"

    @property
    def tokens(self) -> int:
        return count_tokens(f"{self}\n")

    def cut(self, tokens_max: int) -> _Entry | None:
        """Return the part that fits; None if it would be a fragment."""
        room = tokens_max - count_tokens(f"{self.open}{_CUT}{self.close}\n")
        if room < ENTRY_TOKENS_MIN:
            return None
        return self._replace(text=f"{cut_to_tokens(self.text, room)}{_CUT}")


# Marks that something is missing.
_CUT = "\u2026"


def _log(line: LogLine) -> _Entry:
    return _entry("log", line.content, type=line.message_type, at=_iso(line.created_ms))


def _record(one: Memory) -> _Entry:
    dates = {"from": one.start, "to": one.end}
    return _entry("record", one.summary, id=str(one.memory_id), **dates, tags=", ".join(one.tags))


def _source(number: int, one: Source) -> _Entry:
    place = {"document": one.document, "heading": one.heading}
    given = {name: value for name, value in place.items() if value}
    return _entry(
        "source",
        one.text,
        n=str(number),
        channel=one.channel_id,
        date=_iso(one.ts_ms),
        id=one.insight_id,
        position=one.position,
        **given,
    )


def _entry(tag: str, text: str, **attributes: str) -> _Entry:
    given = "".join(f' {name}="{_attribute(value)}"' for name, value in attributes.items())
    return _Entry(f"<{tag}{given}>", escape(text).strip(), f"</{tag}>")


def _attribute(value: str) -> str:
    line = " ".join(clean_text(value).translate(_NO_ATTRIBUTE).split())
    return line[:ATTRIBUTE_CHARACTERS_MAX]


def _newest(entries: Sequence[_Entry], room: int) -> tuple[list[_Entry], int]:
    """Return the last entries that fit, in their order, and their tokens."""
    kept, used = _fitting(entries[::-1], room)
    return kept[::-1], used


def _fitting(entries: Sequence[_Entry], room: int) -> tuple[list[_Entry], int]:
    """Return the first entries that fit, the last of them cut if necessary, and their tokens."""
    kept: list[_Entry] = []
    used = 0
    for entry in entries:
        tokens = entry.tokens
        if used + tokens <= room:
            kept.append(entry)
            used += tokens
            continue
        if (part := entry.cut(room - used)) is not None:
            kept.append(part)
            used += part.tokens
        break
    return kept, used


def _joined(
    head: str,
    analysed: str,
    foot: str,
    lines: Iterable[_Entry],
    records: Iterable[_Entry],
    sources: Iterable[_Entry],
    matching: Matching | None,
) -> str:
    opening = "<sources>"
    if matching is not None:
        opening = f'<sources matching="{matching.number}" words="{_attribute(", ".join(matching.words))}">'
    parts = [head, "<history>", "<raw_logs>", *map(str, lines), "</raw_logs>", analysed]
    parts += [
        "<memory>",
        *map(str, records),
        "</memory>",
        opening,
        *map(str, sources),
        "</sources>",
        "</history>",
        foot,
    ]
    return "\n".join(parts)


def _ids_in(value: Any, *, is_pointer: bool) -> Iterable[int]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _ids_in(one, is_pointer=bool(_POINTER.search(_CAMEL.sub("_", str(name)).lower())))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _ids_in(one, is_pointer=is_pointer)
    elif is_pointer and isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif is_pointer and isinstance(value, str) and (digits := _NUMBER.fullmatch(value.strip())):
        yield int(digits[1])


def _words(text: str) -> set[str]:
    return {word for word in runs_in(text.casefold()) if len(word) >= _KEYWORD_CHARACTERS_MIN}


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

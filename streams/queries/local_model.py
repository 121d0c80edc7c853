"""The built-in model, used when no language model is configured. Invariant: it invents nothing.

It answers each stage in the form that the stage's prompt requests, from the same input, without clock, chance or state.
Answers are unchanged sentences of the sources, chosen by the words that they share with the query (rarer words weigh
more); if none shares enough, the answer is that there is none. Its own words are in the language of the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from highwater.streams.languages import text_language
from highwater.streams.messages import Messages, catalogue, gettext_noop, messages_for
from highwater.streams.models.answers import UnusableAnswerError, json_object_in
from highwater.streams.queries.asked_kind import DATE, PERSON, AskedKind, asked_kind, asked_value
from highwater.streams.queries.context import CONTEXT_TAG, QUERY_TAG
from highwater.streams.queries.memory import TAG_CHARACTERS_MAX
from highwater.streams.queries.nearest import (
    DATE_IN_QUERY,
    NAME,
    SHOWN_MAX,
    Element,
    missing_names,
    narrowed_to,
    nearest,
    ranked_by_words,
    wanted_words,
)
from highwater.streams.queries.shown import TEXT_CHARACTERS_MAX, passage_of, shortened, shown_of
from highwater.streams.queries.states import Stage
from highwater.streams.queries.words import SAME, VERSION, stem_of, subject_words, words_of

NOTHING_FOUND = gettext_noop("Nothing that was ingested answers this.")
NOTHING_ASKED = gettext_noop("Nothing was asked before this.")
KEYWORDS_MAX = 12
# What the Assembler passes on; with texts of this length it stays below the 8,000 tokens of R1.22.
SOURCES_MAX, RECORDS_MAX, LINES_MAX = 40, 5, 10
TAGS_MAX = 8
# The day and the minute of an ISO time.
_DAY_CHARACTERS, _MINUTE_CHARACTERS = 10, 16
_ELEMENT = re.compile(r"<(log|record|source)((?: [a-z]+=\"[^\"]*\")*)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_ATTRIBUTE = re.compile(r"(?<![a-z])([a-z]+)=\"([^\"]*)\"")
_MATCHING = re.compile(r"<sources matching=\"([0-9]{1,12})\" words=\"([^\"]*)\">")
_LINE_MARK = re.compile(r"\A(?:- |\[\d+\] )")
_TIME = re.compile(
    r"\b(today|yesterday|tonight|recent(?:ly)?|latest|newest"
    r"|(?:this|last|past|previous) (?:hour|day|week|month|quarter|year|(?:\d{1,3} )?(?:hours|days|weeks|months|years))"
    r"|(?:since |before |after |in )?(?:(?:19|20)\d\d(?:-\d\d){0,2})"
    r"|(?:in )?(?:january|february|march|april|june|july|august|september|october|november|december)(?: (?:19|20)\d\d)?)\b",
    re.IGNORECASE,
)
# The first question word decides: "What happens when ..." asks for no date.
_KIND = re.compile(r"\b(how many|how|when|where|whom|who|which|what|why)\b", re.IGNORECASE)
# A product's name that people shorten: RabbitMQ is "rabbit" to its users.
_PRODUCT = re.compile(r"([A-Z][a-z]{3,})(?:DB|MQ|SQL|JS)")
_PARTS = re.compile(r"[,;:]\s")
_OF_HISTORY = re.compile(
    r"\b(?:(?:did|have|had|do) (?:i|we|you) (?:\w+ )?"
    r"(?:ask|asked|say|said|tell|told|talk|talked|discuss|discussed|want|answer|answered)"
    r"|my (?:last|previous|earlier|former|first|other) (?:question|query|request|message)s?"
    r"|(?:you|we|i) (?:\w+ )?(?:said|told|answered|mentioned|discussed|asked)"
    r"|(?:you remember|remind me|our (?:conversation|discussion)))\b",
    re.IGNORECASE,
)


def local_answer(stage: Stage, system: str, user: str) -> str:  # noqa: ARG001 a model is given both
    """Return the answer to the message `user` in the form that a stage expects; the same message always gets the same
    answer.

    `system` is not read: this model follows only the seeded prompts.
    """
    return _ANSWERS[stage](user)


def _analyze(user: str) -> str:
    asked = _object(user)
    query = str(asked.get("user_query", user))
    given = asked.get("lsm_summary")
    memories = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    wanted = wanted_words(query)
    is_of_history = bool(_OF_HISTORY.search(query))
    related = [one for one in memories if _is_related(wanted, one)]
    pointed = (related or memories[:RECORDS_MAX]) if is_of_history else related
    time = _TIME.search(query)
    answer = {
        "needs_context": is_of_history or bool(pointed),
        "context_type": "history" if is_of_history else "memory" if pointed else "none",
        "time_scope": time.group(1).lower() if time else "unspecified",
        "search_keywords": _keywords(query),
        "context_found": {"lsm_ids": [one["id"] for one in pointed[:RECORDS_MAX] if isinstance(one.get("id"), int)]},
    }
    return orjson.dumps(answer).decode()


def _assemble(user: str) -> str:
    query = _between(user, "user_query")
    wanted = wanted_words(query)
    elements = _elements(user, wanted)
    is_of_history = bool(_OF_HISTORY.search(query))
    lines = [one for one in elements if one.tag == "log" and (is_of_history or wanted & one.words)]
    records = [one for one in elements if one.tag == "record"]
    ranked = ranked_by_words(wanted, [one for one in elements if one.tag == "source"])[:SOURCES_MAX]
    counted = _MATCHING.search(user)
    parts = [
        *_section("history", lines[-LINES_MAX:], wanted),
        *_section("memory", records[-RECORDS_MAX:], wanted),
        *_section("sources", [one.element for one in ranked], wanted, _sought(query), counted[0] if counted else ""),
    ]
    return "\n".join(["<context>", *parts, "</context>"])


def _respond(user: str) -> str:
    query = _between(user, QUERY_TAG)
    wanted = wanted_words(query)
    elements = _elements(user.partition(f"<{CONTEXT_TAG}>")[2] or user, wanted)
    is_of_history = bool(_OF_HISTORY.search(query))
    messages = messages_for(query)
    if is_of_history and (told := _of_history(messages, wanted, elements)):
        return told
    sources = [one for one in elements if one.tag == "source"]
    best = nearest(query, wanted, sources)
    if best:
        counted = _MATCHING.search(user)
        return _of_sources(messages, query, best, counted=counted)
    if is_of_history:
        return messages.gettext(NOTHING_ASKED)
    # An earlier question without an answer does not count as one.
    records = [one for one in elements if one.tag == "record" and not says_nothing_found(one.text)]
    remembered = nearest(query, wanted, records)
    if remembered:
        shown = [f"- {_since(messages, one)}: {shown_of(one.text, wanted)}" for one in remembered[:2]]
        lead = f"{messages.gettext(NOTHING_FOUND)} {messages.gettext('From what was said before:')}"
        return "\n".join([lead, *shown])
    return messages.gettext(NOTHING_FOUND)


def _archive(user: str) -> str:
    said = _object(user)
    query, answer = str(said.get("query", user)), str(said.get("answer", ""))
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    # The first line introduces, the second is the best source.
    told = lines[1] if len(lines) > 1 and _LINE_MARK.match(lines[1]) else " ".join(lines[:1])
    messages = messages_for(query)
    day = _dated(messages, str(said.get("timestamp", ""))[:_DAY_CHARACTERS])
    # The number of a source has no meaning later.
    answered = shortened(_LINE_MARK.sub("", told)) or messages.pgettext("an answer", "nothing")
    asked = shortened(query)
    if day:
        text = messages.gettext(
            'On {date} the user asked: "{query}" Answered: {answer}', date=day, query=asked, answer=answered
        )
    else:
        text = messages.gettext('The user asked: "{query}" Answered: {answer}', query=asked, answer=answered)
    tags = [word[:TAG_CHARACTERS_MAX] for word in subject_words(query)[:TAGS_MAX]]
    return orjson.dumps({"tags": tags, "text": text}).decode()


def says_nothing_found(answer: str) -> bool:
    """Return whether an answer says, in any language, that nothing was found."""
    return any(said in answer for said in catalogue().every(NOTHING_FOUND))


_ANSWERS: Mapping[Stage, Callable[[str], str]] = {
    Stage.ANALYZER: _analyze,
    Stage.ASSEMBLER: _assemble,
    Stage.RESPONDER: _respond,
    Stage.ARCHIVIST: _archive,
}


def _of_sources(messages: Messages, query: str, best: Sequence[Element], *, counted: re.Match[str] | None) -> str:
    wanted = wanted_words(query)
    named = frozenset().union(*(one.words for one in best))
    # A verb or a common noun may be reworded; a name that no source has is worth mentioning.
    told = [word for word in subject_words(query) if NAME.search(word) and not DATE_IN_QUERY.fullmatch(word)]
    if text_language(query) == "de":
        # Each noun has a capital.
        told = [word for word in told if not word.istitle()]
    missing = missing_names(query, told, named)
    lines = [_lead(messages, query, best, wanted, counted)]
    sought = asked_value(query)
    lines += [
        f"[{_number(one)}] {_place(messages, one)}: {shown_of(one.text, wanted, sought, one.heading)}"
        for one in best[:SHOWN_MAX]
    ]
    if missing:
        lines.append(messages.gettext("No source names {names}.", names=", ".join(missing[:SHOWN_MAX])))
    if narrowed := narrowed_to(query, best[0]):
        names = ", ".join(narrowed)
        lines.append(messages.gettext("Only sources of what the question names are listed: {names}.", names=names))
    return "\n".join(lines)


def _lead(
    messages: Messages,
    query: str,
    best: Sequence[Element],
    words_wanted: frozenset[str],
    counted: re.Match[str] | None,
) -> str:
    """Return the sources' answer to the kind of question, as a sentence: how many, when, where, who, or the text of the
    nearest source.
    """
    first = best[0]
    mark = f"[{_number(first)}]"
    asked = _KIND.search(query)
    kind = "" if asked is None else asked[1].lower().split()[-1]
    is_document = bool(first.attributes.get("document"))
    if kind == "many" and counted and not is_document:
        words = [messages.pgettext("quotation marks", '"{text}"', text=word) for word in counted[2].split(", ")]
        return messages.ngettext(
            "{count} insight has {words}.",
            "{count} insights have {words}.",
            int(counted[1]),
            count=counted[1],
            words=messages.listed(words[:SHOWN_MAX]),
        )
    if kind == "when" and _day(first) and not is_document:
        return _when(messages, best, mark)
    if kind == "where" and (channels := _channels_of(best, words_wanted)):
        return messages.gettext("It is reported in {places}.", places=messages.listed(channels[:SHOWN_MAX]))
    if kind in ("who", "whom"):
        # Only of sources that share as much as the nearest: others are about somebody else.
        near = [one for one in best[:SHOWN_MAX] if len(one.words & words_wanted) >= len(first.words & words_wanted)]
        people = list(dict.fromkeys(name for one in near for name in PERSON.findall(one.text)))
        if people:
            return messages.gettext("The sources name {names}.", names=messages.listed(people[:SHOWN_MAX]))
        return messages.gettext(
            "No source names a person; the nearest one {mark} says: {text}",
            mark=mark,
            text=shown_of(first.text, words_wanted),
        )
    return _lead_of_text(messages, query, first, mark, words_wanted)


def _when(messages: Messages, best: Sequence[Element], mark: str) -> str:
    """Return the date of the nearest source, and the first and the last of the others."""
    date = _day(best[0])
    others = sorted({_day(one) for one in best[1:]} - {date, ""})
    shown = {"mark": mark, "date": _dated(messages, date)}
    if not others:
        return messages.gettext("The nearest source {mark} dates from {date}.", **shown)
    shown |= {"first": _dated(messages, others[0]), "last": _dated(messages, others[-1])}
    if len(others) == 1:
        return messages.gettext("The nearest source {mark} dates from {date}; the others from {first}.", **shown)
    return messages.gettext("The nearest source {mark} dates from {date}; the others from {first} to {last}.", **shown)


def _channels_of(best: Sequence[Element], words_wanted: frozenset[str]) -> list[str]:
    """Return the channels of sources; none if the query names one of them, and so asks for another place."""
    channels = list(dict.fromkeys(one.attributes["channel"] for one in best if one.attributes.get("channel")))
    is_named = any(words_of(channel.rpartition("/")[2]) <= words_wanted for channel in channels)
    return [] if is_named or best[0].attributes.get("document") else channels


def _sought(query: str) -> AskedKind | None:
    """Return what a sentence has that answers the query: a thing of the requested kind, a date or an amount."""
    return asked_kind(query) or asked_value(query)


def _dates_of(query: str, one: Element, said: str) -> list[str]:
    """Return the dates in what is shown of a document, else in the heading above it, if the query asks for one."""
    value = asked_value(query)
    is_other = bool(missing_names(query, VERSION.findall(query), one.words))
    if value is None or value.name != DATE or is_other:
        return []
    dates = value.named_in(said)
    if len(dates) > 1:
        # The date beside a word of the query: "created 2021-08-14, release 2023-06-10".
        wanted = wanted_words(query)
        beside = [date for part in _PARTS.split(said) if wanted & words_of(part) for date in value.named_in(part)]
        dates = beside or dates
    return dates or value.named_in(one.heading)


def _lead_of_text(messages: Messages, query: str, first: Element, mark: str, words_wanted: frozenset[str]) -> str:
    """Return the text of the nearest source, and the thing of the requested kind or the date, if it is certain."""
    of = asked_kind(query)
    said = shown_of(first.text, words_wanted, of or asked_value(query), first.heading)
    named = [] if of is None else of.named_in(first.text)
    if of is not None and of.is_certain and not named:
        return messages.gettext(
            "No {kind} is named; the nearest source {mark} says: {text}", kind=of.name, mark=mark, text=said
        )
    if of is None and first.attributes.get("document"):
        named = _dates_of(query, first, said)
    # A text that names many is quoted: it shows which one is meant.
    if len(named) == 1:
        return messages.gettext("The nearest source {mark} names {name}: {text}", mark=mark, name=named[0], text=said)
    return messages.gettext("The nearest source {mark} says: {text}", mark=mark, text=said)


def _day(one: Element) -> str:
    return one.attributes.get("date", "")[:_DAY_CHARACTERS]


def _dated(messages: Messages, iso: str) -> str:
    """Return a date, or a date and a time, of the context as a sentence has it; a malformed one as it is."""
    try:
        at = datetime.fromisoformat(iso)
    except ValueError:
        return iso.replace("T", " ")
    return messages.day(at) if len(iso) == _DAY_CHARACTERS else messages.day_and_time(at)


def _since(messages: Messages, one: Element) -> str:
    return _dated(messages, one.attributes.get("from", ""))


def _of_history(messages: Messages, words_wanted: frozenset[str], elements: Sequence[Element]) -> str:
    """Return the earlier questions; "" if there were none."""
    asked = [one for one in elements if one.tag == "log" and one.attributes.get("type") == "user_query"]
    # "What did I ask about the controller?" asks for some of them.
    about = [one for one in asked if words_wanted & one.words] or asked
    if about:
        shown = [
            f"- {_dated(messages, one.attributes.get('at', '')[:_MINUTE_CHARACTERS])}: {shortened(one.text)}"
            for one in about[::-1][:SHOWN_MAX]
        ]
        return "\n".join([messages.gettext("You asked before, the latest first:"), *shown])
    records = [one for one in elements if one.tag == "record"]
    if records:
        shown = [f"- {_since(messages, one)}: {shortened(one.text)}" for one in records[::-1][:SHOWN_MAX]]
        return "\n".join([messages.gettext("From memory, the latest first:"), *shown])
    return ""


def _keywords(query: str) -> list[str]:
    """Return the search words: those of the query, then their synonyms in texts about changes."""
    words = subject_words(query)[:KEYWORDS_MAX]
    stems = {stem_of(word.lower()) for word in words}
    others = [word for group in SAME if stem_of(group[0]) in stems for word in group]
    others += [found[1] for word in words if (found := _PRODUCT.fullmatch(word))]
    return list(dict.fromkeys([*words, *others]))[: 2 * KEYWORDS_MAX]


def _is_related(words_wanted: frozenset[str], memory: Mapping[str, Any]) -> bool:
    tags = memory.get("tags")
    words = words_of(f"{memory.get('summary', '')} {' '.join(map(str, tags)) if isinstance(tags, list) else ''}")
    # One word of many is chance.
    return bool(words_wanted) and len(words_wanted & words) * 2 >= len(words_wanted)


def _section(
    tag: str, elements: Iterable[Element], words_wanted: frozenset[str], of: AskedKind | None = None, opening: str = ""
) -> list[str]:
    written = [_written(one, words_wanted, of) for one in elements]
    return [opening or f"<{tag}>", *written, f"</{tag}>"] if written else []


def _written(one: Element, words_wanted: frozenset[str], of: AskedKind | None) -> str:
    given = "".join(f' {name}="{value}"' for name, value in one.attributes.items())
    if not one.attributes.get("document"):
        text = shortened(one.text, TEXT_CHARACTERS_MAX)
    elif len(one.text) <= TEXT_CHARACTERS_MAX:
        text = one.text
    else:
        text = passage_of(one.text, words_wanted, of, one.heading)
    return f"<{one.tag}{given}>{text}</{one.tag}>"


def _elements(text: str, asked: frozenset[str]) -> list[Element]:
    found = _ELEMENT.findall(text)
    return [Element(tag, dict(_ATTRIBUTE.findall(given)), body.strip(), asked) for tag, given, body in found]


def _between(text: str, tag: str) -> str:
    body = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return (body or text).strip()


def _object(text: str) -> dict[str, Any]:
    try:
        return json_object_in(text)
    except UnusableAnswerError:
        return {}


def _number(one: Element) -> str:
    return one.attributes.get("n", "?")


def _place(messages: Messages, one: Element) -> str:
    """Return when and where a source was published, and its position in the log."""
    names = ("channel", "document", "heading") if one.attributes.get("document") else ("channel", "id")
    given = [one.attributes.get(name, "") for name in (*names, "position")]
    return ", ".join(filter(None, (_dated(messages, one.attributes.get("date", "")[:_MINUTE_CHARACTERS]), *given)))

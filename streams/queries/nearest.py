"""Which sources are near enough to a question to answer it, the nearest first, as the built-in model compares them.

Invariant: sources are compared by the words that they share with the question, rarer words weighing more; ties keep their
order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import NamedTuple

from highwater.streams.languages import text_language
from highwater.streams.letters import comparable, runs_in
from highwater.streams.queries.asked_kind import DATE, AskedKind, asked_kind, asked_value
from highwater.streams.queries.asked_kind import NAME as PERSON_NAME
from highwater.streams.queries.shown import words_shared
from highwater.streams.queries.words import VERSION, months_of, subject_words, words_asked, words_needed, words_of

# An answer is read at a glance.
SHOWN_MAX = 5
# A source is cited if it shares at least this part of what the best one shares; the best must share at least this part
# of the query itself.
_NEAR_BEST, _SHARE_MIN = 0.6, 0.3
# A source that names a thing of the requested kind comes first if it shares at least this part of what the best one
# shares.
_NEAR_NAMING = 0.5
# A word that no source has counts at most as two ordinary ones: otherwise one stray word would suppress all sources.
_ABSENT_WEIGHT_MAX = 2.0

NAME = re.compile(r"[A-Z0-9]")
DATE_IN_QUERY = re.compile(r"\b(?:19|20)\d\d(?:-\d\d){0,2}\b")
_RECENT = re.compile(r"\b(?:latest|newest|last|recent|recently)\b", re.IGNORECASE)
# Between the headings above a passage, as `context` writes them into an attribute.
HEADING_BETWEEN = " \u203a "


class Element(NamedTuple):
    """An entry of a draft or payload; `asked`: the words of the query, of which it may have some in compound words."""

    tag: str
    attributes: Mapping[str, str]
    text: str
    asked: frozenset[str] = frozenset()

    @property
    def heading(self) -> str:
        """Return the heading directly above it."""
        return self.attributes.get("heading", "").rpartition(HEADING_BETWEEN)[2]

    @property
    def date(self) -> str:
        """Return its ISO time, or that of the first event of a record; empty if it has none."""
        return self.attributes.get("date", self.attributes.get("from", ""))

    @property
    def above(self) -> str:
        """Return what stands above each of its lines: the names of its channel and document, and the headings."""
        return " ".join(self.attributes.get(name, "") for name in ("channel", "document", "heading"))

    @property
    def words(self) -> frozenset[str]:
        """Return the words of its text, its tags, and what stands above it."""
        given = (self.attributes.get(name, "") for name in ("tags", "channel", "document", "heading"))
        return words_of(" ".join((self.text, *given)), None, self.asked)


class Scored(NamedTuple):
    """A source with the share of the weight of the query's words that it contains."""

    score: float
    element: Element


def nearest(query: str, words_wanted: frozenset[str], elements: Sequence[Element]) -> list[Element]:
    """Return those that share enough with the query, the best first, without repeated texts; only those of a date that
    the query names, if there are any, and of the channel or document of the best one, if the query names it.
    """
    dates = _dates_named(query)
    dated = [one for one in elements if dates and one.date.startswith(dates)]
    if dated:
        elements = dated
        words_wanted = frozenset(word for word in words_wanted if not word.isdigit())
    language = text_language(query)
    groups = {group for word in subject_words(query) if (group := words_asked(word, language) & words_wanted)}
    least = words_needed(len(groups))
    elements = [one for one in elements if sum(not group.isdisjoint(one.words) for group in groups) >= least]
    names, unnamed = _names_of(query, elements)
    value = asked_value(query)
    if names and unnamed == names and value is not None and value.name in (DATE, PERSON_NAME):
        # A date or a person of something else would be a false answer; another sentence is only one that does not help.
        return []
    if unnamed:
        # Without a part of what the question is about, the name of a channel and one word are chance.
        elements = [one for one in elements if len(words_of(one.text, None, words_wanted) & words_wanted) >= least]
    ranked = ranked_by_words(words_wanted, elements)
    if not ranked:
        return dated[:SHOWN_MAX] if dated and not words_wanted else []
    if ranked[0].score < _SHARE_MIN:
        # Near by meaning rather than by words: the nearest come first.
        return [one for one in elements if one.tag == "source" and one.words & words_wanted][:1]
    near = [one.element for one in ranked if one.score >= _NEAR_BEST * ranked[0].score]
    kind = asked_kind(query)
    if kind is not None:
        nearer = [one.element for one in ranked if one.score >= _NEAR_NAMING * ranked[0].score]
        near = _naming_first(near, nearer, words_wanted, kind, 0 if kind.is_certain else 1)
    elif value is not None and near[0].attributes.get("document"):
        near = _naming_first(near, near, words_wanted, value, 0)
    if place := _place_named(query, near[0]):
        near = [one for one in near if _place_named(query, one) == place]
    if _RECENT.search(query):
        near.sort(key=lambda one: one.attributes.get("date", ""), reverse=True)
    return list({" ".join(sorted(one.words)): one for one in reversed(near)}.values())[::-1]


def _names_of(query: str, elements: Sequence[Element]) -> tuple[list[str], list[str]]:
    """Return the names in a query, which are its subject, and those of them that no source has."""
    named = frozenset().union(*(one.words for one in elements))
    first, _, _ = query.strip().partition(" ")
    names = [
        word for word in subject_words(query) if any(map(str.isupper, word)) and not (word == first and word.istitle())
    ]
    return names, missing_names(query, names, named)


def _naming_first(
    near: Sequence[Element],
    candidates: Sequence[Element],
    words_wanted: frozenset[str],
    of: AskedKind,
    fewer_max: int,
) -> list[Element]:
    """Return sources, first those of the candidates that name a thing of a kind, or a value.

    They name it in a line that shares as many words of the query as the best of any, or up to `fewer_max` fewer: another
    sentence is about something else. A thing that is certain by its form is one wherever it stands.
    """
    shared = {id(one): words_shared(one.text, words_wanted, one.above, of) for one in candidates}
    least = 1
    if not of.is_certain:
        least = max(1, max(words_shared(one.text, words_wanted, one.above) for one in candidates) - fewer_max)
    naming = [one for one in candidates if shared[id(one)] >= least or (of.is_certain and of.named_in(one.text))]
    return [*naming, *(one for one in near if one not in naming)]


def narrowed_to(query: str, one: Element) -> list[str]:
    """Return what a query names that narrows its sources to such as this one: a channel or a document, and dates."""
    return [
        *filter(None, [_place_named(query, one)]),
        *(date for date in _dates_named(query) if one.date.startswith(date)),
    ]


def _place_named(query: str, one: Element) -> str:
    """Return the place of a source, its channel or its document, if the query names it: whole, or without its owner; else
    nothing.
    """
    asked = f" {' '.join(runs_in(comparable(query).lower()))} "
    for name in (one.attributes.get("channel", ""), one.attributes.get("document", "")):
        runs = " ".join(runs_in(comparable(name.rpartition("/")[2]).lower()))
        if runs and f" {runs} " in asked:
            return name
    return ""


def _dates_named(query: str) -> tuple[str, ...]:
    """Return the days, months and years that a query names, as prefixes of ISO dates: months with a year if there are
    any, else all.
    """
    return tuple(months_of(query) or DATE_IN_QUERY.findall(query))


def ranked_by_words(words_wanted: frozenset[str], elements: Sequence[Element]) -> list[Scored]:
    """Return elements that share words with the query, by the share of its weight that they contain; ties keep their order."""
    bags = [one.words & words_wanted for one in elements]
    shared = Counter(word for bag in bags for word in bag)
    # They were found by these words, so a word that is rare among them is rarer elsewhere: half the usual weight of rarity.
    weights = {word: 1 + 0.5 * log(len(elements) / count) for word, count in shared.items()}
    total = sum(weights.get(word, _ABSENT_WEIGHT_MAX) for word in sorted(words_wanted))
    scored = [
        Scored(sum(weights[word] for word in sorted(bag)) / total, one)
        for bag, one in zip(bags, elements, strict=True)
        if bag
    ]
    return sorted(scored, key=lambda one: -one.score)


def wanted_words(query: str) -> frozenset[str]:
    """Return the words that name the subject of a query, as texts are compared."""
    return words_asked(" ".join(subject_words(query)), text_language(query))


def missing_names(query: str, names: Sequence[str], named: frozenset[str]) -> list[str]:
    """Return the words of a query that sources do not name. Another version of the same is not named by it."""
    language = text_language(query)
    return [
        word
        for word in names
        if (word not in named if VERSION.fullmatch(word) else words_asked(word, language).isdisjoint(named))
    ]

"""Redacts a run after some of its sources were withdrawn. Invariant: no source's text outlives its withdrawal.

A source keeps its number, since answers cite sources by it; its text and names are removed. An answer is withdrawn as a
whole if it cites such a source, or repeats text that only such a source contains: what else it uses cannot be
determined.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from highwater.streams.messages import catalogue, gettext_noop, messages_for
from highwater.streams.queries.memory import Summary
from highwater.streams.queries.runs import Run
from highwater.streams.texts import Quotations

WITHDRAWN_ANSWER = gettext_noop(
    "This answer was withdrawn, because a source that it was written from was retracted. "
    "Ask again for one from what is left."
)
WITHDRAWN_MEMORY = gettext_noop(
    "The user asked a question; the answer to it was withdrawn, because a source of it was retracted."
)
_CITED = re.compile(r"\[(\d{1,3}(?:\s*[,;\u2013-]\s*\d{1,3})*)\]")


class WithdrawnSource(NamedTuple):
    """A withdrawn source, by its channel (or namespace) and id, with its text."""

    channel_id: str
    source_id: str
    text: str


def withdrawn_answer(query: str) -> str:
    """Return what replaces the withdrawn answer to a query, in the language of the query."""
    return messages_for(query).gettext(WITHDRAWN_ANSWER)


def is_withdrawn(answer: str | None) -> bool:
    """Return whether an answer was withdrawn, whichever language its query is in."""
    return answer in catalogue().every(WITHDRAWN_ANSWER)


def withdrawn_memory(query: str) -> Summary:
    """Return what replaces the memory of a query whose answer was withdrawn."""
    return Summary((), messages_for(query).gettext(WITHDRAWN_MEMORY))


def numbers_of(sources: Sequence[Mapping[str, Any]], withdrawn: Iterable[WithdrawnSource]) -> list[int]:
    """Return the numbers of withdrawn sources in a run, from 1."""
    gone = {(one.channel_id, one.source_id) for one in withdrawn}
    return [number for number, one in enumerate(sources, 1) if (one["channel_id"], one["insight_id"]) in gone]


def redacted_sources(sources: Sequence[Mapping[str, Any]], numbers: Collection[int]) -> list[dict[str, Any]]:
    """Return the sources, those with these numbers without ids and texts."""
    return [
        {**one, "insight_id": "", "text": "", "withdrawn": True} if number in numbers else dict(one)
        for number, one in enumerate(sources, 1)
    ]


def tells_of(text: str, numbers: Collection[int], quoted: Quotations) -> bool:
    """Return whether a text cites a source with one of these numbers, or quotes withdrawn text."""
    cited = {int(number) for found in _CITED.findall(text) for number in re.findall(r"\d+", found)}
    return not cited.isdisjoint(numbers) or text in quoted


def redacted_run(run: Run, withdrawn: Sequence[WithdrawnSource]) -> Run:
    """Return a run as it is stored after sources were withdrawn: without them, and without an answer that mentions
    them.

    Its context is written from all sources; it is removed once the answer exists, and cannot be used by a restart.
    """
    sources = run.sources or ()
    numbers = numbers_of(sources, withdrawn) or [
        number for number, one in enumerate(sources, 1) if one.get("withdrawn")
    ]
    others = [str(one["text"]) for number, one in enumerate(sources, 1) if number not in numbers]
    answer = run.answer
    if answer is not None and tells_of(answer, numbers, Quotations([one.text for one in withdrawn], others)):
        answer = withdrawn_answer(run.query)
    return replace(run, sources=redacted_sources(sources, numbers) if numbers else run.sources, answer=answer)

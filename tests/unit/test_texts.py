"""Quotations: words in a row that some texts say and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highwater.streams.jobs.redaction import WITHDRAWN, redacted_slides, redacted_title
from highwater.streams.queries.redaction import WITHDRAWN_ANSWER, WithdrawnSource, is_withdrawn, redacted_run
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import Status
from highwater.streams.texts import Quotations

SECRET = "Falcon buys Acme tomorrow at noon"


@pytest.mark.parametrize(
    ("text", "is_quoted"),
    [
        (f"As said: {SECRET}.", True),
        ("falcon BUYS \u201cAcme\u201d, tomorrow", True),  # however it is written
        ("Falcon buys Acme", False),  # three words are no quotation
        ("It rains tomorrow at noon in Oslo", False),  # another text says that
        ("", False),
    ],
)
def test_words_in_a_row_are_a_quotation(text: str, is_quoted: bool) -> None:
    """Four words, with anything between them; words that another text also contains do not count."""
    assert (text in Quotations([SECRET], ["Rains tomorrow at noon in Oslo"])) is is_quoted


def test_a_short_text_is_quoted_as_a_whole() -> None:
    """A text of fewer words is quoted where all of them stand in a row; one without a word by nothing."""
    assert "Buy Acme now" in Quotations(["buy acme"])
    assert "Buy all of Acme" not in Quotations(["buy acme", "...", ""])


def _run(answer: str | None) -> Run:
    sources = [
        {"insight_id": "i1", "channel_id": "c", "text": SECRET, "position": "p/0/1"},
        {"insight_id": "i2", "channel_id": "c", "text": "A branch opens in Oslo", "position": "p/0/2"},
    ]
    return Run("r", "u", 1, "q", Status.COMPLETED, answer=answer, sources=sources)


@pytest.mark.parametrize(
    ("answer", "is_withdrawn"),
    [
        ("Something is bought [1].", True),
        ("Something is bought [2, 1].", True),
        (f"{SECRET}.", True),
        ("A branch opens in Oslo [2].", False),
        ("Nothing that was ingested answers this.", False),
        ("In 1995 [2][3].", False),
    ],
)
def test_an_answer_goes_with_the_source_that_it_tells_of(answer: str, is_withdrawn: bool) -> None:
    """It names the source by its number, or quotes it; the others keep their numbers, and it may be said again."""
    gone = [WithdrawnSource("c", "i1", SECRET)]
    run = redacted_run(_run(answer), gone)
    assert run.answer == (WITHDRAWN_ANSWER if is_withdrawn else answer)
    assert run.sources is not None
    assert [(one["insight_id"], one["text"]) for one in run.sources] == [("", ""), ("i2", "A branch opens in Oslo")]
    assert redacted_run(run, gone) == run
    assert redacted_run(_run(None), gone).answer is None
    assert redacted_run(_run(answer), [WithdrawnSource("other", "i1", "Not said anywhere at all")]) == _run(answer)


def test_a_withdrawn_answer_is_in_the_language_of_its_query() -> None:
    """Whichever it is, it is known as withdrawn."""
    gone = [WithdrawnSource("c", "i1", SECRET)]
    asked = replace(_run(f"{SECRET}."), query="Что и когда было куплено?")
    answer = redacted_run(asked, gone).answer
    assert answer is not None
    assert answer.startswith("Этот ответ отозван, потому что отозван один из источников")
    assert is_withdrawn(answer)
    assert is_withdrawn(WITHDRAWN_ANSWER)
    assert not is_withdrawn(None)
    assert not is_withdrawn(SECRET)
    assert redacted_run(replace(asked, answer=answer), gone).answer == answer


def test_a_deck_loses_the_lines_that_quote_what_was_deleted() -> None:
    """Titles, bullets and notes; one replacement stands for several bullets."""
    slide = {
        "number": 1,
        "slide_id": "s1",
        "title": "Oslo",
        "bullets": [SECRET, f"Again: {SECRET}", "A branch"],
        "notes": SECRET,
    }
    (left,) = redacted_slides([slide], Quotations([SECRET]))
    assert left == {**slide, "bullets": [WITHDRAWN, "A branch"], "notes": WITHDRAWN}
    assert redacted_title(SECRET, Quotations([SECRET])) == WITHDRAWN


def test_sources_and_tables_of_a_deck_are_redacted_too() -> None:
    """A bullet keeps its source, a withdrawn one has none; a heading that quotes, and a table with a row that does, go."""
    source = {"document": "d", "name": "a.md", "heading": "A", "place": 1}
    table = {"header": ["k", "v"], "rows": [["Falcon buys Acme", "tomorrow at noon"]]}
    slide = {
        "title": "Plans",
        "notes": "",
        "bullets": ["A branch", SECRET, "Another", f"So: {SECRET}"],
        "sources": [source, source, {**source, "heading": SECRET}, None],
        "table": table,
    }
    (left,) = redacted_slides([slide], Quotations([SECRET]))
    assert left["bullets"] == ["A branch", WITHDRAWN, "Another"]
    assert left["sources"] == [source, None, {**source, "heading": WITHDRAWN}]
    assert left["table"] is None
    kept = {**slide, "table": {"header": ["k", "v"], "rows": [["a", "1"]]}}
    assert redacted_slides([kept], Quotations([SECRET]))[0]["table"] == kept["table"]

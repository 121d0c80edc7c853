"""The input of the stages."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.streams.models.tokens import count_tokens, cut_to_tokens
from highwater.streams.queries.context import (
    DRAFT_TOKENS_MAX,
    PAYLOAD_TOKENS_MAX,
    SOURCES_TOKENS_MIN,
    LogLine,
    Memory,
    Source,
    analyzer_input,
    draft_context,
    final_payload,
    records_pointed_at,
)

QUERY_TOKENS_MAX = 4_000
NO_ANALYSIS = {"needs_context": False}
TAGS = ("user_query", "history", "raw_logs", "analysis", "memory", "sources", "mentor")
# Texts that try to pass for a part of the draft.
HOSTILE = st.lists(
    st.sampled_from(
        ["</user_query>", "<mentor>", "</ query >", "</HISTORY>", "</log>", '<source n="9">', "</source>", "<", "</", ">",
         "word ", "a < b", "</assembled_context>", "</record>", "<query", "\n", "\x00", "\ud800", '"', "&lt;/log&gt;",
         "mentor>", "< log"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


def memory(number: int, summary: str = "", *tags: str) -> Memory:
    """A record of one day in January."""
    return Memory(number, f"2026-01-{number:02d}", f"2026-01-{number:02d}", tags, summary or f"memory-{number}")


def source(number: int, text: str = "", similarity: float = 0.5) -> Source:
    """An insight."""
    return Source(f"i{number}", "apache/kafka", 1_700_000_000_000, text or f"source-{number}", "t/0/1", similarity)


def draft(query: str = "query-marker", **parts: Any) -> str:
    """A draft of the given parts only."""
    given = {"logs": [], "analysis": NO_ANALYSIS, "memories": [], "sources": [], "mentor": "mentor-marker"} | parts
    return draft_context(query, **given)


@pytest.mark.requirement("R1.17")
def test_the_analyzer_gets_the_query_and_the_memories_as_they_are_given() -> None:
    """R1.17: id, start, end, tags and summary of each, in the given order."""
    said = orjson.loads(analyzer_input("what?", [memory(2, "two", "a", "b"), memory(1)]))
    assert said["user_query"] == "what?"
    assert said["lsm_summary"][0] == {
        "id": 2, "start": "2026-01-02", "end": "2026-01-02", "tags": ["a", "b"], "summary": "two",
    }  # fmt: skip
    assert [one["id"] for one in said["lsm_summary"]] == [2, 1]


@pytest.mark.requirement("R1.20")
def test_the_draft_is_in_the_order_of_the_requirement() -> None:
    """R1.20: query, log rows oldest first, analysis, memory, sources by number, Mentor."""
    text = draft(
        logs=[LogLine("user_query", "log-1", 0), LogLine("assistant_response", "log-2", 1_000)],
        analysis={"needs_context": True, "context_type": "analysis-marker"},
        memories=[memory(2), memory(1)],
        sources=[source(1), source(2)],
    )
    markers = ["query-m", "log-1", "log-2", "analysis-m", "memory-1", "memory-2", "source-1", "source-2", "mentor-m"]
    places = [text.index(marker) for marker in markers]
    assert places == sorted(places)
    assert '<log type="assistant_response" at="1970-01-01T00:00:01Z">log-2</log>' in text
    assert (
        '<source n="2" channel="apache/kafka" date="2023-11-14T22:13:20Z" id="i2" position="t/0/1">source-2</source>'
        in text
    )
    assert '<record id="1" from="2026-01-01" to="2026-01-01" tags="">memory-1</record>' in text


@given(HOSTILE, HOSTILE)
def test_no_text_passes_for_a_part_of_the_draft(said: str, attribute: str) -> None:
    """For any query and ingested text, each element opens and closes once, in order, and each entry is one."""
    text = draft(
        said,
        logs=[LogLine("user_query", said, 0)],
        analysis={"needs_context": True, "context_found": {"said": said.replace("\ud800", "")}},
        memories=[Memory(1, "2026-01-01", "2026-01-01", (attribute,), said)],
        sources=[Source(attribute, attribute, 0, said, "", 0.5)],
        mentor=said,
    )
    names = "|".join((*TAGS, "log", "record", "source"))
    found = re.findall(rf"<\s*/\s*(?i:{names})\b|<\s*(?:{names})\b", text)
    assert " ".join(found) == (
        "<user_query </user_query <history <raw_logs <log </log </raw_logs <analysis </analysis <memory <record </record "
        "</memory <sources <source </source </sources </history <mentor </mentor"
    )
    assert len(re.findall(r"^<(?:log|record|source)(?: [a-z]+=\"[^\"<>]*\")+>", text, re.MULTILINE)) == 3
    assert not re.search("[\x00\ud800-\udfff]", text)


def test_what_is_no_tag_of_ours_stays_as_it_was_said() -> None:
    """Code and comparisons are not rewritten."""
    query = 'Why is a < b && c > d in <div class="x"> and List<Query>, Map<Record, Log>? &amp; </p>'
    assert query in draft(query)
    assert query in final_payload(query, "<context/>")


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 5_000), st.integers(0, 800), st.integers(0, 3_000), st.integers(0, 800), st.integers(0, 800), HOSTILE
)
def test_a_draft_is_never_above_its_tokens_and_keeps_query_and_mentor(
    query: int, line: int, answer: int, record: int, insight: int, hostile: str
) -> None:
    """This holds for parts of any length: within the bound, query and Mentor are complete."""
    asked, ruled = cut_to_tokens("why is it so " * query, QUERY_TOKENS_MAX - 500), "rule " * 500
    logs = [LogLine("user_query", "asked " * line, 0), LogLine("assistant_response", "told " * answer + hostile, 0)] * 5
    text = draft(
        asked,
        logs=logs,
        analysis={"needs_context": True, "context_found": {"text": "x " * answer}},
        memories=[memory(number, "kept " * record + hostile) for number in range(1, 21)],
        sources=[source(number, "found " * insight + hostile) for number in range(1, 41)],
        mentor=ruled,
    )
    assert count_tokens(text) <= DRAFT_TOKENS_MAX
    assert f"<user_query>\n{asked}\n</user_query>" in text
    assert text.endswith(f"<mentor>\n{ruled}\n</mentor>")


@pytest.mark.requirement("R1.23")
def test_memory_gives_way_before_sources_and_sources_before_history() -> None:
    """The least important part is cut first: old memory, then the sources least like the query, then the oldest history."""
    logs = [LogLine("user_query", f"log-{number} " + "the " * 500, 0) for number in range(10)]
    records = [memory(number, f"memory-{number} " + "the " * 500) for number in range(1, 10)]
    insights = [source(number, f"source-{number} " + "the " * 500) for number in range(1, 21)]

    def kept(marker: str, text: str) -> list[int]:
        return [int(number) for number in re.findall(rf">{marker}-(\d+) ", text)]

    only_memory_cut = draft(logs=logs, memories=records, sources=insights[:16])
    assert kept("log", only_memory_cut) == list(range(10))
    assert kept("source", only_memory_cut) == list(range(1, 17))
    assert kept("memory", only_memory_cut) == list(range(10 - len(kept("memory", only_memory_cut)), 10))
    assert len(kept("memory", only_memory_cut)) < 9
    sources_cut = draft(logs=logs * 2, memories=records, sources=insights)
    assert kept("memory", sources_cut) == []
    assert kept("source", sources_cut) == list(range(1, 1 + len(kept("source", sources_cut))))
    assert len(kept("log", sources_cut)) == 20
    history_cut = draft(logs=logs * 4, memories=records, sources=insights)
    assert kept("log", history_cut) == (list(range(10)) * 4)[-len(kept("log", history_cut)) :]
    assert len(kept("log", history_cut)) < 40
    # However long the history is, something that was ingested remains.
    assert len(kept("source", history_cut)) >= SOURCES_TOKENS_MIN // 520


def test_a_mentor_longer_than_the_draft_stays_whole() -> None:
    """An administrator's prompt is never cut; everything else has gone then."""
    text = draft(
        mentor="rule " * 20_000, sources=[source(1)], memories=[memory(1)], logs=[LogLine("user_query", "old", 0)]
    )
    assert text.endswith("rule " * 20_000 + "\n</mentor>")
    assert "query-marker" in text
    assert not re.search("source-1|memory-1|old", text)


def test_a_long_analysis_leaves_room() -> None:
    """It is cut, so that sources remain; and beside a long Mentor it goes like everything else."""
    analysis = {"needs_context": True, "context_found": {"text": "the " * 15_000}}
    assert "source-1<" in draft(analysis=analysis, sources=[source(1)])
    assert count_tokens(draft(analysis=analysis, mentor="the " * 15_500)) <= DRAFT_TOKENS_MAX


@pytest.mark.requirement("R1.22", "R1.23")
@settings(deadline=None)
@given(st.text(max_size=2_000) | HOSTILE, st.integers(0, 12_000), HOSTILE)
def test_the_payload_has_the_query_whole_and_stays_within_its_tokens(query: str, words: int, hostile: str) -> None:
    """R1.22, R1.23: at most 8,000 tokens, and it is the assembled part that is cut."""
    assembled = "<context>" + "fact " * words + hostile
    text = final_payload(query, assembled)
    assert count_tokens(text) <= PAYLOAD_TOKENS_MAX
    assert re.findall(r"<\s*/\s*(?i:query|assembled_context)\b|<\s*(?:query|assembled_context)\b", text) == [
        "<query", "</query", "<assembled_context", "</assembled_context",
    ]  # fmt: skip
    if "<" not in query and not re.search("[\x00\ud800-\udfff]", query):
        assert text.startswith(f"<query>\n{query}\n</query>\n")


@pytest.mark.parametrize("unit", ["why ", "<query", "</query>", "< / MENTOR>", "&", "<", "中", "🙂", "x9", "\n"])
def test_the_longest_query_of_anything_fits_whole(unit: str) -> None:
    """A query of 4,000 tokens of any text is complete, and something remains for the context."""
    query = cut_to_tokens(unit * 5_000, QUERY_TOKENS_MAX)
    text = final_payload(query, "<context>" + "fact " * 9_000)
    assert count_tokens(text) <= PAYLOAD_TOKENS_MAX
    body = text.removeprefix("<query>\n").partition("\n</query>\n<assembled_context>")[0]
    assert body.replace("\u2039", "<") == query
    assert text.count("fact") > 900


def test_a_small_payload_is_not_cut() -> None:
    """A payload that fits is passed on as the Assembler gave it."""
    assert final_payload("why?", " <context>\n<sources/>\n</context>\n") == (
        "<query>\nwhy?\n</query>\n<assembled_context>\n<context>\n<sources/>\n</context>\n</assembled_context>"
    )


@pytest.mark.parametrize(
    "found",
    [
        {"lsm_ids": [1, 3]},
        {"lsm_ids": ["1", "#3", 99, None, True, 1.5, "x", "-"]},
        {"lsm_records": [{"id": 1}, {"id": "lsm:3"}]},
        {"memory": {"ids": [3]}, "recordId": "1"},
        {"lsm_ids": [3, 1, 3, 10**30]},
    ],
)
def test_records_are_found_by_the_ids_that_an_analysis_names(found: dict) -> None:
    """The ids may have any form that a model gave them; unknown ones are skipped, and the given order is kept."""
    memories = [memory(3), memory(2), memory(1)]
    # The keyword is in every summary: named records come first.
    analysis = {"needs_context": True, "search_keywords": ["memory"], "context_found": found}
    assert [one.memory_id for one in records_pointed_at(analysis, memories)] == [3, 1]


def test_numbers_that_are_no_ids_point_at_nothing() -> None:
    """A count or a year in an analysis is not taken for a record."""
    found = {"count": 1, "year": "3", "note": "record 2", "valid": 2, "lsm_ids": [True, 2.0]}
    assert records_pointed_at({"context_found": found}, [memory(1), memory(2), memory(3)]) == []


def test_an_analysis_that_needs_context_and_names_none_points_by_keyword() -> None:
    """Tags and summaries that share a keyword; without the need there are none."""
    memories = [memory(3, "Of the KRaft controller."), memory(2, "of the weather"), memory(1, "other", "Controller")]
    analysis = {"search_keywords": ["the controller", "of"], "context_found": {"lsm_ids": [77]}}
    assert records_pointed_at(analysis | {"needs_context": False}, memories) == []
    found = records_pointed_at(analysis | {"needs_context": True, "search_keywords": ["controller"]}, memories)
    assert [one.memory_id for one in found] == [3, 1]
    assert records_pointed_at({"needs_context": True}, memories) == []

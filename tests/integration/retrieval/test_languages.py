"""Texts in other languages than English: their words are found in any form, among texts of other languages too."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.feeds.statements import QUERIES as FEEDS
from highwater.connectors.models.embedding_calls import Work
from highwater.connectors.retrieval.asked import QuestionVector
from highwater.connectors.retrieval.insights import InsightSearch
from highwater.connectors.retrieval.languages import label_texts
from highwater.connectors.retrieval.search import search
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.connectors.verify.word_sums import verify_word_sums
from highwater.streams.clock import to_datetime
from highwater.streams.languages import STEMMED, text_language
from tests.integration.chunks.chunk_rows import NOW_MS, Rows

WORK = Work("i", "u")
# A text, a question with its words in other forms, and one about something else.
TEXTS = {
    "ru": (
        "Сертификаты устанавливаются командой, которую запускает администратор.",
        "Как установить сертификат?",
        "почта",
    ),
    "de": ("Die Bibliotheken werden mit diesem Befehl installiert.", "Wie installiere ich die Bibliothek?", "Druckern"),
    "fr": (
        "Les bibliothèques sont installées avec cette commande.",
        "Comment installer une bibliothèque ?",
        "imprimante",
    ),
    "es": ("Las bibliotecas se instalan con esta orden.", "¿Cómo instalar la biblioteca?", "impresora"),
    "it": ("Le librerie vengono installate con questo comando.", "Come installare della libreria?", "stampante"),
    "el": ("Οι βιβλιοθήκες εγκαθίστανται με αυτή την εντολή.", "Πώς εγκαθίσταται η βιβλιοθήκη;", "εκτυπωτής"),  # noqa: RUF001 - Greek
    "sv": ("Biblioteken installeras med det här kommandot.", "Hur installerar jag ett bibliotek?", "skrivare"),
}


async def found(rows: Rows, words: str, **asked: Any) -> list[tuple[str, float | None]]:
    """Sources of a search by words alone, with the scores of their words."""
    passport = await rows.passport()
    told = await search(rows.pool, passport, q_vector=None, words=words, limit=10, as_of_ms=NOW_MS, **asked)
    assert told.is_complete
    return [(one.source_id, one.text_score) for one in told.results if one.text_score]


@pytest.mark.parametrize("language", TEXTS)
async def test_a_word_is_found_in_other_forms(rows: Rows, language: str):
    """Also among texts in every other language, and as it was before it changed; what is said nowhere is not found."""
    text, question, other = TEXTS[language]
    assert text_language(text) == text_language(question) == language
    await rows.namespace()
    await rows.put(language, [text], age_days=1)
    await rows.put("en", ["Certificates are installed by an administrator.", "A printer prints mail."])
    assert (await found(rows, question))[0][0] == language
    assert (await found(rows, "Who installs a certificate?"))[0][0] == "en"
    for name, (told, _, _) in TEXTS.items():
        await rows.put(f"{name}-also", [told])
    assert (await found(rows, question))[0][0] in (language, f"{language}-also")
    assert await found(rows, other) == []
    gone = "UPDATE chunks SET content = 'gone', content_hash = 'x', language = NULL, updated_at = $1"
    await rows.pool.execute(gone, to_datetime(NOW_MS))
    assert await found(rows, question) == []
    before = await found(rows, question, texts_of_ms=NOW_MS - 1)
    assert before[0][0] == language


async def test_a_word_with_two_stems_weighs_as_one(rows: Rows):
    """A German text scores the same whether English texts stand beside it or not, if as many texts have its words."""
    german = [
        "Bibliotheken, Bibliotheken und noch eine Bibliothek sind installiert.",
        "Das ist nicht alles und auch nicht neu.",
    ]
    question = "Wie wird eine Bibliothek installiert?"
    await rows.namespace()
    await rows.put("de", german)
    await rows.put("other", ["Das ist auch hier nicht so und nicht neu"])
    alone = await found(rows, question)
    await rows.namespace("mixed")
    for source, texts in (("de", german), ("other", ["It is like that here too and that is new"])):
        await rows.put(source, texts, ns="mixed")
    passport = await rows.pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = 'mixed'")
    mixed = await search(rows.pool, passport, q_vector=None, words=question, limit=10, as_of_ms=NOW_MS)
    assert [(one.source_id, pytest.approx(one.text_score)) for one in mixed.results if one.text_score] == alone
    assert alone[0][1] is not None
    assert alone[0][1] > 0.5


async def test_the_sums_of_words_are_verified_in_every_language(rows: Rows):
    """Of texts whose language is known and of those that were stored before it was."""
    await rows.namespace()
    for number, (text, _, _) in enumerate(TEXTS.values()):
        await rows.put("known", [text], first=number)
        await rows.put("unknown", [text], first=number, language=None)
    async with rows.pool.acquire() as live, live.transaction(readonly=True):
        checked = await verify_word_sums(live, "models", TimeLimit(60))
    assert checked.compared > 40
    assert [one.as_json() for one in checked.differences] == []


async def ingested(rows: Rows, *texts: str) -> None:
    """Insights of one channel, as their sink stores them."""
    await rows.pool.execute("INSERT INTO channels (channel_id, current_seq) VALUES ('acme/docs', $1)", len(texts))
    for seq, text in enumerate(texts, start=1):
        await rows.pool.execute(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, language, source_partition, source_offset) "
            "VALUES ($1, 'acme/docs', $2::bigint, 'epoch', 'epoch', $3, $4, 0, $2::bigint)",
            f"i{seq}", seq, text, text_language(text),
        )  # fmt: skip


@pytest.mark.parametrize("language", TEXTS)
async def test_an_insight_answers_in_its_language(rows: Rows, language: str):
    """By other forms of its words; the count of those with the words is right, and nothing else is near enough."""
    text, question, other = TEXTS[language]
    await ingested(rows, *(told for told, _, _ in TEXTS.values()), "Certificates are installed.")
    insights = InsightSearch(rows.pool)
    wanted = f"i{list(TEXTS).index(language) + 1}"
    words = question.rstrip(" ?;").split()[-1:]
    near = await insights.of_query(question, words, QuestionVector(None, question, WORK), None, limit=10)
    assert near[0].insight_id == wanted
    assert (near[0].text, near[0].share > 0.5) == (text, True)
    assert await insights.of_query(other, [other], QuestionVector(None, other, WORK), None, limit=10) == []
    counted = await insights.count(words, None)
    assert counted is not None
    assert counted.number >= 1
    assert await insights.count([other], None) is None


async def test_a_compound_word_has_its_parts(rows: Rows):
    """In German, with a stem of four letters or more, at its begin or end; an English word has none."""
    text = "Das ist der Systemstartprozess, den dieser Systemdienst als erfolgreich markiert."
    await ingested(rows, text, "The datestamp of a processstarter is not shown", "Das Zertifikat ist von der Gemeinde")
    insights = InsightSearch(rows.pool)

    async def found(question: str, *words: str) -> list[str]:
        near = await insights.of_query(question, words, QuestionVector(None, question, WORK), None, limit=10)
        return [one.insight_id for one in near if one.share > 0.5]

    assert await found("Welcher Dienst hat den Systemstart markiert?", "Dienst", "Systemstart") == ["i1"]
    assert await found("Was ist ein Prozess und wie markiert man ihn?", "Prozess", "markiert") == ["i1"]
    assert await found("Was ist ein Ding und was ein System von Zertifikaten?", "Zert") == []
    assert await found("Where is the process shown?", "process") == []


async def test_a_phrase_in_another_form_is_still_said(rows: Rows):
    """A label is kept if an insight in its language says the phrase in other forms."""
    await ingested(rows, "Сертификаты сервера установлены для всех", "Die Bibliotheken sind nicht installiert")
    phrases = ["Сертификат сервера", "Bibliothek", "Ошибка сервера"]
    still = await rows.pool.fetch(FEEDS["phrases_still_said"], phrases, list(STEMMED))
    assert [row["phrase"] for row in still] == phrases[:2]
    await rows.pool.execute("UPDATE insights SET retracted_at = 'epoch'")
    assert await rows.pool.fetch(FEEDS["phrases_still_said"], phrases, list(STEMMED)) == []


async def test_texts_that_were_stored_before_get_their_language(rows: Rows):
    """By `highwater init --languages`: current and former ones and insights, in batches; English ones stay as they are."""
    await rows.namespace()
    for number, (text, _, _) in enumerate(TEXTS.values()):
        await rows.put("old", [text], first=number, language=None, age_days=1)
    await rows.put("en", ["Certificates are installed."] * 3)
    await ingested(rows, *(text for text, _, _ in TEXTS.values()), "Certificates are installed.")
    await rows.pool.execute("UPDATE insights SET language = NULL")
    moment = to_datetime(NOW_MS)
    await rows.pool.execute("UPDATE chunks SET content_hash = 'x', updated_at = $1 WHERE source_id = 'old'", moment)
    count = len(TEXTS)
    assert await label_texts(rows.pool, batch=2) == {"insights": count, "chunks": count, "former_chunks": count}
    assert await label_texts(rows.pool) == {"insights": 0, "chunks": 0, "former_chunks": 0}
    for table in ("insights", "chunks", "former_chunks"):
        known = await rows.pool.fetch(f"SELECT language FROM {table} WHERE language IS NOT NULL")
        assert sorted(row["language"] for row in known) == sorted(TEXTS)
    _, question, _ = TEXTS["ru"]
    assert [source for source, _ in await found(rows, question)] == ["old"]
    assert [source for source, _ in await found(rows, question, texts_of_ms=NOW_MS - 1)] == ["old"]

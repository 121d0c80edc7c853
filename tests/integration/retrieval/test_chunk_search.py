"""Searches against their model: the formula over all chunks in NumPy; by comparing all, and by the index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from highwater.connectors.chunks.indexes import ChunkIndexes
from highwater.connectors.retrieval import search as chunk_search
from highwater.connectors.retrieval.results import SearchResults
from highwater.connectors.retrieval.search import Depth, NothingToCompareError, WrongVectorError, search
from highwater.connectors.retrieval.statements import QUERIES
from highwater.streams.chunks.asked_text import asked_text
from highwater.streams.chunks.scoring import FUSED_SATURATION, TEXT_SHARE, Mode, text_score, word_weights
from highwater.streams.clock import ProductClock, to_datetime
from tests.integration.chunks.chunk_rows import DAY_MS, NOW_MS, Rows

NAN = float("nan")


async def found(rows: Rows, vector: Any = None, **asked: Any) -> SearchResults:
    """A search of ten."""
    given = None if vector is None else np.asarray(vector, "<f4").tobytes()
    passport = await rows.passport()
    return await search(
        rows.pool, passport, **{"q_vector": given, "words": None, "limit": 10, "as_of_ms": NOW_MS, **asked}
    )


def ids(told: SearchResults) -> list[tuple[str, int]]:
    """Sources and numbers of results, in order."""
    return [(one.source_id, one.chunk_no) for one in told.results]


async def test_the_formula_to_the_letter(rows: Rows):
    """A result has its cosine, its decay and the sum of both by their weights; without a vector the similarity is 0."""
    await rows.namespace(dimensions=2)
    await rows.put("old", ["near"], vector=[[3.0, 0.0]], age_days=30)
    await rows.put("new", ["none"], age_days=60, published_days=0)
    await rows.put("far", ["opposite"], vector=[[-1.0, 0.0]], age_days=0)
    told = await found(rows, [2.0, 0.0])
    assert told.is_complete
    assert told.is_exact
    scores = {one.source_id: (one.similarity, one.decay, one.age_days, one.final) for one in told.results}
    assert scores == {
        "old": (1.0, 0.5, 30.0, pytest.approx(0.8 + 0.1)),
        "new": (0.0, 1.0, 0.0, pytest.approx(0.2)),
        "far": (-1.0, 1.0, 0.0, pytest.approx(-0.8 + 0.2)),
    }
    assert [one.source_id for one in told.results] == ["old", "new", "far"]
    best = told.results[0]
    assert (best.ns, best.slot, best.content, best.text_score, best.is_stale) == ("docs", "s", "near", None, False)
    assert best.position == "chunks.chunk-submitted/0/0" or best.position.endswith("0")


@pytest.mark.requirement("R3.18")
async def test_the_ttl_is_strict_and_exact(rows: Rows):
    """A chunk exactly as old as the limit is found, one that is a millisecond older is not; nor is it in hybrid mode (R3.18)."""
    await rows.namespace(dimensions=1, ttl_days=10.0)
    await rows.put("exact", ["a"], vector=[[1.0]], age_days=10)
    await rows.put("over", ["a"], vector=[[1.0]], created_at=to_datetime(NOW_MS - 10 * DAY_MS - 1))
    assert ids(await found(rows, [1.0])) == [("exact", 0)]
    assert ids(await found(rows, [1.0], words="a", mode=Mode.HYBRID)) == [("exact", 0)]
    assert ids(await found(rows, [1.0], as_of_ms=NOW_MS + 1)) == []


@pytest.mark.requirement("R3.18")
async def test_zero_weight_keeps_old_ones_at_nothing(rows: Rows):
    """In mode zero_weight an old chunk is found with a score of 0 as a whole, so above one that scores less (R3.18)."""
    await rows.namespace(dimensions=1, ttl_days=10.0, ttl_mode="zero_weight")
    await rows.put("over", ["a"], vector=[[1.0]], age_days=11)
    await rows.put("under", ["b"], vector=[[-1.0]], age_days=9)
    told = await found(rows, [1.0])
    assert [(one.source_id, one.final == 0.0) for one in told.results] == [("over", True), ("under", False)]
    assert told.results[0].temperature == "cold"


@pytest.mark.requirement("R3.20")
async def test_what_is_to_be_deleted_is_hidden_at_once(rows: Rows):
    """A marked chunk is in no search (R3.20)."""
    await rows.namespace(dimensions=1)
    await rows.put("a", ["here"], vector=[[1.0]])
    await rows.put("b", ["gone"], vector=[[1.0]], to_delete=True, marked_at=to_datetime(NOW_MS))
    assert ids(await found(rows, [1.0])) == [("a", 0)]


async def test_filters(rows: Rows):
    """By slot and by sources; no other namespace is ever searched."""
    await rows.namespace(dimensions=1)
    await rows.namespace("other", dimensions=1)
    for slot in ("x", "y"):
        for source in ("a", "b", "c"):
            await rows.put(source, [slot], slot=slot, vector=[[1.0]])
    await rows.put("a", ["z"], ns="other", vector=[[1.0]])
    told = await found(rows, [1.0], slot="x", source_ids=["a", "c", "nobody"])
    assert [(one.slot, one.source_id) for one in told.results] == [("x", "a"), ("x", "c")]
    assert (await found(rows, [1.0], source_ids=[])).results == ()


@pytest.mark.parametrize("compared_max", [chunk_search.COMPARED_MAX, 1])
async def test_some_of_each_source(rows: Rows, monkeypatch: pytest.MonkeyPatch, compared_max: int):
    """At most the requested number of results of one source, its best; sources of two slots are two."""
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
    await rows.namespace(dimensions=2)
    await rows.put("a", ["x", "y", "z"], vector=[[0.9, 0.4], [1.0, 0.0], [0.95, 0.3]])
    await rows.put("b", ["x"], vector=[[0.0, 1.0]])
    await rows.put("a", ["x"], slot="t", vector=[[0.0, 1.0]])
    assert [(one.slot, one.source_id, one.chunk_no) for one in (await found(rows, [1.0, 0.0], per_source=1)).results] == [
        ("s", "a", 1), ("s", "b", 0), ("t", "a", 0),
    ]  # fmt: skip
    assert ids(await found(rows, [1.0, 0.0], per_source=2, limit=3)) == [("a", 1), ("a", 2), ("b", 0)]
    assert len(ids(await found(rows, [1.0, 0.0], per_source=3))) == 5


async def test_results_with_what_stands_beside_them(rows: Rows):
    """The requested number of existing chunks on either side, of the same source, in order; none that is to be deleted."""
    await rows.namespace()
    await rows.put("a", ["zero", "one", "outbox", "three"], title="T")
    await rows.put("a", ["five"], first=5)
    await rows.put("a", ["four"], first=4, to_delete=True, marked_at=to_datetime(NOW_MS))
    await rows.put("b", ["other"], first=3)
    best = (await found(rows, words="outbox", neighbours=2)).results[0]
    assert best.before == ((0, "T", "zero"), (1, "T", "one"))
    assert best.after == ((3, "T", "three"), (5, None, "five"))
    assert (await found(rows, words="outbox")).results[0].before == ()


async def test_a_window_of_publication(rows: Rows):
    """From a moment to a moment, both included; chunks too old by the passport stay hidden, and are counted as before."""
    await rows.namespace(dimensions=1, ttl_days=10.0)
    for days in (1, 2, 3, 11):
        await rows.put(f"d{days}", ["x"], vector=[[1.0]], published_days=days)

    async def days(oldest: float | None, newest: float | None) -> tuple[list[str], int]:
        asked = {
            name: None if at is None else NOW_MS - round(at * DAY_MS)
            for name, at in (("oldest_ms", oldest), ("newest_ms", newest))
        }
        told = await found(rows, [1.0], **asked)
        return [one.source_id for one in told.results], told.cold_hidden

    assert await days(3, 2) == (["d2", "d3"], 1)
    assert await days(1.5, None) == (["d1"], 1)
    assert await days(12, None) == (["d1", "d2", "d3"], 1)
    await rows.pool.execute("UPDATE chunk_namespaces SET ttl_mode = 'zero_weight'")
    assert await days(12, 2.5) == (["d3", "d11"], 0)


async def test_vectors_without_a_direction(rows: Rows):
    """A vector of zeros, stored or requested, is similar to nothing, and does not give NaN at the top."""
    await rows.namespace(dimensions=2)
    await rows.put("zero", ["", "x"], vector=[[0.0, 0.0], [1.0, 0.0]])
    told = await found(rows, [1.0, 0.0])
    assert [(one.chunk_no, one.similarity) for one in told.results] == [(1, 1.0), (0, 0.0)]
    with pytest.raises(NothingToCompareError):
        await found(rows, [0.0, 0.0])


async def test_a_vector_of_another_length_is_refused(rows: Rows):
    """Nothing is compared with it, and the error says both lengths; a namespace without vectors has nothing to compare."""
    await rows.namespace(dimensions=2)
    with pytest.raises(WrongVectorError, match=r"3 numbers.* 2"):
        await found(rows, [1.0, 0.0, 0.0])
    await rows.namespace("empty")
    empty = Rows(rows.pool, "empty")
    await empty.put("a", ["x"])
    with pytest.raises(NothingToCompareError):
        await found(empty, [1.0, 0.0, 0.0])
    assert ids(await found(empty)) == [("a", 0)]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("compared_max", [chunk_search.COMPARED_MAX, 1])
async def test_words_decide_where_no_vector_can_be_compared(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, mode: Mode, compared_max: int
):
    """In either mode, and by the index too: not the age alone, which would be the same order for every question."""
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
    await rows.namespace(dimensions=2, embedding_model="another@2")
    await rows.put("young", ["Apples and pears"], vector=[[1.0, 0.0]])
    await rows.put("old", ["The outbox publishes rows"], vector=[[0.0, 1.0]], age_days=90)
    told = await found(rows, words="outbox rows", mode=mode)
    assert [one.source_id for one in told.results] == ["old", "young"]
    best = told.results[0]
    assert best.text_score is not None
    assert best.final == pytest.approx(0.8 * best.text_score + 0.2 * best.decay)
    assert [one.source_id for one in (await found(rows, words="pears", mode=mode)).results] == ["young", "old"]
    for words in ("the of and", "?!"):
        with pytest.raises(NothingToCompareError):
            await found(rows, words=words, mode=mode)


async def test_what_is_hidden_for_its_age_is_counted(rows: Rows):
    """Within the search's slot and source; nothing where old chunks are found, or are to be deleted anyway."""
    await rows.namespace(dimensions=1, ttl_days=10.0)
    await rows.put("new", ["a"], vector=[[1.0]], age_days=10)
    await rows.put("old", ["b", "c"], vector=[[1.0], [1.0]], age_days=11)
    await rows.put("gone", ["d"], vector=[[1.0]], age_days=11, to_delete=True, marked_at=to_datetime(NOW_MS))
    assert [(await found(rows, [1.0])).cold_hidden, ids(await found(rows, [1.0]))] == [2, [("new", 0)]]
    assert (await found(rows, [1.0], source_ids=["new"])).cold_hidden == 0
    assert (await found(rows, [1.0], slot="x")).cold_hidden == 0
    await rows.pool.execute("UPDATE chunk_namespaces SET ttl_mode = 'zero_weight'")
    assert (await found(rows, [1.0])).cold_hidden == 0


async def test_hybrid_weighs_words(rows: Rows):
    """A chunk with the words comes before one that is a little nearer, and has the weight of its words."""
    await rows.namespace(dimensions=2)
    await rows.put("a", ["The outbox publishes rows"], vector=[[0.9, 0.436]])
    await rows.put("b", ["Something else"], vector=[[1.0, 0.0]])
    told = await found(rows, [1.0, 0.0], words="outbox rows & ' \\ publishing", mode=Mode.HYBRID)
    assert ids(told) == [("a", 0), ("b", 0)]
    by_vectors = await found(rows, [1.0, 0.0], words="outbox rows publishing", mode=Mode.SEMANTIC)
    assert ids(by_vectors) == [("b", 0), ("a", 0)]
    best = told.results[0]
    assert best.text_score is not None
    mean = (len("The outbox publishes rows") + len("Something else")) / 2
    weights = word_weights([1, 1, 1], 2)
    octets = len("The outbox publishes rows")
    assert best.text_score == pytest.approx(text_score(weights, [1, 1, 1], octets, mean, FUSED_SATURATION))
    assert best.cosine == pytest.approx(0.9, abs=1e-3)
    assert best.similarity == pytest.approx((1 - TEXT_SHARE) * best.cosine + TEXT_SHARE * best.text_score)
    assert best.final == pytest.approx(0.8 * best.similarity + 0.2)


@pytest.mark.parametrize("compared_max", [chunk_search.COMPARED_MAX, 1])
async def test_words_alone_count_without_a_vector(rows: Rows, monkeypatch: pytest.MonkeyPatch, compared_max: int):
    """A chunk that waits for its vector is found by its words, as in a search of words; the answer counts such chunks."""
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
    await rows.namespace(dimensions=2)
    await rows.put("with", ["Something else", "And more"], vector=[[0.5, 0.866], [0.0, 1.0]])
    await rows.put("waits", ["The outbox publishes rows", "Nothing of it"])
    await rows.put("gone", ["The outbox"], to_delete=True, marked_at=to_datetime(NOW_MS))
    told = await found(rows, [1.0, 0.0], words="outbox rows")
    assert (ids(told)[0], told.is_complete, told.without_vector) == (("waits", 0), True, 2)
    best = told.results[0]
    assert (best.cosine, best.similarity) == (None, best.text_score)
    assert best.final == pytest.approx(0.8 * best.similarity + 0.2)
    by_vectors = await found(rows, [1.0, 0.0], words="outbox rows", mode=Mode.SEMANTIC)
    assert (ids(by_vectors)[0], by_vectors.without_vector) == (("with", 0), 2)
    assert {one.similarity for one in by_vectors.results if one.source_id == "waits"} == {0.0}
    assert (await found(rows, [1.0, 0.0], words="outbox rows", source_ids=["with"])).without_vector == 0


@pytest.mark.parametrize("compared_max", [chunk_search.COMPARED_MAX, 1])
async def test_words_weigh_by_bm25(rows: Rows, monkeypatch: pytest.MonkeyPatch, compared_max: int):
    """Rare words weigh more, a word that is there more often too, and a long text less; of one namespace alone.

    By how many chunks have a word, how often each has it, and how long they are, as the model says. A name of several
    words is one more, which a text has once.
    """
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
    texts = ["lag", "lag lag lag", "lag " * 70, "the lag of os.path2_offset", "offset lag, Offset-lag", "nothing"]
    await rows.namespace()
    await rows.namespace("other")
    await rows.put("a", texts, title="of words")
    await rows.put("b", ["lag", "offset"], to_delete=True, marked_at=to_datetime(NOW_MS))
    await rows.put("c", ["offset"] * 9, ns="other")
    told = await found(rows, words="What is the lag of path2.offset?")
    octets = [len(text.strip()) + len("of words") for text in map(str.strip, texts)]
    octets[2] += 1  # the last space
    # lag, offset, path2, and path2.offset as a whole
    times = {0: (1, 0, 0, 0), 1: (3, 0, 0, 0), 2: (64, 0, 0, 0), 3: (1, 1, 1, 1), 4: (2, 2, 0, 0), 5: (0, 0, 0, 0)}
    weights = word_weights([5, 2, 1, 1], 6)
    expected = {number: text_score(weights, one, octets[number], sum(octets) / 6) for number, one in times.items()}
    scores = {one.chunk_no: one.text_score for one in told.results}
    assert scores == pytest.approx(expected)
    assert [one.chunk_no for one in told.results] == sorted(scores, key=lambda number: -expected[number])
    assert told.is_complete


# A question, a text with what it names, and one with the same parts.
NAMED = (
    (
        "what changed in man-db 2.11.0",
        "Changes of man-db 2.11.0 in October",
        "Changes of man-db 2.11 in October, 0 bugs",
    ),
    ("changes of v3.4", "Release 3.4 is out", "Release 4.3 is out"),
    ("which host is 192.168.0.10", "The host is at 192.168.0.10", "The host is at 192.168.10.0"),
    ("released on 2024-05-01", "It was released on 2024-05-01", "It was released on 2024-01-05"),
    ("see section 7.2.1", "The rules of section 7.2.1", "The rules of section 7.1.2"),
    ("what is in /etc/ssl/certs", "Certificates are in /etc/ssl/certs", "The certs of ssl are in /var, not in /etc"),
    ("KIP-500", "A quorum is the subject of KIP-500", "A quorum is the subject of KIP 101, 500 votes"),
)


@pytest.mark.parametrize("compared_max", [chunk_search.COMPARED_MAX, 1])
async def test_what_is_named_as_a_whole_comes_first(rows: Rows, monkeypatch: pytest.MonkeyPatch, compared_max: int):
    """A version, an address, a date, a section or a numbered name: a text that has it is before one with its parts, also beside
    vectors that are nearer; a name that no text has, or that is one word, changes no score.
    """
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
    await rows.namespace(dimensions=2)
    for kind, place, near in (("a-parts", 2, [1.0, 0.0]), ("b-whole", 1, [0.9, 0.436])):
        texts = [f"{one[place]} {'and more' * (place == 1)}" for one in NAMED]
        await rows.put(kind, texts, vector=[near] * len(NAMED))
    for vector in (None, [1.0, 0.0]):
        for number, (question, *_) in enumerate(NAMED):
            told = await found(rows, vector, words=question, mode=Mode.HYBRID)
            assert ids(told)[0] == ("b-whole", number), question
    for words in ("changes 9.8", "release 3-the"):
        told, apart = await found(rows, words=words), await found(rows, words=words.replace(".", " ").replace("-", " "))
        assert [one.text_score for one in told.results] == [one.text_score for one in apart.results]


@pytest.mark.parametrize("compared_max", [chunk_search.COMPARED_MAX, 2])
async def test_what_a_question_requires_and_excludes(rows: Rows, monkeypatch: pytest.MonkeyPatch, compared_max: int):
    """Each result has each phrase, whose words stand beside each other, and nothing that is excluded, in every mode."""
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
    await rows.namespace(dimensions=2)
    texts = [
        "No such host was found",
        "The host has no such name",
        "such a host",
        "A lock in Redis",
        "Locks of files",
        "Else",
    ]
    await rows.put("a", texts, vector=[[1.0, 0.0]] * len(texts))
    await rows.put("b", ["Сертификаты сервера установлены", "Сервер без сертификата"])

    async def numbers(question: str, **asked: Any) -> set[tuple[str, int]]:
        told = await found(rows, asked.pop("vector", [1.0, 0.0]), words=asked_text(question), **asked)
        assert told.is_complete
        return set(ids(told))

    for mode in Mode:
        assert await numbers('the error "no such host"', mode=mode) == {("a", 0)}
        assert await numbers('"such host" "no such"', mode=mode) == {("a", 0)}
        assert await numbers("a lock NOT redis", mode=mode) & {("a", 3), ("a", 4)} == {("a", 4)}
        assert await numbers('host NOT "no such"', mode=mode, source_ids=["a"]) == {
            ("a", number) for number in (2, 3, 4, 5)
        }
        assert await numbers('"lock" NOT files', mode=mode) == {("a", 3)}
        assert await numbers('"said nowhere"', mode=mode) == set()
    assert await numbers('"сертификаты серверА"') == {("b", 0)}
    assert await numbers("сервер NOT сертификаты", source_ids=["b"]) == set()
    assert await numbers("NOT host", vector=None, source_ids=["a"]) == {("a", 3), ("a", 4), ("a", 5)}
    assert await numbers('"of the"') == set()  # words of grammar too
    gone = "UPDATE chunks SET content = 'gone', content_hash = 'x', updated_at = $1 WHERE source_id = 'a'"
    await rows.pool.execute(gone, to_datetime(NOW_MS + 1))
    assert await numbers('"no such host"') == set()
    assert await numbers('"no such host"', texts_of_ms=NOW_MS) == {("a", 0)}


async def test_the_share_of_words_is_the_namespaces(rows: Rows):
    """By its passport words may decide alone, or vectors."""
    for ns, share in (("docs", 0.0), ("words", 1.0)):
        await rows.namespace(ns, dimensions=2, text_share=share)
        await rows.put("a", ["outbox"], ns=ns, vector=[[0.0, 1.0]])
        await rows.put("b", ["else"], ns=ns, vector=[[1.0, 0.0]])
    assert ids(await found(rows, [1.0, 0.0], words="outbox", mode=Mode.HYBRID)) == [("b", 0), ("a", 0)]
    words = Rows(rows.pool, "words")
    assert ids(await found(words, [1.0, 0.0], words="outbox", mode=Mode.HYBRID)) == [("a", 0), ("b", 0)]


async def test_order_of_equals(rows: Rows):
    """Chunks of one score come in the order of their keys, so that an answer is the same each time."""
    await rows.namespace(dimensions=1)
    for source in ("b", "B", "a"):
        await rows.put(source, ["x", "y"], vector=[[1.0], [1.0]])
    assert ids(await found(rows, [1.0], limit=4)) == [("B", 0), ("B", 1), ("a", 0), ("a", 1)]


# -- a namespace with an index ---------------------------------------------------------------------------------------

COUNT, LENGTH = 3_000, 16


async def _large(rows: Rows, monkeypatch: pytest.MonkeyPatch, ages: Any) -> Any:
    """A namespace whose chunks are too many to be compared, with its index; returns their vectors."""
    monkeypatch.setattr(chunk_search, "COMPARED_MAX", 500)
    monkeypatch.setattr("highwater.connectors.chunks.indexes.COMPARED_MAX", 500)
    rng = np.random.default_rng(1)
    made = rng.standard_normal((COUNT, LENGTH)).astype(np.float32)
    await rows.namespace(dimensions=LENGTH)
    await rows.put(
        "s",
        ["even" if number % 2 == 0 else "odd" for number in range(COUNT)],
        vector=made,
        each={
            "source_id": [f"s{number % 7}" for number in range(COUNT)],
            "published_at": [to_datetime(NOW_MS - round(float(age) * DAY_MS)) for age in ages],
        },
    )
    await rows.pool.execute("ANALYZE chunks")
    await ChunkIndexes(_url(rows), ProductClock())._look()
    return made


def _url(rows: Rows) -> str:
    return str(rows.pool._connect_args[0])


def _finals(made: Any, ages: Any, asked: Any) -> Any:
    whole = made.astype(np.float64)
    cosines = whole @ asked / np.linalg.norm(whole, axis=1) / np.linalg.norm(asked)
    return 0.8 * cosines + 0.2 * 0.5 ** (ages / 30)


async def test_a_large_namespace_is_searched_by_its_index(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """The index is built once; a search of it finds what the formula over all says, and says whether that is known."""
    ages = np.full(COUNT, 5.0)
    made = await _large(rows, monkeypatch, ages)
    names = [
        row["indexname"]
        for row in await rows.pool.fetch("SELECT indexname FROM pg_indexes WHERE indexdef LIKE '%hnsw%'")
    ]
    assert len(names) == 1
    await ChunkIndexes(_url(rows), ProductClock())._look()  # finds nothing to do
    hits = 0
    for number in range(20):
        asked = np.random.default_rng(100 + number).standard_normal(LENGTH)
        told = await found(rows, asked)
        assert (told.is_complete, told.is_exact) == (True, False)
        best = np.argsort(-_finals(made, ages, asked))[:10]
        hits += len({one.chunk_no for one in told.results} & set(best.tolist()))
        for one in told.results:
            assert one.final == pytest.approx(_finals(made, ages, asked)[one.chunk_no], abs=1e-6)
    assert hits >= 195


async def test_the_index_serves_the_search(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """The plans read the index of the namespace for near chunks, and that of ages for new ones and to count cold ones.

    A scan of all 100,000 chunks for cold ones took several times as long as the search.
    """
    await _large(rows, monkeypatch, np.linspace(0, 300, COUNT))
    plans: list[str] = []

    async def explained(tx: Any, statement: str, looking: Any) -> SearchResults:
        asked, words, (depth, *_), limit = looking.asked, looking.words, looking.depths, looking.limit
        by_words = () if words is None else (500, words.all_words, words.rare_words)
        told = await tx.fetch(f"EXPLAIN {statement}", *asked, limit, depth.nearest, depth.recent, *by_words)
        plans.append("\n".join(row[0] for row in told))
        most = (chunk_search.COMPARED_MAX + 1, asked.oldest, chunk_search.COUNT_MAX)
        counts = await tx.fetch(
            f"EXPLAIN {QUERIES['count_chunks']}", asked.ns, asked.slot, asked.source_ids, *most, None, None
        )
        plans.append("\n".join(row[0] for row in counts))
        return SearchResults((), is_complete=False, is_exact=False)

    monkeypatch.setattr(chunk_search, "_by_index", explained)
    await found(rows, np.ones(LENGTH))
    await found(rows, np.ones(LENGTH), words="odd", mode=Mode.HYBRID)
    for plan in plans[::2]:
        assert "chunks_vectors_" in plan
        assert "chunks_by_age" in plan
    assert ["words" in plan for plan in plans[::2]] == [False, True]
    for plan in plans[1::2]:
        assert "chunks_by_age" in plan
        assert "Seq Scan on chunks" not in plan


@pytest.mark.parametrize("spread_days", [0.5, 300])
async def test_what_is_said_to_be_complete_is(rows: Rows, monkeypatch: pytest.MonkeyPatch, spread_days: float):
    """For several ages: wherever a search claims to be complete, the last result is as good as the tenth of all.

    A chunk that is both near and recent is found once.
    """
    ages = np.random.default_rng(2).uniform(0, spread_days, COUNT)
    made = await _large(rows, monkeypatch, ages)
    monkeypatch.setattr(chunk_search, "DEPTHS", dict.fromkeys(Mode, (Depth(50, 50, 50), Depth(400, 400, 400))))
    complete = 0
    for number in range(20):
        asked = np.random.default_rng(200 + number).standard_normal(LENGTH)
        told = await found(rows, asked)
        tenth = np.sort(_finals(made, ages, asked))[-10]
        if told.is_complete:
            complete += 1
            assert told.results[-1].final >= tenth - 1e-6
        assert told.results[-1].final >= tenth - 0.1  # near it, in any case
    assert complete >= 5
    best = {one.chunk_no for one in told.results}
    now = "UPDATE chunks SET published_at = $2 WHERE chunk_no = ANY ($1)"
    await rows.pool.execute(now, list(best), to_datetime(NOW_MS))
    again = await found(rows, asked)
    assert (len(again.results), {one.chunk_no for one in again.results}, again.is_complete) == (10, best, True)


async def test_what_has_no_vector_is_not_forgotten(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """Where a search of words and vectors claims to be complete, none without a vector would be better than its last."""
    await _large(rows, monkeypatch, np.random.default_rng(3).uniform(0, 30, COUNT))
    texts = [
        f"{'odd ' * (number % 7)}{'tombstone' * (number % 2)} {'of marble ' * (number % 3)}" for number in range(60)
    ]
    await rows.put("waits", texts, age_days=20)
    monkeypatch.setattr(chunk_search, "WORDED_MAX", 40)
    complete = 0
    for words in ("tombstone", "odd tombstone", "marble", "odd", "an even tombstone of marble"):
        for number in range(4):
            asked = np.random.default_rng(300 + number).standard_normal(LENGTH)
            told = await found(rows, asked, words=words)
            assert told.without_vector == 60
            with monkeypatch.context() as patch:
                patch.setattr(chunk_search, "COMPARED_MAX", 10 * COUNT)
                best = await found(rows, asked, words=words)
            assert best.is_exact
            if told.is_complete:
                complete += 1
                assert told.results[-1].final >= best.results[-1].final - 1e-6
    assert complete >= 5


async def test_filters_of_a_large_namespace(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """A source with few chunks is compared completely, for any size of the namespace; words are found by their index."""
    ages = np.full(COUNT, 1.0)
    made = await _large(rows, monkeypatch, ages)
    asked = np.ones(LENGTH)
    told = await found(rows, asked, source_ids=["s3"])
    finals = _finals(made, ages, asked)
    best = sorted((n for n in range(COUNT) if n % 7 == 3), key=lambda n: -finals[n])[:10]
    assert told.is_exact
    assert [one.chunk_no for one in told.results] == best
    hybrid = await found(rows, None, words="odd", mode=Mode.HYBRID)
    assert {one.chunk_no % 2 for one in hybrid.results} == {1}


async def test_a_rare_word_of_a_large_namespace_is_found(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """At any frequency of the others; that no other scores higher is claimed only where it is certain."""
    await _large(rows, monkeypatch, np.full(COUNT, 1.0))
    await rows.put("rare", ["even tombstone"], age_days=1)
    told = await found(rows, None, words="an even tombstone", mode=Mode.HYBRID)
    assert told.results[0].source_id == "rare"
    common = await found(rows, None, words="even", mode=Mode.HYBRID)
    assert not common.is_complete
    assert {one.chunk_no % 2 for one in common.results} == {0}


async def test_a_second_look_settles_what_words_leave_open(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """A word that occurs in more chunks than the first pass reads: all of them are read, up to a limit."""
    await _large(rows, monkeypatch, np.full(COUNT, 1.0))
    await rows.put("stones", ["gravestone of marble"] * 19 + ["gravestone gravestone gravestone"], age_days=1)
    monkeypatch.setattr(chunk_search, "WORDED_MAX", 5)
    asked: Any = {"words": "gravestone", "mode": Mode.HYBRID, "limit": 5}
    told = await found(rows, None, **asked)
    assert (told.is_complete, told.is_exact) == (True, False)
    assert (told.results[0].source_id, told.results[0].chunk_no) == ("stones", 19)
    monkeypatch.setattr(chunk_search, "WORDED_MORE_MAX", 10)
    assert not (await found(rows, None, **asked)).is_complete

"""The words of a question, their weights in a namespace (BM25), and which of them select candidates.

A name with punctuation and a number inside (2.11.0, 2024-05-01, KIP-500) is stored as its parts. In a question it counts
as one word more, which a chunk has if it has the parts beside each other: else 2.11.2 would be as good as 2.11.0, and
every date of May as good as the first. So does a path (/etc/ssl/certs). Names of plain words (os.path, low-level) do not: their
parts say what they are about (docs/benchmarks/search.md).

In a namespace with texts in several languages a word has a stem in each, and a chunk has the word by any of them.

Invariant: the weights are those of exactly the chunks that the transaction sees: `chunk_words` is summed in its
snapshot, and chunks with a whole name are counted in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from highwater.connectors.postgres.pool import Connection, Row
from highwater.connectors.retrieval.statements import QUERIES
from highwater.streams.chunks.asked_text import AskedText, is_word
from highwater.streams.chunks.scoring import LENGTH_SHARE, saturation_of, word_weights
from highwater.streams.languages import languages_asked, text_language

# Each word of a question is weighed in each candidate; further ones are its most common and matter least.
WORDS_MAX = 32
# Names of a question that count as a whole; a question has one or two. Longer ones are addresses of pages, or data.
_NAMES_MAX, _NAME_PARTS_MAX, _NAME_CHARACTERS_MAX = 8, 8, 64
_NAME = re.compile(r"(?<![^\W_])[^\W_]+(?:[._/:@#+-]{1,2}[^\W_]+)+")
_PART = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d")
# A path from the root or from a folder of a user: two files of one name differ in it alone.
_PATH = re.compile(r"(?<![^\s\"'(`])~?/[^\W_][\w.-]*(?:/[\w.-]*[^\W_])+")
# Chunks that have all parts of a name are read up to this number to count those that have the whole: some 2 us each. If
# there are more, the rarest part is an upper bound.
_NAMED_READ_MAX = 2_000
# `ts_rank` of a chunk that has a word n times is (1 + 1/4 + ... + 1/n^2) / (pi^2 / 6), as PostgreSQL rounds it. A
# boundary between two of these numbers identifies n; more than 64 times weigh hardly more than 64 times.
_TIMES_MAX, _RANK_OF_ALL = 64, 1.64493406685


def _ranks() -> list[float]:
    found, total = [], 0.0
    for times in range(1, _TIMES_MAX + 1):
        step = 1 / times**2 / _RANK_OF_ALL
        total += step
        found.append(total - step / 2)
    return found


RANKS = _ranks()


class _Word(NamedTuple):
    """How many stems a word has, and how many chunks have one of them, at most."""

    stems: int
    chunks: int


class AskedWords(NamedTuple):
    """The words of a question in the form of the statements.

    Attributes:
        any_word: a tsquery of chunks that have any of them.
        all_words: of those that have all.
        queries: a tsquery for each word, and for each name as a whole, the rarest first.
        stems: how many stems each word has in the languages of the namespace; 0 for a name as a whole.
        counts: how many chunks have each.
        weights: of each, together 1.
        saturation: the part of the saturation that is the same for all chunks.
        saturation_per_octet: the part that grows with the length of a chunk.
        rare: how many of the words are rare: few enough chunks have one of them.
        has_names: whether one is a name as a whole, which some chunk has.
    """

    any_word: str
    all_words: str
    queries: list[str]
    stems: list[int]
    counts: list[int]
    weights: list[float]
    saturation: float
    saturation_per_octet: float
    rare: int
    has_names: bool = False

    @property
    def rare_words(self) -> str:
        """Return a tsquery of chunks that have one of the rare words; of the rarest if none is rare."""
        return " | ".join(self.queries[: max(1, self.rare)])

    @property
    def rest(self) -> float:
        """Return the maximum score of a chunk without any of the rare words."""
        return sum(self.weights[self.rare :]) if self.rare else 1.0

    def settling(self, is_settled: Callable[[float], bool], more_max: int) -> AskedWords | None:
        """Return the same with the fewest more words that decide a search; None if too many chunks have one of these.

        Args:
            is_settled: whether a search is decided if no other chunk scores more than this by its words.
            more_max: the maximum of further candidates.
        """
        for rare in range(self.rare + 1, len(self.counts) + 1):
            more = self._replace(rare=rare)
            if more.candidates - self.candidates > more_max:
                return None
            if is_settled(more.rest):
                return more
        return None

    @property
    def candidates(self) -> int:
        """Return how many chunks have one of the rare words, at most."""
        return sum(self.counts[: self.rare])


async def words_of(
    tx: Connection, ns: str, question: str, candidates_max: int, *, text_share: float
) -> AskedWords | None:
    """Return the words of a question, weighed; None if it has no searchable ones.

    Args:
        tx: the snapshot of the search.
        ns: the namespace.
        question: unchanged.
        candidates_max: how many chunks may have one of the rare words.
        text_share: the share of words in a similarity.
    """
    language = text_language(question)
    rows = await tx.fetch(QUERIES["words_asked"], ns, question, languages_asked(language), language)
    words = _words_in(rows)
    if not words:
        return None
    whole = next(row for row in rows if not row["word"])
    names, found_names = names_in(question), {}
    if names:
        counts = {row["word"]: row["chunks"] for row in rows}
        named = await tx.fetch(QUERIES["names_asked"], ns, names, _NAMED_READ_MAX, whole["configurations"])
        found_names = _counts_of_names(named, counts)
    return _weighed(words, found_names, whole["chunks"], whole["octets"], candidates_max, text_share)


def _words_in(rows: Sequence[Row]) -> dict[str, _Word]:
    """Return the words of a question by their queries. The stems of a word are those of one place that some chunk has."""
    at: dict[int, list[Row]] = {}
    for row in rows:
        for place in row["places"]:
            at.setdefault(place, []).append(row)
    found = {}
    for stems in at.values():
        kept = [stem for stem in stems if stem["chunks"]] or stems[:1]
        queries = sorted(_quoted(stem["word"]) for stem in kept)
        query = queries[0] if len(queries) == 1 else f"( {' | '.join(queries)} )"
        found[query] = _Word(len(queries), sum(stem["chunks"] for stem in kept))
    return found


async def words_required(tx: Connection, ns: str, asked: AskedText) -> str | None:
    """Return a tsquery of the chunks that have the words of what a question requires beside each other, and no word that it
    excludes; None if there are no such words.
    """
    words = [one for one in asked.excluded if is_word(one)]
    given = (list(asked.required), words, languages_asked(text_language(asked.text)))
    query: str | None = await tx.fetchval(QUERIES["words_required"], ns, *given)
    return query


def names_in(question: str) -> list[str]:
    """Return the words of a question that have several parts, and a number in one, in order, each once; and paths."""
    paths = [path.lstrip("~/") for path in _PATH.findall(question)]
    names = [name for name in _NAME.findall(question) if _NUMBER.search(name) or name in paths]
    return [name for name in dict.fromkeys(names) if _is_name(name)][:_NAMES_MAX]


def _is_name(name: str) -> bool:
    return len(name) <= _NAME_CHARACTERS_MAX and len(_PART.findall(name)) <= _NAME_PARTS_MAX


def _counts_of_names(rows: Sequence[Row], counts: Mapping[str, int]) -> dict[str, int]:
    """Return how many chunks have each name; at most, if not all with its parts were read. A name that no chunk has is
    left out.
    """
    found = {}
    for row in rows:
        count = row["found"]
        if row["read"] == _NAMED_READ_MAX:
            # The first part may have a v before it, there or here, and then is another word.
            first = _PART.findall(row["name"])[0].lower()
            others = [part for part in row["parts"] if part != first] or row["parts"]
            others = [
                part for part in others if _NUMBER.search(part)
            ] or others  # no language has another stem of a number
            count = min(counts.get(part, 0) for part in others)
        if count:
            found[row["query"]] = count
    return found


def _weighed(
    words: Mapping[str, _Word],
    names: Mapping[str, int],
    chunks: int,
    octets: int,
    candidates_max: int,
    text_share: float,
) -> AskedWords:
    both = {**words, **{query: _Word(0, count) for query, count in names.items()}}
    queries = sorted(both, key=lambda query: (both[query].chunks, query))[:WORDS_MAX]
    chunks_of = [both[query].chunks for query in queries]
    saturation = saturation_of(text_share)
    return AskedWords(
        any_word=" | ".join(queries),
        all_words=" & ".join(query for query in queries if query in words),
        queries=queries,
        stems=[both[query].stems for query in queries],
        counts=chunks_of,
        weights=word_weights(chunks_of, chunks),
        saturation=saturation * (1 - LENGTH_SHARE),
        saturation_per_octet=saturation * LENGTH_SHARE * chunks / max(1, octets),
        rare=sum(found <= candidates_max for found in accumulate(chunks_of)),
        has_names=bool(names),
    )


def _quoted(word: str) -> str:
    """Return a word as a tsquery: PostgreSQL has normalized it, so it needs neither a dictionary nor a parser."""
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"

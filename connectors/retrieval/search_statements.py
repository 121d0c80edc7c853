"""The texts of the statements of a search, put together from the parts in `chunk_search.sql`.

Invariant: for one namespace, place of its vectors and kind of search there is one text, so that a connection makes its
plan once. Names stand in a text only as quoted literals.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from highwater.connectors.postgres.pool import Row
from highwater.connectors.retrieval.statements import QUERIES

# What stands in the text of a statement by an index, as it does in the index: else a plan for all parameters could not
# use it. The namespace, the length of its vectors and, for vectors beside, their model.
_NS, _LENGTH, _MODEL = "ns = $1", "halfvec(384)", "'model of the namespace'"
# The settings of a search. The index is followed beyond its first results until enough chunks pass the filters, nearest
# first. Sorting is never better than an index with the order: the planner takes a comparison of two vectors for as cheap
# as one of two numbers.
SETTINGS = {"hnsw.iterative_scan": "strict_order", "enable_sort": "off", "jit": "off"}
# Plans that are made once per connection serve a search without filters: planning took a third of it. With filters a
# plan is made for the parameters, since it depends on them.
ONE_PLAN, OWN_PLAN = "force_generic_plan", "force_custom_plan"
# Texts of statements that a process keeps: a few for each large namespace.
_TEXTS_MAX = 256


def plan_mode(*, is_filtered: bool, is_exact: bool = False) -> str:
    """Return who a statement's plan is made for, from what is known of the search when it runs."""
    return OWN_PLAN if is_filtered or is_exact else ONE_PLAN


class Where(NamedTuple):
    """Where the vectors of a namespace are in a snapshot: the statement's part that compares all, and that by an index."""

    all: str
    near: str
    near_unfiltered: str
    near_unfiltered_with_words: str


PLAIN = Where(
    QUERIES["visible_chunks"],
    QUERIES["visible_chunks"],
    QUERIES["visible_chunks_unfiltered"],
    QUERIES["visible_chunks_unfiltered_with_words"],
)
# While vectors of the namespace's model are stored beside its chunks.
_BESIDE = Where(*4 * (QUERIES["visible_chunks_beside"],))
_BESIDE_INDEXED = Where(QUERIES["visible_chunks_beside"], *3 * (QUERIES["visible_chunks_beside_indexed"],))


def where_of(now: Row) -> Where:
    """Return where the vectors of a namespace are in this snapshot."""
    if not now["vectors_beside"]:
        return PLAIN
    return _BESIDE_INDEXED if now["is_indexed_beside"] else _BESIDE


def _best(per_source: int | None, *, has_words: bool) -> str:
    scored = QUERIES["scored_with_words"] if has_words else QUERIES["scored_without_words"]
    return "\n".join((scored, (QUERIES["best_of_all"] if per_source is None else QUERIES["best_of_sources"])))


def statement_of_all(where: Where, per_source: int | None, *, has_words: bool) -> str:
    """Return the statement that compares all chunks."""
    best = _best(per_source, has_words=has_words)
    return "\n".join((where.all, QUERIES["all_candidates"], best, QUERIES["whole_chunks"]))


def statement_of_former(per_source: int | None, *, has_words: bool) -> str:
    """Return the statement that compares all former texts."""
    found, whole = QUERIES["visible_former_chunks"], QUERIES["whole_former_chunks"]
    return "\n".join((found, QUERIES["all_candidates"], _best(per_source, has_words=has_words), whole))


def near_statement(where: Where, namespace: Row, per_source: int | None, *, has_words: bool, is_filtered: bool) -> str:
    """Return the statement that searches by the index of a namespace; without vectors the index is not used."""
    candidates = QUERIES["candidates_with_words"] if has_words else QUERIES["candidates_without_words"]
    best, names = _best(per_source, has_words=has_words), (namespace["ns"], str(namespace["embedding_model"]))
    unfiltered = where.near_unfiltered_with_words if has_words else where.near_unfiltered
    visible = where.near if is_filtered else unfiltered
    return _near(visible, candidates, best, *names, namespace["dimensions"] or 1)


@lru_cache(_TEXTS_MAX)
def _near(visible: str, candidates: str, best: str, ns: str, model: str, dimensions: int) -> str:
    found = visible.replace(_NS, f"ns = {_literal(ns)}").replace(_MODEL, _literal(model))
    near = QUERIES["near_candidates"].replace(_LENGTH, f"halfvec({dimensions:d})")
    return "\n".join((found, near, candidates, best, QUERIES["whole_chunks"]))


def _literal(text: str) -> str:
    """Return a text as it stands in a statement; backslashes are letters (`standard_conforming_strings`)."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"

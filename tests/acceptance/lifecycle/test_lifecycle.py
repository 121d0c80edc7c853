"""Chunks that grow old while a test looks on. It moves the product's clock ahead, so it comes after those that compare clocks."""

from __future__ import annotations

import uuid

from tests.acceptance.chunks.test_chunks import (
    chunks_of,
    counted,
    ended,
    ingest,
    marked,
    ns,
    report,
    search,
    submit,
    texts,
)
from tests.product import Product

__all__ = ["ns"]  # a fixture
HOUR_SECONDS = 3_600


def test_orphans_are_archived_and_a_namespace_becomes_hot(product: Product) -> None:
    """At the first tick after the hour: chunks beyond their grace move to the archive, a much searched namespace is hot."""
    source = uuid.uuid4().hex
    contents = texts(5)
    ingest(product, "brief", chunks_of(contents), full=True, source=source)
    ingest(product, "brief", chunks_of(contents[:2]), full=True, source=source)
    for _ in range(10):
        search(product, "brief", "anything")
    codec = product.codec()

    def published() -> int:
        events = [
            codec.decode("chunks.queries-served", one.value()) for one in product.records("chunks.queries-served")
        ]
        return sum(one["queries"] for one in events if one["ns"] == "brief")

    product.until(lambda: published() >= 10, "searches are not told")
    statement = (
        "SELECT chunk_no, content, reason FROM chunks_archive WHERE ns = 'brief' AND source_id = $1 ORDER BY chunk_no"
    )
    product.move_clock(HOUR_SECONDS)
    found = product.until(lambda: product.sql(statement, source), "nothing was archived")
    assert [tuple(one) for one in found] == [(number, contents[number], "orphaned") for number in (2, 3, 4)]
    left = product.sql("SELECT chunk_no FROM chunks WHERE ns = 'brief' AND source_id = $1 ORDER BY chunk_no", source)
    assert [one["chunk_no"] for one in left] == [0, 1]
    state = product.until(
        lambda: (now := product.get("/api/chunks/lifecycle?ns=brief").json())["is_hot"] and now, "it is not hot"
    )
    assert (state["hot"], state["archived"] >= 3, state["queries_per_day"] > 1) == (state["chunks"], True, True)
    results = search(product, "brief", "part", source_id=source)["results"]
    assert {one["temperature"] for one in results} == {"hot"}
    back = ingest(product, "brief", chunks_of(contents), full=True, source=source)
    assert counted(back) == {"unchanged": 2, "inserted": 3}


def test_an_ingest_that_nobody_finishes(product: Product, ns: str) -> None:
    """After six hours without progress it is abandoned, and has marked nothing; later chunks are still accepted."""
    contents = texts(6)
    ingest(product, ns, chunks_of(contents), full=True)
    cut = submit(product, ns, chunks_of(contents[:2]), full=True, expected_count=4)
    assert report(product, cut)["status"] == "running"
    product.move_clock(6 * HOUR_SECONDS + 60)
    assert (ended(product, cut)["status"], marked(product, ns)) == ("abandoned", [])
    late = submit(product, ns, chunks_of(contents[2:4], first=2), ingest_id=cut["ingest_id"], finish=False)
    found = product.until(lambda: (now := report(product, late))["status"] == "complete" and now, "it has not ended")
    assert (counted(found), marked(product, ns)) == ({"unchanged": 4, "orphaned": 2}, [4, 5])

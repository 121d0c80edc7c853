"""A deck over HTTP, made by the whole product with a scripted chat service, whose workers are killed in the midst of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.models.scripted_llm import ScriptedLLM
from tests.product import Product

SLIDES = 15


@pytest.fixture
def asked(scripted: Product, llm: ScriptedLLM) -> Product:
    """The product, and a service that has forgotten earlier calls; 20 tokens written are 145 cents."""
    llm.clear()
    return scripted


def job_of(product: Product, job_id: str) -> dict[str, Any]:
    """The row of a job; empty before it is stored."""
    rows = product.sql("SELECT * FROM jobs WHERE job_id = $1", job_id)
    return dict(rows[0]) if rows else {}


def submitted(product: Product, query: str) -> str:
    """Submit a deck; return the id of its job."""
    args = {"query": query, "slides": SLIDES, "source_document_ids": []}
    body = {"kind": "generation", "organization_id": "acme", "user_id": "ada", "args": args}
    answered = product.http.post("/api/jobs", json=body)
    assert answered.status_code == 202, answered.text
    return str(answered.json()["job_id"])


def until_status(product: Product, job_id: str, status: str) -> dict[str, Any]:
    """The row of a job once it stands there."""

    def look() -> dict[str, Any] | None:
        row = job_of(product, job_id)
        return row if row.get("status") == status else None

    found: dict[str, Any] = product.until(look, f"{job_id} is not {status}", 90)
    return found


def test_workers_killed_after_slide_7_of_15(asked: Product, llm: ScriptedLLM):
    """`kill -9`: the next process generates slides 8 to 15; of the calls, only the interrupted one comes twice, under its key."""
    held = llm.hold("slide-8")
    job_id = submitted(asked, "What is KRaft?")
    assert held.reached.wait(90)
    assert (job_of(asked, job_id)["steps_done"], job_of(asked, job_id)["progress_pct"]) == (7, 46)
    asked.kill("workers")
    row = until_status(asked, job_id, "completed")
    held.release.set()
    keys = [f"{job_id}/{stage}/1" for stage in ("outline", *(f"slide-{number}" for number in range(1, SLIDES + 1)))]
    assert llm.by_key() == {key: 2 if "/slide-8/" in key else 1 for key in keys}
    # 16 calls of 145 cents; the one that was sent twice was answered once.
    assert (row["tokens"], row["cost_cents"], row["progress_pct"]) == (16 * 120, 16 * 145, 100)
    deck = asked.sql("SELECT jsonb_array_length(slides) FROM presentations WHERE presentation_id = $1", job_id)
    assert [tuple(one) for one in deck] == [(SLIDES,)]
    places = asked.sql("SELECT last_seq FROM usage_sequences WHERE organization_id = 'acme'")
    assert [tuple(one) for one in places] == [(1,)]


@pytest.mark.requirement("R2.25")
def test_the_same_question_asks_nobody(asked: Product, llm: ScriptedLLM):
    """The deck that was made is given again, and counted as a deck that cost nothing (R2.25)."""
    before = len(llm.calls)
    row = until_status(asked, submitted(asked, "What is KRaft?"), "completed")
    assert (len(llm.calls), row["tokens"], row["cost_cents"]) == (before, 0, 0)

"""Jobs from the outside: decks generated slide by slide over a scripted chat service, with killed workers, counted once,
exported.
"""

from __future__ import annotations

import io
import json
import os
import signal
import uuid
from collections import Counter
from typing import Any

import pytest
import redis
from pptx import Presentation

from tests.integration.models.scripted_llm import ScriptedLLM, answer
from tests.product import Product

SLIDES = 15
QUARTER_SECONDS = 15 * 60


@pytest.fixture
def asked(scripted: Product, llm: ScriptedLLM) -> Product:
    """The product, and a service that has forgotten earlier calls; every answer is two tokens long."""
    llm.clear()
    for stage in (None,):
        llm.always(stage, answer(usage={"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 2}))
    return scripted


def submit(product: Product, kind: str, args: dict[str, Any], *, org: str, **more: Any) -> str:
    """Submit a job; its id."""
    body = {"kind": kind, "organization_id": org, "user_id": "ada", "args": args, **more}
    taken = product.http.post("/api/jobs", json=body)
    assert taken.status_code == 202, taken.text
    return str(taken.json()["job_id"])


def deck(product: Product, *, org: str, slides: int = 1, query: str | None = None) -> str:
    """Have a deck made that no other test has asked for."""
    args = {"query": query or f"What is new in {uuid.uuid4().hex}?", "slides": slides, "source_document_ids": []}
    return submit(product, "generation", args, org=org)


def job(product: Product, job_id: str) -> dict[str, Any]:
    """How a job stands."""
    found: dict[str, Any] = product.get(f"/api/jobs/{job_id}").json()
    return found


def until(product: Product, job_id: str, status: str, seconds: float = 90) -> dict[str, Any]:
    """The job once it has that status."""

    def look() -> dict[str, Any] | None:
        found = job(product, job_id)
        return found if found.get("status") == status else None

    found: dict[str, Any] = product.until(look, f"{job_id} is not {status}: {job(product, job_id)}", seconds)
    return found


def organization() -> str:
    """One that no other test uses, with the plan enterprise, which has no monthly limit."""
    return f"org-{uuid.uuid4().hex[:10]}"


def on_plan(product: Product, org: str, plan: str, **more: Any) -> None:
    """Give an organization a plan, and wait until it counts."""
    answered = product.http.put(f"/api/organizations/{org}/plan", json={"plan": plan, **more})
    assert answered.status_code == 202, answered.text


def events(product: Product, job_id: str, after: str | None = None) -> list[dict[str, Any]]:
    """The events of an ended job, read to the end of their stream."""
    headers = {"Last-Event-ID": after} if after else {}
    found, event = [], {}
    with product.http.stream("GET", f"/api/jobs/{job_id}/events", headers=headers) as stream:
        assert stream.status_code in (200, 204)
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name in ("id", "event", "data"):
                event[name] = value
            elif not line and "data" in event:
                found.append({**json.loads(event["data"]), "id": event.get("id"), "event": event.get("event")})
                event = {}
    return found


@pytest.mark.requirement("R2.15")
def test_a_killed_worker_costs_one_call(asked: Product, llm: ScriptedLLM):
    """15 slides, `kill -9` after 7: the next worker generates 8 to 15, and only the interrupted call comes twice (R2.15)."""
    org = organization()
    on_plan(asked, org, "enterprise")
    held = llm.hold("slide-8")
    job_id = deck(asked, org=org, slides=SLIDES)
    assert held.reached.wait(60)
    asked.until(lambda: job(asked, job_id)["steps_done"] == 7, "seven slides are not stored")
    assert job(asked, job_id)["progress_pct"] == 46
    os.kill(asked.role_pid("workers"), signal.SIGKILL)
    asked.until(lambda: llm.by_key()[f"{job_id}/slide-8/1"] == 2, "nobody goes on")
    llm.release_all()
    until(asked, job_id, "completed")
    once = Counter({f"{job_id}/outline/1": 1} | {f"{job_id}/slide-{number}/1": 1 for number in range(1, SLIDES + 1)})
    assert llm.by_key() == once + Counter([f"{job_id}/slide-8/1"])
    made = asked.get(f"/api/presentations/{job_id}").json()
    assert [slide["number"] for slide in made["slides"]] == list(range(1, SLIDES + 1))
    told = events(asked, job_id)
    assert [one["progress_pct"] for one in told] == sorted(one["progress_pct"] for one in told)
    completed = [one["slide_number"] for one in told if one["event_type"] == "slide_completed"]
    assert (completed, told[-1]["event_type"]) == (list(range(1, SLIDES + 1)), "generation_done")


@pytest.mark.requirement("R2.21")
def test_a_reconnect_is_told_everything_after_it_once(asked: Product):
    """From any id: the later events, each once, in order (R2.21)."""
    org = organization()
    on_plan(asked, org, "enterprise")
    job_id = deck(asked, org=org, slides=12)
    until(asked, job_id, "completed")
    whole = asked.until(
        lambda: (all_ := events(asked, job_id)) and all_[-1]["event_type"] == "generation_done" and all_, "told"
    )
    ids = [one["id"] for one in whole]
    assert len(set(ids)) == len(ids)
    for place in range(len(ids) - 1):
        assert [one["id"] for one in events(asked, job_id, ids[place])] == ids[place + 1 :]


@pytest.mark.requirement("R2.36", "R2.37")
def test_a_job_is_counted_once_and_flushed_absolutely(asked: Product):
    """Submitted three times and the decision worker killed twice between flushes: 29 cents are 29, once (R2.36, R2.37)."""
    org = organization()
    on_plan(asked, org, "enterprise")
    job_id = str(uuid.uuid4())
    args = {"query": f"count {job_id}", "slides": 1, "source_document_ids": []}
    row = {"job_id": job_id, "kind": "generation", "organization_id": org, "user_id": "ada", "args": json.dumps(args)}
    for _ in range(3):
        asked.publish("jobs.job-submitted", [row | {"ts": "2026-01-01T00:00:00Z"}])
    found = until(asked, job_id, "completed")
    assert (found["cost_cents"], found["tokens"]) == (29, 4)
    asked.kill("worker")
    asked.publish("jobs.job-submitted", [row | {"ts": "2026-01-01T00:00:00Z"}])
    asked.kill("worker")
    asked.until_ready()
    asked.move_clock(QUARTER_SECONDS)
    statement = "SELECT presentations, slides, tokens, cost_cents FROM usage_records WHERE organization_id = $1"
    flushed = asked.until(lambda: asked.sql(statement, org), "usage was not flushed")
    assert [tuple(one) for one in flushed] == [(1, 1, 4, 29)]
    used = asked.get(f"/api/organizations/{org}/usage").json()
    redis.Redis.from_url(asked.environment["REDIS_URL"]).flushall()
    assert asked.get(f"/api/organizations/{org}/usage").json()["cost_cents"] == used["cost_cents"] == 29
    asked.move_clock(2 * QUARTER_SECONDS)
    other = deck(asked, org=org)
    until(asked, other, "completed")
    asked.move_clock(2 * QUARTER_SECONDS)
    asked.until(lambda: asked.sql(statement, org)[0]["cost_cents"] == 58, "the second one was not flushed")


def test_a_deck_is_exported(asked: Product):
    """As PPTX that opens again with every title, and as PDF; the bytes under their hash."""
    org = organization()
    on_plan(asked, org, "enterprise")
    deck_id = deck(asked, org=org, slides=3)
    until(asked, deck_id, "completed")
    for path in (f"/api/jobs/{deck_id}", f"/api/presentations/{deck_id}"):
        assert asked.own_token(path).startswith("jobs.")
    titles = [slide["title"] for slide in asked.get(f"/api/presentations/{deck_id}").json()["slides"]]
    for form, beginning in (("pptx", b"PK"), ("pdf", b"%PDF")):
        job_id = submit(asked, "export", {"presentation_id": deck_id, "format": form}, org=org)
        found = until(asked, job_id, "completed")
        content = asked.get(found["result_url"]).content
        assert content.startswith(beginning)
        if form == "pptx":
            written = [
                shape.text_frame.text
                for slide in Presentation(io.BytesIO(content)).slides
                for shape in slide.shapes
                if shape.has_text_frame
            ]
            assert set(titles) <= {text.strip() for text in written}


def test_a_document_is_cut_into_chunks(asked: Product):
    """Put as a blob, named by its hash, handed to the chunk topics; the document itself is in no event."""
    org = organization()
    on_plan(asked, org, "enterprise")
    text = "# Title\n\n" + "\n\n".join(f"Paragraph {number} about rockets." for number in range(50))
    put = asked.http.put(
        f"/api/blobs?organization_id={org}", content=text.encode(), headers={"content-type": "text/markdown"}
    )
    assert put.status_code in (200, 201), put.text
    args = {"document_ids": [put.json()["sha256"]], "ns": "docs", "slot": "main"}
    job_id = submit(asked, "ingestion", args, org=org)
    until(asked, job_id, "completed")
    codec = asked.codec()
    chunks = [codec.decode("chunks.chunk-submitted", one.value()) for one in asked.records("chunks.chunk-submitted")]
    assert "Paragraph 49 about rockets." in "".join(one["content"] for one in chunks)


def test_what_may_not_be_made(asked: Product, llm: ScriptedLLM):
    """Each with its own word, and without a call."""
    org, suspended = organization(), organization()
    on_plan(asked, org, "enterprise")
    on_plan(asked, suspended, "team", subscription_status="suspended")
    args = {"query": "anything", "slides": 1, "source_document_ids": []}
    body = {"organization_id": org, "user_id": "ada"}
    refused = [
        asked.http.post("/api/jobs", json={**body, "kind": "poem", "args": args}).status_code,
        asked.http.post("/api/jobs", json={**body, "kind": "generation", "args": {"query": 7}}).status_code,
        asked.http.post(
            "/api/jobs", json={**body, "kind": "generation", "args": args, "organization_id": suspended}
        ).status_code,
        asked.get("/api/jobs/nonsense").status_code,
        asked.get(f"/api/jobs/{uuid.uuid4()}").status_code,
    ]
    assert refused == [422, 422, 403, 422, 404]
    expired = submit(asked, "generation", args, org=org, expires_at="2020-01-01T00:00:00Z")
    until(asked, expired, "expired")
    held = llm.hold("outline")
    revoked = deck(asked, org=org)
    assert held.reached.wait(30)
    assert asked.http.delete(f"/api/jobs/{revoked}").status_code == 202
    until(asked, revoked, "revoked")
    llm.release_all()
    assert set(llm.by_key()) == {f"{revoked}/outline/1"}

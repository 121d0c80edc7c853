"""Unusual texts through the whole product: as insights, chunks, questions and documents of decks."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from typing import Any

import pypdf
import pytest

from tests.product import Product

MIB = 1 << 20
# One sentence each: "Who fixed the tests of the broker yesterday?" in six scripts.
SCRIPTS = {
    "cyrillic": "Кто вчера починил тесты брокера",
    "arabic": "من أصلح اختبارات الوسيط أمس",
    "hebrew": "מי תיקן אתמול את הבדיקות של המתווך",
    "devanagari": "किसने कल ब्रोकर के परीक्षण ठीक किए",
    "han": "昨天谁修好了代理的测试",
    "greek": "Ποιος διόρθωσε χθες τις δοκιμές",
}
TEXTS = {
    "long": ("Consumers commit offsets after each batch of records. " * (MIB // 50))[:MIB],
    "endless": "a" * MIB,
    "repeated": "word " * 1_000,
    "mixed": "Fix the broker: من أصلح اختبارات (v1.2.3), היא fixed 3 tests",
    "scripts": ". ".join(SCRIPTS.values()),
}
ORGANIZATION = "any-text"
ENDED = {"completed", "failed"}


@pytest.fixture(scope="module")
def run() -> str:
    """The prefix of names of this run."""
    return uuid.uuid4().hex[:8]


def test_a_feed_of_any_texts(product: Product, run: str) -> None:
    """Each text is an insight; a feed of them is built, with labels of bounded length; a letter beyond 1 MiB is refused."""
    many = [(f"{name}-{i}", f"{text} {i}") for name, text in SCRIPTS.items() for i in range(8)]
    many += [(name, text) for name, text in TEXTS.items() if len(text) < MIB]
    rows = [insight(run, name, text) for name, text in many]
    accepted = product.http.post(
        "/api/events/feeds.insight-ingested",
        content="\n".join(map(json.dumps, rows)),
        headers={"content-type": "application/x-ndjson"},
    )
    assert accepted.status_code == 202, accepted.text
    for name in ("long", "endless"):
        one = product.http.post("/api/events/feeds.insight-ingested", json=insight(run, name, TEXTS[name]))
        assert one.status_code == 202, one.text
    over = product.http.post("/api/events/feeds.insight-ingested", json=insight(run, "over", "a" * (MIB + 1)))
    assert (over.status_code, over.json()["field"]) == (422, "text")

    product.subscribe(run, [f"{run}/any"])
    count = len(rows) + 2
    product.until(lambda: product.get(f"/api/channels/{run}%2Fany").json().get("current_seq") == count, "one is lost")
    demanded = product.http.post(f"/api/users/{run}/rebuild").headers["location"]
    product.until(lambda: product.get(demanded).json()["status"] != "pending", "it is not built")
    found = product.get(f"/api/users/{run}/clusters").json()
    assert sum(one["size"] for one in found["clusters"]) + found["noise"] == count
    assert max(len(one["label"]) for one in found["clusters"]) < 100
    assert all(one["label"] and one["keywords"] for one in found["clusters"])


def insight(run: str, name: str, text: str) -> dict[str, Any]:
    """An event."""
    return {"insight_id": f"{run}-{name}", "channel_id": f"{run}/any", "ts": "2026-11-20T00:00:00Z", "text": text}


def test_chunks_of_any_texts(product: Product, run: str) -> None:
    """Each is stored, and found first by its own words."""
    texts = {**TEXTS, **SCRIPTS}
    positions = []
    for name, text in texts.items():
        body = {
            "ns": run, "slot": "any", "source_id": name, "full": True, "chunks": [{"chunk_no": 0, "content": text}],
        }  # fmt: skip
        accepted = product.http.post("/api/chunks/ingest", json=body)
        assert accepted.status_code == 202, accepted.text
        positions.append((accepted.json()["ingest_id"], accepted.json()["positions"][-1]))
    for ingest, position in positions:
        path = f"/api/chunks/ingest/{ingest}"

        def is_complete(path: str = path, position: str = position) -> bool:
            answer = product.get(path, X_Min_Position=position, X_Max_Wait_Ms="20000")
            return answer.status_code == 200 and answer.json()["status"] == "complete"

        product.until(is_complete, f"{path} is not complete")
    asked = {**SCRIPTS, "repeated": "word " * 1_000, "mixed": "היא fixed 3 tests", "long": "commit offsets"}
    for name, question in asked.items():

        def first(question: str = question) -> str:
            answer = product.http.get("/api/chunks/search", params={"ns": run, "q": question, "limit": 1})
            return str(answer.json()["results"][0]["source_id"]) if answer.json().get("results") else ""

        product.until(lambda name=name, first=first: first() == name, f"{name} is not found first: {first()}")
    too_long = product.http.get("/api/chunks/search", params={"ns": run, "q": "retention " * 2_000})
    assert (too_long.status_code, too_long.json()["field"]) == (422, "q")


def test_questions_of_any_texts(product: Product) -> None:
    """A question of a thousand words or in any script is answered, one of 1 MiB is refused by name."""
    for question in (TEXTS["repeated"], TEXTS["mixed"], TEXTS["scripts"]):
        accepted = product.http.post("/api/query", json={"user_id": str(uuid.uuid4()), "query": question})
        assert accepted.status_code == 202, accepted.text
        path = f"/api/query/{accepted.json()['request_id']}/status"
        answer = product.until(
            lambda path=path: (told := product.get(path).json()).get("status") in ENDED and told, path
        )
        assert (answer["status"], answer["answer"] != "") == ("completed", True)
    refused = product.http.post("/api/query", json={"user_id": str(uuid.uuid4()), "query": TEXTS["long"]})
    assert (refused.status_code, refused.json()["field"]) == (422, "query")


@pytest.mark.parametrize("name", TEXTS)
def test_a_deck_of_any_text(product: Product, name: str) -> None:
    """It has a slide at least, each within its bounds, and its PDF holds the title."""
    content = TEXTS[name].encode()
    put = product.http.put(
        "/api/blobs", content=content, params={"organization_id": ORGANIZATION}, headers={"content-type": "text/plain"}
    )
    assert put.status_code in {200, 201, 202}, put.text
    document = hashlib.sha256(content).hexdigest()
    deck = made(product, "generation", {"query": "What is committed", "slides": 2, "source_document_ids": [document]})
    slides = product.get(f"/api/presentations/{deck['presentation_id']}").json()["slides"]
    assert slides
    assert max(len(one["title"]) for one in slides) <= 200
    assert all(one["bullets"] for one in slides)
    file = made(product, "export", {"presentation_id": deck["presentation_id"], "format": "pdf"})
    content = product.http.get(f"/api/blobs/{file['sha256']}", params={"organization_id": ORGANIZATION}).content
    assert "What is committed" in pypdf.PdfReader(io.BytesIO(content)).pages[0].extract_text()


def made(product: Product, kind: str, args: dict[str, Any]) -> dict[str, Any]:
    """The result of a job."""
    body = {"kind": kind, "organization_id": ORGANIZATION, "user_id": "ada", "args": args}
    accepted = product.http.post("/api/jobs", json=body)
    assert accepted.status_code == 202, accepted.text
    path, position = f"/api/jobs/{accepted.json()['job_id']}", accepted.json()["positions"][0]
    ended = product.until(
        lambda: (told := product.get(path, X_Min_Position=position).json()).get("status") in ENDED and told, path
    )
    assert ended["status"] == "completed", ended
    return dict(ended["result"])

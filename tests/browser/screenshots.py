"""Takes pictures of every page of a running product: `python -m tests.browser.screenshots URL --kafka ADDRESS`.

The product holds the bundled sample (`highwater up`). Missing data of a page is created first: questions, decks, documents and
dead letters, so run it on a separate product. Pictures have a palette of 64 colours and no animation, and are as high as their
page, up to a limit; those of `docs/screenshots` are wide and light, some dark or narrow too.
`--all FOLDER` takes every page in every form, for review.
"""

from __future__ import annotations

import argparse
import io
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from confluent_kafka import Producer
from PIL import Image
from playwright.sync_api import sync_playwright

from highwater.api.cli.sample import READER, SEASON
from tests import ROOT
from tests.browser import catalogue
from tests.browser.conftest import CHROMIUM, settled

FOLDER = ROOT / "docs" / "screenshots"
HEIGHT_MAX = 1_100
COLOURS = 64
# Pages whose drawing lies further below.
_HEIGHTS_MAX = {"/user": 1_500}
# The sign that a page has its figures: they come after it was filled once.
_FILLED = {
    "/": ".hw-tile .hw-spark",
    "/browse": "tbody td.hw-value",
    "/sql": '.hw-sql [role=status]:has-text("rows in")',
    "/topics": '.hw-spark [points*=","]',
}
# Beside the wide and light picture of each page.
DARK, NARROW = ("/", "/user"), ("/", "/topics", "/browse", "/queries/{request_id}", "/read/feed")
_QUESTIONS = (
    "Why do consumers rebalance?",
    "What changed in the schema registry?",
    "Which projects dropped an old version of Python?",
)
_DECKS = ("Consumer groups", "Schema registry compatibility")
_DOCUMENTS = ("README.md", "ARCHITECTURE.md", "docs/guarantees.md", "docs/queries.md")
# A record that no consumer can read: a topic, a key, bytes, a reason and its detail.
_LETTERS = (
    ("feeds.insight-ingested", "apache/kafka", b"\x01{}", "not_avro", "the first byte is not 0"),
    ("feeds.insight-ingested", "encode/httpx", b"\x01{}", "not_avro", "the first byte is not 0"),
    ("league.match-updated", "match-1", b"\x00\x00\x00\x00\x09", "unknown_schema", "schema 9 is not in the registry"),
)


class Form(NamedTuple):
    """The form in which a page is shown."""

    name: str
    width: int
    scheme: str


LIGHT, DARKER, PHONE = Form("", 1_360, "light"), Form("-dark", 1_360, "dark"), Form("-phone", 390, "light")


def name_of(path: str) -> str:
    """The name of a page's picture, by the path as it is declared: `/topics/{name}` is `topic`."""
    words = [word for word in path.strip("/").split("/") if word]
    if not words:
        return "overview"
    stem = "-".join(word for word in words if not word.startswith("{"))
    return f"{stem}-one" if words[-1].startswith("{") else stem


def main() -> None:
    """Fill the product, and take the pictures."""
    parser = argparse.ArgumentParser(description="Takes pictures of every page of a running product.")
    parser.add_argument("url")
    parser.add_argument("--kafka", required=True, help="bootstrap servers of the product, for dead letters")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page in every form, to be looked at")
    parser.add_argument("--only", default="", help="pages whose name begins so")
    asked = parser.parse_args()
    with httpx2.Client(base_url=asked.url, timeout=60) as http:
        things = filled(http, asked.kafka)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for form in (LIGHT, DARKER, PHONE):
            context = chromium.new_context(
                viewport={"width": form.width, "height": 600}, color_scheme=form.scheme, base_url=asked.url,
                reduced_motion="reduce",
            )  # fmt: skip
            page = context.new_page()
            for path, address in _wanted(things, form, is_every=asked.all is not None):
                name = name_of(path)
                if name.startswith(asked.only):
                    target = (asked.all or FOLDER) / f"{name}{form.name}.png"
                    target.write_bytes(picture_of(page, path, address))
            context.close()
        chromium.close()


def _wanted(things: catalogue.Things, form: Form, *, is_every: bool) -> Iterator[tuple[str, str]]:
    for path, addresses in catalogue.addresses(things).items():
        chosen = {LIGHT: True, DARKER: path in DARK, PHONE: path in NARROW}[form]
        if is_every or chosen:
            yield path, addresses[-1]


def picture_of(page: Any, path: str, address: str) -> bytes:
    """A page as a PNG of few colours."""
    page.goto(address)
    if catalogue.is_of_console(path):
        settled(page)
    page.wait_for_load_state("networkidle" if not catalogue.is_of_console(path) else "load")
    if path in _FILLED:
        page.wait_for_selector(_FILLED[path])
    page.evaluate("document.fonts.ready")
    # The window as high as the page: fixed parts, as the navigation, are as high as the window.
    width = page.viewport_size["width"]
    height = page.evaluate("Math.max(document.documentElement.scrollHeight, 600)")
    page.set_viewport_size({"width": width, "height": min(_HEIGHTS_MAX.get(path, HEIGHT_MAX), height)})
    taken = packed(page.screenshot(animations="disabled"))
    page.set_viewport_size({"width": width, "height": 600})
    return taken


def packed(png: bytes) -> bytes:
    """A picture in a palette."""
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
        )
    found = io.BytesIO()
    few.save(found, "PNG", optimize=True)
    return found.getvalue()


def filled(http: httpx2.Client, kafka: str) -> catalogue.Things:
    """The data that pages show beside the sample."""
    for question in _QUESTIONS:
        http.post("/api/query", json={"user_id": str(uuid.uuid4()), "query": question}).raise_for_status()
    organization = f"team-{uuid.uuid4().hex[:4]}"
    for topic in _DECKS:
        args = {"query": topic, "slides": 3}
        body = {"kind": "generation", "organization_id": organization, "user_id": READER, "args": args}
        http.post("/api/jobs", json=body).raise_for_status()
    for tab in ("table", "schedule", "results", "stats", "bracket"):
        until(http, f"/api/league/{SEASON}/{tab}")
    for name in _DOCUMENTS:
        parts = (ROOT / name).read_text("utf-8").split("\n## ")
        chunks = [{"chunk_no": number, "title": name, "content": part} for number, part in enumerate(parts)]
        whole = {
            "ns": "docs",
            "slot": "main",
            "source_id": name,
            "ingest_id": f"{name}-{uuid.uuid4().hex[:6]}",
            "full": True,
        }
        http.post("/api/chunks/ingest", json={**whole, "chunks": chunks}).raise_for_status()
    http.get("/api/chunks/search", params={"ns": "docs", "q": "exactly once"}).raise_for_status()
    producer = Producer({"bootstrap.servers": kafka})
    for topic, key, value, reason, detail in _LETTERS:
        headers = [
            ("dlq_reason", reason.encode()),
            ("dlq_detail", detail.encode()),
            ("dlq_origin", f"{topic}/0/0".encode()),
        ]
        producer.produce(f"{topic}.dlq", value, key.encode(), headers=headers)
    producer.flush(30)
    return catalogue.made_in(http, READER, SEASON)


def until(http: httpx2.Client, path: str) -> None:
    """Wait until a page of a league is made."""
    while http.get(path).status_code == httpx2.codes.ACCEPTED:
        time.sleep(0.2)  # the pause between two looks


if __name__ == "__main__":
    main()

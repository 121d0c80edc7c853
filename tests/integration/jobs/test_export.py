"""Decks as files: what was made stands in them, and the same deck is the same blob."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import pptx
import pypdf
import pytest

from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.export import FORMATS, ExportSteps
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.states import Kind
from tests.integration.jobs.making import Jobs

TITLE = "KRaft: Überblick — обзор"
SLIDES: list[dict[str, Any]] = [
    {
        "slide_id": f"s{number}",
        "number": number,
        "title": f"Part {number}: что меняется",
        "bullets": [f"Point {number}.{place} " + "says something more. " * (place * 3) for place in range(1, 7)],
        "notes": f"Say {number}.",
    }
    for number in range(1, 16)
]


async def deck(j: Jobs, *, organization: str = "acme") -> str:
    """A deck of 15 slides; its id."""
    presentation_id = str(uuid.uuid4())
    await j.around.pool.execute(
        "INSERT INTO presentations VALUES ($1, $2, 'ada', $3, $4, 'jobs.job-submitted/0/7', $5)",
        presentation_id, organization, TITLE, json.dumps(SLIDES), to_datetime(j.time()),
    )  # fmt: skip
    return presentation_id


async def exported(j: Jobs, presentation_id: str, form: str) -> dict[str, Any]:
    """The row of a job that exports a deck, once it has ended."""
    worker = j.worker(Kind.EXPORT, ExportSteps(j.around.pool, j.time))
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": presentation_id, "format": form})
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "completed")
    return dict(json.loads(row["result"]))


async def content_of(j: Jobs, sha256: str) -> tuple[bytes, str]:
    """A blob that the organization owns, and its media type."""
    blob = (await blobs.known(j.around.pool, [sha256], "acme"))[sha256]
    return b"".join([part async for part in blobs.read(j.around.pool, blob)]), blob.media_type


def words(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


async def test_a_pptx_holds_every_title_and_point(j: Jobs):
    """Opened again: a title slide, then each slide with its points in order and what its speaker says."""
    result = await exported(j, await deck(j), "pptx")
    content, media_type = await content_of(j, result["sha256"])
    assert (media_type, len(content)) == (FORMATS["pptx"].media_type, result["size_bytes"])
    first, *slides = pptx.Presentation(io.BytesIO(content)).slides
    assert first.shapes.title.text == TITLE
    shown: dict[str, list[str]] = {}
    for slide in slides:
        title = slide.shapes.title.text.partition(" (")[0]
        shown.setdefault(title, []).extend(p.text for p in slide.placeholders[1].text_frame.paragraphs)
    assert list(shown) == [slide["title"] for slide in SLIDES]
    for slide in SLIDES:
        assert words("".join(shown[slide["title"]])) == words("".join(slide["bullets"]))
    notes = [slide.notes_slide.notes_text_frame.text for slide in slides if slide.has_notes_slide]
    assert notes == [slide["notes"] for slide in SLIDES]


async def test_a_pdf_holds_every_title_and_point(j: Jobs):
    """Opened again: its title, an outline of its slides, and all of their words."""
    result = await exported(j, await deck(j), "pdf")
    content, media_type = await content_of(j, result["sha256"])
    assert (media_type, result["media_type"]) == ("application/pdf", "application/pdf")
    file = pypdf.PdfReader(io.BytesIO(content))
    assert file.metadata is not None
    assert file.metadata.title == TITLE
    assert [entry.title for entry in file.outline] == [slide["title"] for slide in SLIDES]  # type: ignore[union-attr]
    assert words(file.pages[0].extract_text()) == words(TITLE)
    text = "".join(words(page.extract_text()) for page in file.pages)
    for slide in SLIDES:
        assert words(slide["title"]) in text
        assert all(words(point) in text for point in slide["bullets"])


@pytest.mark.parametrize("form", ["pptx", "pdf"])
async def test_exported_again_it_is_the_same_blob(j: Jobs, form: str):
    """Whichever job writes it and when: one blob."""
    presentation_id = await deck(j)
    first = await exported(j, presentation_id, form)
    j.time.now_ms += 86_400_000
    assert await exported(j, presentation_id, form) == first
    assert await j.around.pool.fetchval("SELECT count(*) FROM blobs") == 1


@pytest.mark.parametrize("organization", ["umbrella", None])
async def test_a_deck_of_others_is_not_there(j: Jobs, organization: str | None):
    """One of another organization fails a job as one that nobody has; neither leaves a file."""
    presentation_id = str(uuid.uuid4()) if organization is None else await deck(j, organization=organization)
    worker = j.worker(Kind.EXPORT, ExportSteps(j.around.pool, j.time))
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": presentation_id, "format": "pdf"})
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "failed")
    assert row["error"] == f"there is no presentation {presentation_id}"
    assert await j.around.pool.fetchval("SELECT count(*) FROM blobs") == 0

"""Decks as files: they contain the generated slides, and the same deck is the same blob."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pptx
import pypdf
import pytest
from PIL import Image
from pptx.opc.constants import RELATIONSHIP_TYPE

from highwater.api.jobs.routes import result_url
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.export import FORMATS, NOT_CONFIGURED, ExportSteps
from highwater.connectors.jobs.google_slides import SCOPE, GoogleSlides, read_credentials
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.states import Kind
from highwater.streams.settings import read_settings
from tests.integration.jobs.making import Jobs
from tests.integration.jobs.scripted_google import ACCOUNT, ScriptedGoogle

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
    await j.context.pool.execute(
        "INSERT INTO presentations VALUES ($1, $2, 'ada', $3, $4, 'jobs.job-submitted/0/7', $5)",
        presentation_id, organization, TITLE, json.dumps(SLIDES), to_datetime(j.time()),
    )  # fmt: skip
    return presentation_id


async def once(content: bytes) -> AsyncIterator[bytes]:
    """Bytes as an upload."""
    yield content


async def exported(j: Jobs, presentation_id: str, form: str, **more: Any) -> dict[str, Any]:
    """The row of a job that exports a deck, once it has ended."""
    worker = j.worker(Kind.EXPORT, ExportSteps(j.context.pool, j.time))
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": presentation_id, "format": form, **more})
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "completed")
    return dict(json.loads(row["result"]))


async def content_of(j: Jobs, sha256: str) -> tuple[bytes, str]:
    """A blob that the organization owns, and its media type."""
    blob = (await blobs.known(j.context.pool, [sha256], "acme"))[sha256]
    return b"".join([part async for part in blobs.read(j.context.pool, blob)]), blob.media_type


def words(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


async def test_a_pptx_holds_every_title_and_point(j: Jobs):
    """Opened again: a title slide, then each slide with its points in order and what its speaker says."""
    result = await exported(j, await deck(j), "pptx")
    assert result["file_name"] == "KRaft Überblick — обзор.pptx"
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
    assert await j.context.pool.fetchval("SELECT count(*) FROM blobs") == 1


@pytest.mark.parametrize("organization", ["umbrella", None])
async def test_a_deck_of_others_is_not_there(j: Jobs, organization: str | None):
    """One of another organization fails a job like a missing one; neither leaves a file."""
    presentation_id = str(uuid.uuid4()) if organization is None else await deck(j, organization=organization)
    worker = j.worker(Kind.EXPORT, ExportSteps(j.context.pool, j.time))
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": presentation_id, "format": "pdf"})
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "failed")
    assert row["error"] == f"there is no presentation {presentation_id}"
    assert await j.context.pool.fetchval("SELECT count(*) FROM blobs") == 0


async def test_a_brand_kit_is_what_a_deck_looks_like(j: Jobs):
    """Its colours are those of the theme, its logo stands on every page; in a PDF too."""
    logo = io.BytesIO()
    Image.new("RGB", (40, 10), "#AA0000").save(logo, "PNG")
    sha256 = hashlib.sha256(logo.getvalue()).hexdigest()
    now = j.time()
    put = {"media_type": "image/png", "organization_id": "acme", "now_ms": now, "bytes_max": 1 << 20}
    await blobs.put(j.context.pool, once(logo.getvalue()), file_name=None, **put)
    presentation_id = await deck(j)
    kit = {"primary": "#FFD400", "accent": "#006644", "logo": sha256}
    content, _ = await content_of(j, (await exported(j, presentation_id, "pptx", brand_kit=kit))["sha256"])
    file = pptx.Presentation(io.BytesIO(content))
    theme = file.slide_master.part.part_related_by(RELATIONSHIP_TYPE.THEME).blob.decode()
    assert ('<a:accent1><a:srgbClr val="FFD400"/>' in theme, '<a:accent2><a:srgbClr val="006644"/>' in theme) == (
        True,
        True,
    )
    assert all(any(shape.name == "Logo" for shape in slide.shapes) for slide in file.slides)
    assert str(file.slides[0].shapes.title.text_frame.paragraphs[0].font.color.rgb) == "000000"  # on yellow
    content, _ = await content_of(j, (await exported(j, presentation_id, "pdf", brand_kit=kit))["sha256"])
    assert len(pypdf.PdfReader(io.BytesIO(content)).pages[1].images) == 1


async def test_a_logo_that_is_not_there_fails_the_job(j: Jobs):
    """The error has its name; the same holds for a document that is not a picture."""
    worker = j.worker(Kind.EXPORT, ExportSteps(j.context.pool, j.time))
    text = await j.put("no picture")
    for logo, told in (("a" * 64, "does not exist"), (text, "not a readable picture")):
        args = {"presentation_id": await deck(j), "format": "pptx", "brand_kit": {"logo": logo}}
        job_id = await j.submit(kind=Kind.EXPORT, args=args)
        await j.request(worker, job_id)
        assert told in (await j.until_status(job_id, "failed"))["error"]


async def test_a_script_without_a_font_fails_the_job(j: Jobs):
    """It fails once, with the name of the script and the text."""
    presentation_id = await deck(j)
    await j.context.pool.execute("UPDATE presentations SET title = 'བོད་ཡིག'")
    worker = j.worker(Kind.EXPORT, ExportSteps(j.context.pool, j.time))
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": presentation_id, "format": "pdf"})
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "failed")
    assert ("Tibetan" in row["error"], "བོད་ཡིག" in row["error"]) == (True, True)


# -- Google Slides --------------------------------------------------------------------------------------------------------


@pytest.fixture
def google() -> Iterator[ScriptedGoogle]:
    """Google, scripted."""
    with ScriptedGoogle() as service:
        yield service


async def to_google(j: Jobs, google: GoogleSlides | None, *, status: str = "completed") -> dict[str, Any]:
    """The row of a job that writes a deck to Google Slides, once it stands there."""
    worker = j.worker(Kind.EXPORT, ExportSteps(j.context.pool, j.time, google))
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": await deck(j), "format": "google_slides"})
    await j.request(worker, job_id)
    return await j.until_status(job_id, status)


def account(google: ScriptedGoogle, path: Path, document: Any, **more: str) -> GoogleSlides:
    """The account that a file of credentials stands for, as the worker opens it."""
    path.write_text(json.dumps(document))
    names = {"HIGHWATER_GOOGLE_CREDENTIALS_FILE": str(path), "HIGHWATER_GOOGLE_API_URL": google.url, **more}
    opened = GoogleSlides.of(read_settings(names))
    assert opened is not None
    return opened


async def test_a_deck_becomes_a_presentation_of_google(j: Jobs, google: ScriptedGoogle, tmp_path: Path):
    """Made of the file that an export to PPTX writes, in the folder of the settings, by a service account."""
    opened = account(google, tmp_path / "a.json", google.service_account(), HIGHWATER_GOOGLE_FOLDER_ID="folder-7")
    row = await to_google(j, opened)
    (file,) = google.files
    assert file.about == {
        "name": TITLE, "mimeType": "application/vnd.google-apps.presentation", "parents": ["folder-7"],
        "appProperties": {"highwater_job": str(row["job_id"])},
    }  # fmt: skip
    assert (file.media_type, file.parameters["uploadType"]) == (FORMATS["pptx"].media_type, "multipart")
    assert pptx.Presentation(io.BytesIO(file.content)).slides[0].shapes.title.text == TITLE
    result = json.loads(row["result"])
    assert (result["file_id"], result["url"]) == ("file-1", "https://docs.google.com/presentation/d/file-1/edit")
    assert result["format"] == "google_slides"
    assert result_url("export", str(row["job_id"]), result) == result["url"]
    claims = google.claims()
    assert (claims["iss"], claims["scope"], claims["aud"]) == (ACCOUNT, SCOPE, f"{google.url}/token")
    assert claims["exp"] - claims["iat"] == 3_600
    assert google.requests == ["GET /drive/v3/files", "POST /upload/drive/v3/files"]
    await opened.close()


async def test_what_passes_is_waited_for_and_nothing_is_made_twice(j: Jobs, google: ScriptedGoogle, tmp_path: Path):
    """A 503, a rate limit, a lost answer, a token that is no longer taken: one presentation in the end."""
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    opened = account(google, tmp_path / "a.json", {**user, "token_uri": f"{google.url}/token"})
    limited = {"error": {"code": 403, "message": "slow down", "errors": [{"reason": "userRateLimitExceeded"}]}}
    google.script((401, {}), (503, None), (403, limited))
    google.loses_answers = 1
    row = await to_google(j, opened)
    assert [file.id for file in google.files] == [json.loads(row["result"])["file_id"]]
    assert (
        google.grants
        == [{"grant_type": "refresh_token", "client_id": "c", "client_secret": "s", "refresh_token": "r"}] * 2
    )
    await opened.close()


async def test_what_google_refuses_fails_the_job(j: Jobs, google: ScriptedGoogle, tmp_path: Path):
    """With Google's words, so that it can be corrected and the job restarted; so does a deployment without credentials."""
    opened = account(google, tmp_path / "a.json", google.service_account())
    google.script((404, {"error": {"code": 404, "message": "File not found: folder-7."}}))
    row = await to_google(j, opened, status="failed")
    assert row["error"] == "Google answered 404: File not found: folder-7."
    await j.restart(j.workers[0], str(row["job_id"]))
    await j.until_status(str(row["job_id"]), "completed")
    await j.workers[0].end()
    assert (await to_google(j, None, status="failed"))["error"] == NOT_CONFIGURED
    await opened.close()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"type": "service_account"},
        {"type": "external_account"},
        {"type": "service_account", "client_email": "a", "private_key": "secret"},
    ],
)
def test_credentials_that_cannot_be_used_are_refused(tmp_path: Path, document: Any):
    """With the name of the setting, and nothing of what it holds."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match="HIGHWATER_GOOGLE_CREDENTIALS_FILE") as caught:
        read_credentials(read_settings({"HIGHWATER_GOOGLE_CREDENTIALS_FILE": str(path)}))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None

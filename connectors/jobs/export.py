"""Export: a deck is written as a file, which is a blob of its organization, or as a presentation in Google Slides.

Law: the same deck in the same format is the same blob, and a job makes one presentation in Google Slides, so a job that is begun
again makes nothing new. A deck of another organization is as one that is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import asyncpg
import orjson

from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.jobs.steps import Done, JobFailedError
from highwater.connectors.postgres.pool import reading
from highwater.streams.clock import Clock
from highwater.streams.jobs.args import GOOGLE_SLIDES, ExportArgs, parse_args
from highwater.streams.jobs.file_names import MEDIA_TYPES, name_of_title
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.layout import Deck, Slide
from highwater.streams.jobs.states import Kind

if TYPE_CHECKING:
    from highwater.connectors.jobs.google_slides import GoogleSlides

# Fifty slides of text are some 100 kB; a file above it is a defect.
FILE_BYTES_MAX = 64 << 20

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


class Format(NamedTuple):
    """How a format is written, and what it is."""

    write: Callable[[Deck], bytes]
    media_type: str


def _write_pptx(deck: Deck) -> bytes:
    from highwater.connectors.jobs.pptx_file import write_pptx  # noqa: PLC0415 - its library is loaded with the first deck

    return write_pptx(deck)


def _write_pdf(deck: Deck) -> bytes:
    from highwater.connectors.jobs.pdf_file import write_pdf  # noqa: PLC0415 - as above

    return write_pdf(deck)


FORMATS: Mapping[str, Format] = {
    "pptx": Format(_write_pptx, MEDIA_TYPES["pptx"]),
    "pdf": Format(_write_pdf, MEDIA_TYPES["pdf"]),
}
NOT_CONFIGURED = (
    "Google Slides is not configured: "
    "set HIGHWATER_GOOGLE_CREDENTIALS_FILE or HIGHWATER_GOOGLE_ACCESS_TOKEN for the export worker"
)


class ExportSteps:
    """One step: the file is written and stored."""

    def __init__(self, pool: Pool, clock: Clock, google: GoogleSlides | None = None) -> None:
        """`google` None: nothing is written to Google Slides."""
        self._pool = pool
        self._clock = clock
        self._google = google

    async def next(self, job: Job) -> Done:
        """Write the file, or the presentation.

        Raises:
            JobFailedError: there is no such deck, or Google Slides is not configured or refuses it.
            UnavailableError: PostgreSQL or Google is away.
        """
        args = parse_args(Kind.EXPORT, job.args)
        assert isinstance(args, ExportArgs)
        deck = await self._deck(job, args.presentation_id)
        if args.format == GOOGLE_SLIDES:
            return await self._to_google(job, args, deck)
        form = FORMATS[args.format]
        # Half a second of CPU for a large deck; the letters of a thread's fonts are those of all.
        content = await asyncio.to_thread(form.write, deck)
        file_name = name_of_title(deck.title, args.format)
        put = await blobs.put(
            self._pool,
            _once(content),
            media_type=form.media_type,
            organization_id=job.organization_id,
            now_ms=self._clock(),
            bytes_max=FILE_BYTES_MAX,
            file_name=file_name,
        )
        return Done(
            {
                "sha256": put.sha256,
                "media_type": form.media_type,
                "size_bytes": put.size_bytes,
                "presentation_id": args.presentation_id,
                "format": args.format,
                "file_name": file_name,
            }
        )

    async def _to_google(self, job: Job, args: ExportArgs, deck: Deck) -> Done:
        if self._google is None:
            raise JobFailedError(NOT_CONFIGURED)
        content = await asyncio.to_thread(_write_pptx, deck)
        made = await self._google.write(job.id, deck.title, content)
        shown = {"presentation_id": args.presentation_id, "format": args.format}
        return Done({"file_id": made.file_id, "url": made.url, **shown})

    async def _deck(self, job: Job, presentation_id: str) -> Deck:
        async with reading(self._pool) as connection:
            row = await connection.fetchrow(QUERIES["deck_to_export"], presentation_id, job.organization_id)
        if row is None:
            raise JobFailedError(f"there is no presentation {presentation_id}")
        return Deck(row["title"], tuple(_slide(slide) for slide in orjson.loads(row["slides"])))


def _slide(slide: Mapping[str, Any]) -> Slide:
    return Slide(slide["title"], tuple(slide["bullets"]), slide["notes"])


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content

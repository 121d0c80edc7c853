"""Export: a deck is written as a file, which is a blob of its organization, or as a presentation in Google Slides.

Invariant: the same deck in the same format is the same blob, and a job makes one presentation in Google Slides, so a
repeated job makes nothing new. A deck of another organization is treated as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.kept_decks import kept_deck
from highwater.connectors.jobs.steps import Done, JobFailedError
from highwater.streams.clock import Clock
from highwater.streams.jobs.args import GOOGLE_SLIDES, BrandKit, ExportArgs, parse_args
from highwater.streams.jobs.file_names import MEDIA_TYPES, name_of_title
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.layout import Deck, MissingFontError, Slide, Table, Theme, UnreadableLogoError, Written
from highwater.streams.jobs.states import Kind

if TYPE_CHECKING:
    from highwater.connectors.jobs.google_slides import GoogleSlides

# Fifty slides of text are some 100 kB; a larger file is a defect.
FILE_BYTES_MAX = 64 << 20
# It is on every page; a larger one is a photograph.
LOGO_BYTES_MAX = 2 << 20

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


class Format(NamedTuple):
    """How a format is written, and its properties."""

    write: Callable[[Deck, Theme], Written]
    media_type: str


def _write_pptx(deck: Deck, theme: Theme) -> Written:
    from highwater.connectors.jobs.pptx_file import write_pptx  # noqa: PLC0415 - its library is loaded with the first deck

    return Written(write_pptx(deck, theme))


def _write_pdf(deck: Deck, theme: Theme) -> Written:
    from highwater.connectors.jobs.pdf_file import write_pdf  # noqa: PLC0415 - as above

    return write_pdf(deck, theme)


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
            JobFailedError: the deck does not exist, or Google Slides is not configured or refuses it.
            UnavailableError: PostgreSQL or Google is unavailable.
        """
        args = parse_args(Kind.EXPORT, job.args)
        assert isinstance(args, ExportArgs)
        kept = await kept_deck(self._pool, args.presentation_id, job.organization_id)
        deck = Deck(kept.title, tuple(_slide(slide) for slide in kept.slides))
        theme = await self._theme(job, args.brand_kit)
        if args.format == GOOGLE_SLIDES:
            return await self._to_google(job, args, deck, theme)
        form = FORMATS[args.format]
        # Half a second of CPU for a large deck; the fonts' letters are shared by all threads.
        file = await asyncio.to_thread(_written, form.write, deck, theme)
        file_name = name_of_title(deck.title, args.format)
        put = await blobs.put(
            self._pool,
            _once(file.content),
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
                "symbols_left_out": len(file.left_out),
            }
        )

    async def _to_google(self, job: Job, args: ExportArgs, deck: Deck, theme: Theme) -> Done:
        if self._google is None:
            raise JobFailedError(NOT_CONFIGURED)
        file = await asyncio.to_thread(_written, _write_pptx, deck, theme)
        made = await self._google.write(job.id, deck.title, file.content)
        shown = {"presentation_id": args.presentation_id, "format": args.format}
        return Done({"file_id": made.file_id, "url": made.url, **shown})

    async def _theme(self, job: Job, brand_kit: BrandKit) -> Theme:
        """Return the look of the deck; the brand kit's missing parts get the defaults."""
        logo = None
        if brand_kit.logo is not None:
            owned = await blobs.known(self._pool, [brand_kit.logo], job.organization_id)
            blob = owned.get(brand_kit.logo)
            if blob is None:
                raise JobFailedError(f"the logo {brand_kit.logo} does not exist; upload it first (PUT /api/blobs)")
            if blob.size_bytes > LOGO_BYTES_MAX:
                raise JobFailedError(f"the logo {brand_kit.logo} is larger than {LOGO_BYTES_MAX} bytes")
            logo = b"".join([part async for part in blobs.read(self._pool, blob)])
        shipped = Theme()
        return Theme(brand_kit.primary or shipped.primary, brand_kit.accent or shipped.accent, logo)


def _slide(slide: Mapping[str, Any]) -> Slide:
    """Return a slide as it is stored; older ones have neither sources nor a table."""
    table = slide.get("table")
    return Slide(
        slide["title"],
        tuple(slide["bullets"]),
        slide["notes"],
        tuple(None if source is None else _shown(source) for source in slide.get("sources", ())),
        None if table is None else _table(table),
    )


def _table(table: Mapping[str, Any]) -> Table:
    """Return a table as it is stored; older ones do not count dropped rows."""
    return Table(tuple(table["header"]), tuple(map(tuple, table["rows"])), table.get("rows_total", 0))


def _shown(source: Mapping[str, Any]) -> str:
    """Return a source as a reader sees it: the document's name, the headings above the passage, its number from 1;
    without words of our own.
    """
    name = source["name"] or source["document"][:12]
    place = f"\u00a7 {source['place'] + 1}" if source["place"] >= 0 else None
    return ", ".join(filter(None, (name, source["heading"], place)))


def _written(write: Callable[[Deck, Theme], Written], deck: Deck, theme: Theme) -> Written:
    """Return the file.

    Raises:
        JobFailedError: the logo is not a picture, or no font has a letter of the deck.
    """
    try:
        return write(deck, theme)
    except (UnreadableLogoError, MissingFontError) as error:
        raise JobFailedError(str(error)) from error


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content

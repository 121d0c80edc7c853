"""The arguments of a job: the fields of its args by kind, as one JSON object.

Invariant: a field that the kind does not have is refused, so that a misspelt field never passes for its default. Equal
args are equal values, however their JSON was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import orjson

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import JobSubmitted
from highwater.streams.checks import ID_BYTES_MAX, check_name, check_text, check_user_text, check_uuid
from highwater.streams.identity.plans import BRAND_KIT
from highwater.streams.jobs.approval import TIMEOUT_SECONDS_DEFAULT, TIMEOUT_SECONDS_MAX, TIMEOUT_SECONDS_MIN
from highwater.streams.jobs.decks import BadDeckError, Outline, read_outline
from highwater.streams.jobs.states import Kind

# More slides than an audience sits through; each slide is a paid model call.
SLIDES_MIN, SLIDES_MAX, SLIDES_DEFAULT = 1, 50, 10
# Some three pages: a longer text is a document, and is uploaded as a blob.
QUERY_BYTES_MAX = 16 << 10
# All of them are read for each deck; further ones belong in another ingestion.
DOCUMENTS_MAX = 20
# The longest query with every second character escaped; documents are named, so nothing else is long.
ARGS_BYTES_MAX = 64 << 10
GOOGLE_SLIDES = "google_slides"
FORMATS = ("pptx", "pdf", GOOGLE_SLIDES)

_SHA256 = re.compile("[0-9a-f]{64}")
_COLOUR = re.compile("#[0-9a-fA-F]{6}")


@dataclass(frozen=True, slots=True)
class GenerationArgs:
    """The number of slides of a deck, its query, and its documents by SHA-256.

    `cache` False: a new deck is made even if one for the same query exists. `outline_only`: only the outline is
    made, to be reviewed and changed. `outline`: the deck is made from it. `remake`: numbers of slides of the deck
    `presentation_id` that are replaced; the others are reused. `await_approval`: no slide is made before the outline
    is approved; without approval within `approval_timeout_seconds`, the job fails.
    """

    query: str
    slides: int = SLIDES_DEFAULT
    source_document_ids: tuple[str, ...] = ()
    cache: bool = True
    outline_only: bool = False
    outline: Outline | None = None
    presentation_id: str | None = None
    remake: tuple[int, ...] = ()
    await_approval: bool = False
    approval_timeout_seconds: int = TIMEOUT_SECONDS_DEFAULT

    @property
    def is_of_query(self) -> bool:
        """Return whether the whole deck depends only on the query and its documents, so that it may be reused."""
        return not (self.outline_only or self.outline is not None or self.remake or self.await_approval)

    @property
    def documents(self) -> tuple[str, ...]:
        """Return the documents that the job reads."""
        return self.source_document_ids

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features that the organization's plan must include: none."""
        return ()


@dataclass(frozen=True, slots=True)
class IngestionArgs:
    """Documents to be cut into chunks of a namespace and slot.

    `keep_all`: what is not judged to be text (running heads, contents, menus) is in the chunks too.
    """

    document_ids: tuple[str, ...]
    ns: str
    slot: str
    keep_all: bool = False

    @property
    def documents(self) -> tuple[str, ...]:
        """Return the documents that the job reads."""
        return self.document_ids

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features that the organization's plan must include: none."""
        return ()


@dataclass(frozen=True, slots=True)
class BrandKit:
    """The look of a deck: colours as `RRGGBB`, a logo as the SHA-256 of a PNG or JPEG; None: the default."""

    primary: str | None = None
    accent: str | None = None
    logo: str | None = None


@dataclass(frozen=True, slots=True)
class ExportArgs:
    """A deck to be written as a file, or as a presentation in Google Slides."""

    presentation_id: str
    format: Literal["pptx", "pdf", "google_slides"]
    brand_kit: BrandKit = BrandKit()

    @property
    def documents(self) -> tuple[str, ...]:
        """Return the documents that the job reads: none."""
        return ()

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features that the organization's plan must include."""
        return () if self.brand_kit == BrandKit() else (BRAND_KIT,)


Args = GenerationArgs | IngestionArgs | ExportArgs


def is_sha256(value: str) -> bool:
    """Return whether a document's id is the SHA-256 of its bytes in lower-case hexadecimal."""
    return _SHA256.fullmatch(value) is not None


class Submission(NamedTuple):
    """The fields that must be equal in two submissions of one job."""

    kind: Kind
    organization_id: str
    user_id: str
    args: Args
    expires_ms: int | None


def submission_of(event: JobSubmitted) -> Submission:
    """Return what an event submits. Raises the errors of `parse_args`."""
    args = parse_args(event["kind"], event["args"])
    return Submission(Kind(event["kind"]), event["organization_id"], event["user_id"], args, event["expires_at"])


def parse_args(kind: Kind | str, text: str) -> Args:
    """Return the args of a job of this kind.

    Raises:
        InvalidEventError: the kind is unknown, the text is not JSON, or a field is unknown, missing or wrong; fields of
            the
            args are named `args.<field>`.
    """
    if kind not in _PARSERS:
        raise InvalidEventError("unknown_kind", f"kind is none of {', '.join(_PARSERS)}", field="kind")
    return _PARSERS[Kind(kind)](_fields(text, _FIELDS[Kind(kind)]))


# For each kind its fields, and whether one is required.
_FIELDS: Mapping[Kind, Mapping[str, bool]] = {
    Kind.GENERATION: {
        "query": True,
        "slides": False,
        "source_document_ids": False,
        "cache": False,
        "outline_only": False,
        "outline": False,
        "presentation_id": False,
        "remake": False,
        "await_approval": False,
        "approval_timeout_seconds": False,
    },
    Kind.INGESTION: {"document_ids": True, "ns": True, "slot": True, "keep_all": False},
    Kind.EXPORT: {"presentation_id": True, "format": True, "brand_kit": False},
}


def _fields(text: str, fields: Mapping[str, bool]) -> dict[str, Any]:
    check_text("args", text, ARGS_BYTES_MAX)
    try:
        args = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise InvalidEventError("args_not_json", f"args is not JSON: {error}", field="args") from error
    if not isinstance(args, dict):
        raise InvalidEventError("args_not_json", "args is not a JSON object", field="args")
    unknown = next((name for name in args if name not in fields), None)
    if unknown is not None:
        known = ", ".join(fields)
        raise InvalidEventError("unknown_field", f"args has a field {unknown[:64]!r}; there are {known}", field="args")
    missing = next((name for name, is_needed in fields.items() if is_needed and name not in args), None)
    if missing is not None:
        raise InvalidEventError("missing_field", f"args lacks {missing}", field=f"args.{missing}")
    return args


def _generation(args: Mapping[str, Any]) -> GenerationArgs:
    query = _text(args, "query")
    check_user_text("args.query", query, QUERY_BYTES_MAX)
    slides = args.get("slides", SLIDES_DEFAULT)
    if type(slides) is not int or not SLIDES_MIN <= slides <= SLIDES_MAX:
        raise InvalidEventError("bad_slides", f"slides is not {SLIDES_MIN} to {SLIDES_MAX}", field="args.slides")
    outline = None if args.get("outline") is None else _outline(args["outline"], "args.outline")
    if outline is not None and args.get("slides", len(outline.slides)) != len(outline.slides):
        detail = f"slides is {slides}, and the outline has {len(outline.slides)}"
        raise InvalidEventError("bad_slides", detail, field="args.slides")
    presentation_id, remake = _remake(args)
    ways = {
        "outline_only": _flag(args, "outline_only", default=False),
        "outline": outline is not None,
        "remake": bool(remake),
        "await_approval": _flag(args, "await_approval", default=False),
    }
    asked = [name for name, is_asked in ways.items() if is_asked]
    if len(asked) > 1:
        raise InvalidEventError("contradiction", f"only one of {' and '.join(asked)} can be requested", field="args")
    return GenerationArgs(
        query,
        slides if outline is None else len(outline.slides),
        _documents(args, "source_document_ids"),
        _flag(args, "cache", default=True),
        ways["outline_only"],
        outline,
        presentation_id,
        remake,
        ways["await_approval"],
        _approval_timeout(args, is_awaited=ways["await_approval"]),
    )


def _approval_timeout(args: Mapping[str, Any], *, is_awaited: bool) -> int:
    seconds, field = args.get("approval_timeout_seconds", TIMEOUT_SECONDS_DEFAULT), "args.approval_timeout_seconds"
    if "approval_timeout_seconds" in args and not is_awaited:
        detail = "approval_timeout_seconds is given with await_approval alone"
        raise InvalidEventError("contradiction", detail, field=field)
    if type(seconds) is not int or not TIMEOUT_SECONDS_MIN <= seconds <= TIMEOUT_SECONDS_MAX:
        detail = f"approval_timeout_seconds is not {TIMEOUT_SECONDS_MIN} to {TIMEOUT_SECONDS_MAX}"
        raise InvalidEventError("bad_timeout", detail, field=field)
    return seconds


def _flag(args: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = args.get(name, default)
    if not isinstance(value, bool):
        raise InvalidEventError("not_a_boolean", f"{name} is not true or false", field=f"args.{name}")
    return value


def check_outline(name: str, text: str) -> None:
    """Check that a field of an event is an outline as JSON.

    Raises:
        InvalidEventError: it is not; the message gives the reason.
    """
    outline_from_text(name, text)


def outline_from_text(name: str, text: str) -> Outline:
    """Return the outline in a field of an event. Raises the errors of `check_outline`."""
    check_text(name, text, ARGS_BYTES_MAX)
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise InvalidEventError("bad_outline", f"{name} is not JSON: {error}", field=name) from error
    return _outline(value, name)


def _outline(value: Any, field: str) -> Outline:
    """Parse an outline in the form that a job with `outline_only` returns."""
    slides = value.get("slides") if isinstance(value, dict) else None
    count = len(slides) if isinstance(slides, list) else 0
    if not SLIDES_MIN <= count <= SLIDES_MAX:
        detail = f"outline has not {SLIDES_MIN} to {SLIDES_MAX} slides"
        raise InvalidEventError("bad_outline", detail, field=field)
    try:
        return read_outline(value, count)
    except BadDeckError as error:
        raise InvalidEventError("bad_outline", f"outline cannot be used: {error}", field=field) from error


def _remake(args: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
    """Return the deck whose slides are replaced, and their numbers; None and nothing if none is named."""
    if ("presentation_id" in args) != ("remake" in args):
        detail = "presentation_id and remake are given together: the deck, and the numbers of its slides"
        raise InvalidEventError("missing_field", detail, field="args.remake")
    if "remake" not in args:
        return None, ()
    presentation_id, numbers = _text(args, "presentation_id"), args["remake"]
    check_uuid("args.presentation_id", presentation_id)
    is_list = isinstance(numbers, list) and 0 < len(numbers) <= SLIDES_MAX
    if not is_list or not all(type(one) is int and 1 <= one <= SLIDES_MAX for one in numbers):
        detail = f"remake is not a list of numbers of slides, 1 to {SLIDES_MAX}"
        raise InvalidEventError("bad_slides", detail, field="args.remake")
    return presentation_id, tuple(sorted(set(numbers)))


def _ingestion(args: Mapping[str, Any]) -> IngestionArgs:
    documents = _documents(args, "document_ids")
    if not documents:
        raise InvalidEventError("bad_document", "document_ids names no document", field="args.document_ids")
    return IngestionArgs(
        documents, _part_of_key(args, "ns"), _part_of_key(args, "slot"), _flag(args, "keep_all", default=False)
    )


def _export(args: Mapping[str, Any]) -> ExportArgs:
    presentation_id = _text(args, "presentation_id")
    check_uuid("args.presentation_id", presentation_id)
    wanted = _text(args, "format")
    if wanted not in FORMATS:
        raise InvalidEventError("bad_format", f"format is none of {', '.join(FORMATS)}", field="args.format")
    return ExportArgs(
        presentation_id, cast("Literal['pptx', 'pdf', 'google_slides']", wanted), _brand_kit(args.get("brand_kit"))
    )


def _brand_kit(value: Any) -> BrandKit:
    if value is None:
        return BrandKit()
    if not isinstance(value, dict) or not value.keys() <= {"primary", "accent", "logo"}:
        detail = "brand_kit is not an object of primary, accent and logo"
        raise InvalidEventError("bad_brand_kit", detail, field="args.brand_kit")
    logo = value.get("logo")
    if logo is not None and not (isinstance(logo, str) and is_sha256(logo)):
        detail = "logo is not the SHA-256 of a blob in lower-case hexadecimal"
        raise InvalidEventError("bad_document", detail, field="args.brand_kit.logo")
    return BrandKit(_colour(value, "primary"), _colour(value, "accent"), logo)


def _colour(kit: Mapping[str, Any], name: str) -> str | None:
    """Return a colour of a brand kit as `RRGGBB`."""
    value = kit.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or _COLOUR.fullmatch(value) is None:
        raise InvalidEventError("bad_colour", f"{name} is not a colour as #RRGGBB", field=f"args.brand_kit.{name}")
    return value[1:].upper()


_PARSERS: Mapping[Kind, Callable[[Mapping[str, Any]], Args]] = {
    Kind.GENERATION: _generation,
    Kind.INGESTION: _ingestion,
    Kind.EXPORT: _export,
}


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args[name]
    if not isinstance(value, str):
        raise InvalidEventError("not_a_text", f"{name} is not a text", field=f"args.{name}")
    return value


def _part_of_key(args: Mapping[str, Any], name: str) -> str:
    """Return a component of a chunk's key; components are joined by `|` (R3.2)."""
    value = _text(args, name)
    check_name(f"args.{name}", value, ID_BYTES_MAX)
    if "|" in value:
        raise InvalidEventError(
            "bad_character", f"{name} holds a |, which separates parts of keys", field=f"args.{name}"
        )
    return value


def _documents(args: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return documents in the given order, without duplicates."""
    value = args.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and is_sha256(item) for item in value):
        detail = f"{name} is not a list of SHA-256 in lower-case hexadecimal"
        raise InvalidEventError("bad_document", detail, field=f"args.{name}")
    if len(value) > DOCUMENTS_MAX:
        raise InvalidEventError("too_many", f"{name} names more than {DOCUMENTS_MAX} documents", field=f"args.{name}")
    return tuple(dict.fromkeys(value))

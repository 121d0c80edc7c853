"""Redacts a deck after parts of its documents were deleted. Invariant: no line of it quotes deleted text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from highwater.streams.texts import Quotations

WITHDRAWN = "(withdrawn: its source was deleted)"
_LINES = ("title", "notes")


def redacted_slides(slides: Sequence[Mapping[str, Any]], quoted: Quotations) -> list[dict[str, Any]]:
    """Return slides with `WITHDRAWN` in place of each title, bullet and note that quotes deleted text."""
    return [_redacted(slide, quoted) for slide in slides]


def redacted_title(title: str, quoted: Quotations) -> str:
    """Return a title, redacted in the same way."""
    return WITHDRAWN if title in quoted else title


def _redacted(slide: Mapping[str, Any], quoted: Quotations) -> dict[str, Any]:
    lines = {name: redacted_title(slide[name], quoted) for name in _LINES if isinstance(slide.get(name), str)}
    if "bullets" not in slide:
        return {**slide, **lines}
    sources = slide.get("sources", ())
    kept = {
        redacted_title(bullet, quoted): source for bullet, source in zip_longest(slide["bullets"], sources) if bullet
    }
    kept = {
        bullet: None if bullet == WITHDRAWN else _redacted_source(source, quoted) for bullet, source in kept.items()
    }
    told: dict[str, Any] = {"bullets": list(kept), **({"sources": list(kept.values())} if "sources" in slide else {})}
    table = slide.get("table")
    if table is not None and any(" ".join(row) in quoted for row in (table["header"], *table["rows"])):
        told["table"] = None
    return {**slide, **lines, **told}


def _redacted_source(source: Mapping[str, Any] | None, quoted: Quotations) -> dict[str, Any] | None:
    return None if source is None else {**source, "heading": redacted_title(source["heading"], quoted)}

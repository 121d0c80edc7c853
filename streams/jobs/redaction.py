"""Owns what is left of a deck once parts of its documents were deleted. Its invariant: no line of it quotes what was deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.streams.texts import Quotations

WITHDRAWN = "(withdrawn: its source was deleted)"
_LINES = ("title", "notes")


def redacted_slides(slides: Sequence[Mapping[str, Any]], quoted: Quotations) -> list[dict[str, Any]]:
    """Slides with `WITHDRAWN` in the place of each title, bullet and note that quotes what was deleted."""
    return [_redacted(slide, quoted) for slide in slides]


def redacted_title(title: str, quoted: Quotations) -> str:
    """A title likewise."""
    return WITHDRAWN if title in quoted else title


def _redacted(slide: Mapping[str, Any], quoted: Quotations) -> dict[str, Any]:
    lines = {name: redacted_title(slide[name], quoted) for name in _LINES if isinstance(slide.get(name), str)}
    bullets = [redacted_title(one, quoted) for one in slide.get("bullets", ())]
    return {**slide, **lines, **({"bullets": list(dict.fromkeys(bullets))} if "bullets" in slide else {})}

"""Checks pictures in decks before they are drawn, and finds the colour on which they can be seen."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, UnidentifiedImageError

from highwater.streams.jobs.layout import LOGO_PIXELS_MAX, UnreadableLogoError, luminance

_FORMATS = ("PNG", "JPEG")
# A picture is judged by this many pixels in each direction. More than this share of them below this contrast (WCAG 2.2)
# to the page, and a part of the picture cannot be seen.
_SAMPLE_PIXELS, _UNSEEN_SHARE_MAX, _CONTRAST_MIN = 48, 0.15, 1.6
_OPAQUE = 128


def check_logo(content: bytes) -> tuple[int, int]:
    """Check that a logo is a picture of a size that can be drawn; return its width and height in pixels.

    Raises:
        UnreadableLogoError: it is not.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
            width, height = picture.size
            if width * height > LOGO_PIXELS_MAX:
                raise UnreadableLogoError(f"the logo has {width} x {height} pixels, more than {LOGO_PIXELS_MAX:,}")
            picture.load()
            return width, height
    except UnidentifiedImageError as error:
        raise UnreadableLogoError("the logo is not a readable picture: it is neither PNG nor JPEG") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableLogoError(f"the logo is not a readable picture: {error}") from error


def plate_of(content: bytes, page: str, others: Sequence[str]) -> str | None:
    """Return the first of other colours (`RRGGBB`) on which a transparent picture can be seen; None if it can be seen on the
    page, has a background of its own, or on none.
    """
    with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
        sample = picture.convert("RGBA").resize((_SAMPLE_PIXELS, _SAMPLE_PIXELS), Image.Resampling.NEAREST)
    raw = sample.tobytes()
    visible = [raw[place : place + 3].hex() for place in range(0, len(raw), 4) if raw[place + 3] >= _OPAQUE]
    if len(visible) == _SAMPLE_PIXELS**2 or _is_seen(visible, page):
        return None
    return next((colour for colour in others if _is_seen(visible, colour)), None)


def _is_seen(pixels: Sequence[str], colour: str) -> bool:
    behind = luminance(colour) + 0.05
    unseen = sum(
        max(behind, one) < _CONTRAST_MIN * min(behind, one) for one in (luminance(pixel) + 0.05 for pixel in pixels)
    )
    return unseen <= _UNSEEN_SHARE_MAX * len(pixels)

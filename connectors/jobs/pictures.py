"""Checks pictures in decks before they are drawn."""

from __future__ import annotations

import io

from PIL import Image

from highwater.streams.jobs.layout import LOGO_PIXELS_MAX, UnreadableLogoError

_FORMATS = ("PNG", "JPEG")


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
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableLogoError(f"the logo is not a readable picture: {error}") from error

"""Fonts and their letters: which font has a letter, and the shapes for a text (HarfBuzz).

Invariant: no text is shown as the box of a missing letter. The fonts are those of Noto that are installed as packages;
a letter or digit that none of them has is an error that names its script, a symbol is dropped and noted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import uharfbuzz as hb

from highwater.streams.jobs.layout import MissingFontError
from highwater.streams.jobs.letters import letters_of

# Letters of a text that an error quotes.
SAMPLE_LETTERS = 12
_WEIGHT = 400.0
_PACKAGE, _CJK_PACKAGE = "manimgx_fonts", "manimgx_fonts_cjk"
# Latin, Greek and Cyrillic first: symbols and digits in several fonts use that of the surrounding text, else these.
_FILES = (
    "NotoSans",
    *(
        f"NotoSans{script}"
        for script in (
            "Arabic", "Armenian", "Bengali", "Devanagari", "Ethiopic", "Georgian", "Gujarati", "Gurmukhi", "Hebrew", "Kannada",
            "Khmer", "Lao", "Malayalam", "Myanmar", "Oriya", "Sinhala", "Tamil", "Telugu", "Thai", "Symbols",
        )
    ),
)  # fmt: skip
_EMOJI, _CJK = "NotoEmoji", "NotoSansCJK-VF.otf.ttc"
# The faces of the file of East Asian letters: Chinese characters look different in each language.
CJK_FACES = {"ja": 0, "ko": 1, "zh": 2}


class Shape(NamedTuple):
    """A glyph by its number in its font, its advance and its offset, in thousandths of the size."""

    glyph: int
    advance: float
    across: float
    up: float


class Shaped(NamedTuple):
    """The shapes of letters that cannot be separated in them: nearly always one shape for one letter."""

    text: str
    shapes: tuple[Shape, ...]


class Run(NamedTuple):
    """Text in one font and direction, from left to right as it is shown."""

    font: Font
    parts: tuple[Shaped, ...]

    @property
    def width(self) -> float:
        """Return the width in thousandths of the size."""
        return sum(shape.advance for part in self.parts for shape in part.shapes)


class Font:
    """A font at regular weight. `keeps_marks`: spaces and marks between its letters use this font."""

    def __init__(self, path: str, index: int = 0, language: str | None = None, *, keeps_marks: bool = True) -> None:
        self.keeps_marks = keeps_marks
        self.face = hb.Face(hb.Blob.from_file_path(path), index)
        self._font = hb.Font(self.face)
        self._font.set_variations({"wght": _WEIGHT})
        self._language = language
        self._known = self.face.unicodes
        self._em = 1000 / self.face.upem

    def has(self, letter: str) -> bool:
        """Return whether it has every visible part of a letter."""
        return all(ord(one) in self._known or is_unseen(one) for one in letter)

    def advance(self, glyph: int) -> float:
        """Return the default width of a glyph, in thousandths of the size."""
        return float(self._font.get_glyph_h_advance(glyph) * self._em)

    def glyph_of(self, letter: str) -> int | None:
        """Return the glyph of one code point."""
        glyph: int | None = self._font.get_nominal_glyph(ord(letter))
        return glyph

    def height(self) -> tuple[float, float]:
        """Return how far letters extend above and below their line (below 0), in thousandths of the size."""
        extents = self._font.get_font_extents("ltr")
        return extents.ascender * self._em, extents.descender * self._em

    def shaped(self, text: str, *, is_rtl: bool) -> tuple[Shaped, ...]:
        """Return a text of this font as it is shown, from left to right.

        Raises:
            MissingFontError: a letter has no shape.
        """
        buffer = hb.Buffer()
        buffer.add_str(text)
        buffer.guess_segment_properties()
        buffer.direction = "rtl" if is_rtl else "ltr"
        if self._language is not None:
            buffer.language = self._language
        hb.shape(self._font, buffer)
        held: dict[int, list[Shape]] = {}
        for info, place in zip(buffer.glyph_infos, buffer.glyph_positions, strict=True):
            if info.codepoint == 0:
                raise missing_font(text[info.cluster :])
            moved = (one * self._em for one in (place.x_advance, place.x_offset, place.y_offset))
            held.setdefault(info.cluster, []).append(Shape(info.codepoint, *moved))
        ends = dict(zip(sorted(held), [*sorted(held)[1:], len(text)], strict=True))
        return tuple(Shaped(text[start : ends[start]], tuple(shapes)) for start, shapes in held.items())


class Fonts:
    """The fonts of one file, in the order of preference. `language`: see `CJK_FACES`."""

    def __init__(self, language: str) -> None:
        self._fonts = installed_fonts(language)
        self._of_letter: dict[str, Font | None] = {}
        self.left_out: set[str] = set()

    def runs(self, text: str, *, is_rtl: bool) -> list[Run]:
        """Return a text of one direction as it is shown, from left to right; without symbols that no font has.

        Raises:
            MissingFontError: no font has one of its letters.
        """
        runs = [Run(font, font.shaped(part, is_rtl=is_rtl)) for font, part in self._parts(text)]
        return runs[::-1] if is_rtl else runs

    def _parts(self, text: str) -> Iterator[tuple[Font, str]]:
        held, font = "", None
        for letter in letters_of(text):
            is_mark = unicodedata.category(letter[0])[0] not in "LN"
            stays = font is not None and font.keeps_marks and is_mark and font.has(letter)
            chosen = font if stays and font is not None else self._chosen(letter, text)
            if chosen is None:
                self.left_out.add(letter)
                continue
            if font is not None and chosen is not font:
                yield font, held
                held = ""
            held, font = held + letter, chosen
        if font is not None:
            yield font, held

    def _chosen(self, letter: str, text: str) -> Font | None:
        """Return the font of a letter; None for a symbol that none has."""
        if letter not in self._of_letter:
            found = next((font for font in self._fonts if font.has(letter)), None)
            if found is None and any(unicodedata.category(one)[0] in "LN" for one in letter):
                raise missing_font(text[text.index(letter) :])
            self._of_letter[letter] = found
        return self._of_letter[letter]


def missing_font(text: str) -> MissingFontError:
    """Return the error for a text whose first letter no font has."""
    letter = next((one for one in text if not is_unseen(one)), text[0])
    script = unicodedata.name(letter, f"U+{ord(letter):04X}").partition(" ")[0].capitalize()
    sample = text[:SAMPLE_LETTERS]
    return MissingFontError(
        f"no installed font has the letters of {script} (U+{ord(letter):04X}): {sample!r}; those of Noto are in the "
        "packages manimgx-fonts and manimgx-fonts-cjk, or export to pptx, which its reader shows in fonts of its own"
    )


def language_of(texts: Sequence[str]) -> str:
    """Choose the language for a deck's Chinese characters: Japanese if it has kana, Korean if it has Hangul, else Chinese."""
    letters = {letter for text in texts for letter in text}
    if any("\u3041" <= letter <= "\u30ff" for letter in letters):
        return "ja"
    return "ko" if any("\uac00" <= letter <= "\ud7a3" for letter in letters) else "zh"


@cache
def installed_fonts(language: str) -> tuple[Font, ...]:
    """Return the installed fonts; they are opened once per process, and read when their letters are needed."""
    fonts = [_opened(_PACKAGE, f"{name}[wght].ttf") for name in _FILES]
    # With their own wide spaces and brackets, a line of Latin letters would have gaps.
    cjk = _opened(_CJK_PACKAGE, _CJK, CJK_FACES[language], language, keeps_marks=False)
    emoji = _opened(_PACKAGE, f"{_EMOJI}[wght].ttf", keeps_marks=False)
    return tuple(font for font in (*fonts, cjk, emoji) if font is not None)


@cache
def _opened(
    package: str, name: str, index: int = 0, language: str | None = None, *, keeps_marks: bool = True
) -> Font | None:
    with suppress(ModuleNotFoundError):
        path = files(package) / name
        if path.is_file():
            return Font(str(path), index, language, keeps_marks=keeps_marks)
    return None


def is_unseen(letter: str) -> bool:
    """Return whether a code point is invisible alone: joiners, directions, and variant selectors."""
    return unicodedata.category(letter) == "Cf" or "\ufe00" <= letter <= "\ufe0f" or letter >= "\U000e0000"

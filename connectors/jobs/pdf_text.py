"""Text in a PDF: drawn glyph by glyph as HarfBuzz shapes it, in fonts that are embedded with the used glyphs.

Invariant: the text extracted from the file is the text that was written: a glyph represents the letters of its first
use, and for other letters, or for several glyphs together, the text is added (`ActualText`, PDF 32000-1, 14.9.4).
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import Any

import uharfbuzz as hb
from reportlab.pdfbase.pdfdoc import PDFArray, PDFDictionary, PDFName, PDFStream, PDFString

from highwater.connectors.jobs.fonts import Font, Fonts, Run, Shape, Shaped, is_unseen
from highwater.streams.jobs.bidi import base_level, levels_of, shown_runs
from highwater.streams.jobs.letters import pieces_of

_SUBSET = (
    hb.SubsetFlags.RETAIN_GIDS  # a glyph's number is known before the file ends
    | hb.SubsetFlags.NO_HINTING
    | hb.SubsetFlags.NO_LAYOUT_CLOSURE
    | hb.SubsetFlags.DOWNGRADE_CFF2
    | hb.SubsetFlags.CFF_IDENTITY_CHARSET
)
_REGULAR_WEIGHT = 400.0
# Shaping is done; a PDF needs outlines and widths.
_DROPPED = (
    "GDEF",
    "GPOS",
    "GSUB",
    "BASE",
    "STAT",
    "MVAR",
    "HVAR",
    "VVAR",
    "DSIG",
    "name",
    "post",
    "VORG",
    "vhea",
    "vmtx",
)
_CMAP = """/CIDInit /ProcSet findresource begin 12 dict begin begincmap
/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def
/CMapName /Adobe-Identity-UCS def /CMapType 2 def
1 begincodespacerange <0000> <FFFF> endcodespacerange
{} endcmap CMapName currentdict /CMap defineresource pop end end"""
# A subset's name begins with six capital letters (PDF 32000-1, 9.6.4).
_TAG = str.maketrans("0123456789", "GHIJKLMNOP")
# The entries of one block of a CMap (Adobe TN 5014).
_BLOCK = 100


class TextWriter:
    """Writes and measures text on a canvas; sizes in points."""

    def __init__(self, canvas: Any, language: str) -> None:
        # The library has no public way to write glyphs: they are added to its page's code and document.
        self._canvas = canvas
        # It begins each page in a font that no text uses and no file contains.
        self._canvas._preamble = "1 0 0 1 0 0 cm"  # noqa: SLF001 - as above
        self._canvas._doc.idToObject["BasicFonts"].dict.clear()  # noqa: SLF001 - as above
        self._fonts = Fonts(language)
        self._embedded: dict[Font, _Embedded] = {}
        self._widths: dict[str, float] = {}

    def measure(self, text: str, size: float) -> float:
        """Return the width of a text: the sum of the widths of its pieces.

        Raises:
            MissingFontError: no font has one of its letters.
        """
        return sum(map(self._width, pieces_of(text))) * size / 1000

    @property
    def left_out(self) -> frozenset[str]:
        """Return the symbols that no font has."""
        return frozenset(self._fonts.left_out)

    def _width(self, piece: str) -> float:
        found = self._widths.get(piece)
        if found is None:
            levels = levels_of(piece, base_level(piece))
            found = sum(run.width for run in self._runs(piece, levels, base_level(piece)))
            self._widths[piece] = found
        return found

    def line(self, left: float, base: float, text: str, size: float) -> None:
        """Write a line at a place, from the bottom left of the page."""
        direction = base_level(text)
        self.part(left, base, text, levels_of(text, direction), direction, size)

    def part(self, left: float, base: float, text: str, levels: list[int], direction: int, size: float) -> None:
        """Write a line of a paragraph, with its levels in the paragraph."""
        code = [f"BT 1 0 0 1 {left:.2f} {base:.2f} Tm"]
        for run in self._runs(text, levels, direction):
            embedded = self._embedded_of(run.font)
            code += [f"/{embedded.name} {size:g} Tf", *embedded.shown(run, size)]
        self._canvas._code.append(" ".join((*code, "ET")))  # noqa: SLF001 - as above

    def _runs(self, text: str, levels: list[int], direction: int) -> list[Run]:
        parts = shown_runs(text, levels, direction)
        return [run for start, end, level in parts for run in self._fonts.runs(text[start:end], is_rtl=level % 2 == 1)]

    def _embedded_of(self, font: Font) -> _Embedded:
        if font not in self._embedded:
            embedded = self._embedded[font] = _Embedded(font, f"N{len(self._embedded) + 1}")
            self._canvas._doc.delayedFonts.append(embedded)  # noqa: SLF001 - as above
        return self._embedded[font]


class _Embedded:
    """A font in a file, with the glyphs used there."""

    def __init__(self, font: Font, name: str) -> None:
        self.name = name
        self._font = font
        self._used = {0}
        self._texts: dict[int, str] = {}

    def shown(self, run: Run, size: float) -> list[str]:
        """Return the operators that show a run."""
        code: list[str] = []
        held: list[str] = []

        def close() -> None:
            if held:
                code.append(f"[{''.join(held)}] TJ")
                held.clear()

        for part in run.parts:
            is_told = self._tell(part)
            if not is_told:
                close()
                code.append(f"/Span << /ActualText <FEFF{_hex(part.text)}> >> BDC")
            for shape in part.shapes:
                if shape.up:
                    close()
                    code += [f"{shape.up * size / 1000:.3f} Ts [{self._placed(shape)}] TJ 0 Ts"]
                else:
                    held.append(self._placed(shape))
            if not is_told:
                close()
                code.append("EMC")
        close()
        return code

    def _placed(self, shape: Shape) -> str:
        """Return a glyph among the numbers that move the following ones to the left."""
        self._used.add(shape.glyph)
        before, after = -shape.across, self._font.advance(shape.glyph) + shape.across - shape.advance
        return "".join((_moved(before), f"<{shape.glyph:04X}>", _moved(after)))

    def _tell(self, part: Shaped) -> bool:
        """Note the letters of the glyphs; return whether that is complete."""
        if len(part.shapes) == 1:
            return self._texts.setdefault(part.shapes[0].glyph, part.text) == part.text
        own = {self._font.glyph_of(letter): letter for letter in part.text if not is_unseen(letter)}
        rest = "".join(letter for glyph, letter in own.items() if glyph not in {shape.glyph for shape in part.shapes})
        for shape in part.shapes:
            if shape.glyph in own:
                self._texts.setdefault(shape.glyph, own[shape.glyph])
            elif rest and self._texts.setdefault(shape.glyph, rest) == rest:
                rest = ""
        return False

    def addObjects(self, document: Any) -> None:  # noqa: N802 - the library calls it so, once all pages are drawn
        """Write the font into a document."""
        file = _subset(self._font, self._used)
        is_cff = "CFF " in file.table_tags
        tag = sha256(repr(sorted(self._used)).encode()).hexdigest()[:6].upper().translate(_TAG)
        name = f"{tag}+{self._font.face.get_name(6) or self.name}"
        stream = _stream(file.reference_table("CFF ").data if is_cff else file.blob.data)
        if is_cff:
            stream.dictionary["Subtype"] = PDFName("CIDFontType0C")
        above, below = self._font.height()
        descriptor = PDFDictionary(
            {
                "Type": PDFName("FontDescriptor"),
                "FontName": PDFName(name),
                "Flags": 4,
                "FontBBox": PDFArray([-1000, round(below), 2000, round(above)]),
                "ItalicAngle": 0,
                "Ascent": round(above),
                "Descent": round(below),
                "CapHeight": 714,
                "StemV": 80,
                "FontFile3" if is_cff else "FontFile2": document.Reference(stream),
            }
        )
        widths = [one for glyph in sorted(self._used) for one in (glyph, PDFArray([self._font.advance(glyph)]))]
        own = {
            "Type": PDFName("Font"),
            "Subtype": PDFName("CIDFontType0" if is_cff else "CIDFontType2"),
            "BaseFont": PDFName(name),
            "CIDSystemInfo": PDFDictionary(
                {"Registry": PDFString("Adobe"), "Ordering": PDFString("Identity"), "Supplement": 0}
            ),
            "FontDescriptor": document.Reference(descriptor),
            "W": PDFArray(widths),
        }
        if not is_cff:
            own["CIDToGIDMap"] = PDFName("Identity")
        font = {
            "Type": PDFName("Font"),
            "Subtype": PDFName("Type0"),
            "BaseFont": PDFName(name),
            "Encoding": PDFName("Identity-H"),
            "DescendantFonts": PDFArray([document.Reference(PDFDictionary(own))]),
            "ToUnicode": document.Reference(_stream(self._to_unicode().encode())),
        }
        document.idToObject["BasicFonts"].dict[self.name] = document.Reference(PDFDictionary(font))

    def _to_unicode(self) -> str:
        told = [f"<{glyph:04X}> <{_hex(text)}>" for glyph, text in sorted(self._texts.items())]
        blocks = [told[start : start + _BLOCK] for start in range(0, len(told), _BLOCK)]
        return _CMAP.format("\n".join(f"{len(one)} beginbfchar {' '.join(one)} endbfchar" for one in blocks))


def _subset(font: Font, glyphs: set[int]) -> hb.Face:
    """Return the file of a font with only these glyphs, under their numbers, at regular weight."""
    wanted = hb.SubsetInput()
    wanted.flags = _SUBSET
    wanted.glyph_set.update(glyphs)
    wanted.drop_table_tag_set.update(int.from_bytes(tag.encode(), "big") for tag in _DROPPED)
    for axis in font.face.axis_infos:
        wanted.pin_axis_location(font.face, axis.tag, _REGULAR_WEIGHT)
    return wanted.subset(font.face)


def _stream(content: bytes) -> PDFStream:
    """Return a stream as an object of the file, compressed."""
    packed = zlib.compress(content, 9)
    return PDFStream(PDFDictionary({"Filter": PDFName("FlateDecode"), "Length1": len(content)}), packed)


def _moved(thousandths: float) -> str:
    """Return how far the next glyph is moved to the left; nothing if that is invisible."""
    return f"{thousandths:.1f} " if abs(thousandths) >= 0.5 else ""


def _hex(text: str) -> str:
    return text.encode("utf-16-be").hex().upper()

"""What a reader sees on a slide of a PPTX, as blocks: its title, texts, tables, charts, diagrams, formulas and notes.

Invariant: every word that a slide shows is in a block, in the order of the shapes. The elements of the file are read, since the
library passes over alternatives (ECMA-376 part 3), diagrams and formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from highwater.streams.documents.chunking import Block
from highwater.streams.documents.decoding import clean
from highwater.streams.documents.tables import markdown_table

_TITLES = frozenset({"title", "ctrTitle"})
# What a slide is numbered and dated with when it is shown; and on a page of notes also the picture of the slide.
_FILLED_IN = ("slidenum", "datetime")
_NOT_NOTES = frozenset({"sldImg", "sldNum", "hdr", "ftr", "dt"})
# A picture whose description is only the name of its file has none.
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".emf", ".wmf", ".bmp", ".tif", ".tiff", ".webp")
_RELATIONS = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"


def slide_blocks(slide: Any) -> Iterator[Block]:
    """Yield the title of a slide as a heading, then what its shapes show, then its notes."""
    shapes = list(_shapes(slide.shapes.element))
    title = next((shape for shape in shapes if _placeholder(shape) in _TITLES), None)
    if title is not None:
        yield Block(clean("\n".join(_paragraphs(title))), 1)
    for shape in shapes:
        if shape is not title:
            yield from (Block(clean(text)) for text in _texts(shape, slide.part))
    if slide.has_notes_slide:
        for shape in _shapes(slide.notes_slide.shapes.element):
            if _placeholder(shape) not in _NOT_NOTES:
                yield Block(clean("\n".join(text for text in _texts(shape, slide.notes_slide.part))))


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _all(element: Any, *names: str) -> Iterator[Any]:
    return (one for one in element.iter() if _name(one) in names)


def _first(element: Any, *names: str) -> Any:
    return next(_all(element, *names), None)


def _shapes(tree: Any) -> Iterator[Any]:
    """Yield the shapes of a tree, those of groups too; of alternatives the first, as a new program shows it."""
    for element in tree:
        name = _name(element)
        if name in {"sp", "pic", "graphicFrame", "cxnSp"}:
            yield element
        elif name == "grpSp":
            yield from _shapes(element)
        elif name == "AlternateContent":
            ways = [list(_shapes(way)) for way in element if _name(way) in {"Choice", "Fallback"}]
            yield from next(filter(None, ways), [])


def _placeholder(shape: Any) -> str | None:
    found = next((one for one in _all(shape, "ph")), None)
    return None if found is None else found.get("type", "obj")


def _texts(shape: Any, part: Any) -> Iterator[str]:
    """Yield the paragraphs of a shape, its table, chart or diagram, and what describes a picture."""
    if _name(shape) == "graphicFrame":
        yield from _graphic(shape, part)
    else:
        yield from _paragraphs(shape)
    about = _first(shape, "cNvPr")
    told = "" if about is None else (about.get("descr") or "").strip()
    if _name(shape) in {"pic", "graphicFrame"} and not told.lower().endswith(_PICTURE_SUFFIXES):
        yield told


def _paragraphs(shape: Any) -> Iterator[str]:
    return (_paragraph(one) for one in _all(shape, "p") if _name(one.getparent()) in {"txBody", "t", "rich"})


def _paragraph(element: Any) -> str:
    """Return a paragraph with its formulas, and without the number or date of the slide, which is filled in later."""
    parts: list[str] = []
    for one in element.iter():
        name = _name(one)
        if name == "t" and one.text and not _is_filled_in(one.getparent()) and not _is_other_way(one, element):
            parts.append(one.text)
        elif name == "br":
            parts.append("\n")
    return "".join(parts)


def _is_filled_in(element: Any) -> bool:
    return _name(element) == "fld" and (element.get("type") or "").startswith(_FILLED_IN)


def _is_other_way(element: Any, root: Any) -> bool:
    """Return whether an element is in the fallback of an alternative, which says the same."""
    while element is not root:
        element = element.getparent()
        if _name(element) == "Fallback":
            return True
    return False


def _graphic(frame: Any, part: Any) -> Iterator[str]:
    table = _first(frame, "tbl")
    if table is not None:
        rows = [[" ".join(_paragraphs(cell)) for cell in row if _name(cell) == "tc"] for row in _all(table, "tr")]
        yield _table(rows)
    for element in _all(frame, "chart", "relIds"):
        related = element.get(f"{_RELATIONS}id") or element.get(f"{_RELATIONS}dm")
        if related is not None:
            root = _root(part.related_part(related))
            yield from _diagram(root) if _name(element) == "relIds" else _chart(root)


def _root(part: Any) -> Any:
    from pptx.oxml import parse_xml  # noqa: PLC0415 (half a second, in processes that often read something else)

    return parse_xml(part.blob)


def _diagram(root: Any) -> Iterator[str]:
    """Yield the texts of a diagram, in the order in which they were written."""
    for point in _all(root, "pt"):
        yield from _paragraphs(point)


def _chart(root: Any) -> Iterator[str]:
    """Yield the titles of a chart and of its axes, and its values as a table: a row for each category."""
    for title in _all(root, "title"):
        yield from (_paragraphs(title) if _first(title, "rich") is not None else [" ".join(_points(title))])
    series = list(_all(root, "ser"))
    if not series:  # a newer kind of chart (waterfall, treemap): its words
        yield from (one.text for one in _all(root, "pt", "v") if one.text and one.text.strip())
        return
    names = [" ".join(_points(_first(one, "tx"))) for one in series]
    groups: dict[tuple[str, ...], list[int]] = {}
    categories = [_points(_first(one, "cat", "xVal")) for one in series]
    for number, told in enumerate(categories):
        groups.setdefault(tuple(told), []).append(number)
    for places, numbers in groups.items():
        columns = [_points(_first(series[number], "val", "yVal")) for number in numbers]
        rows = list(zip_longest(places, *columns, fillvalue=""))
        yield _table([["", *(names[number] for number in numbers)], *map(list, rows)])
    for one in series:
        for label in _all(one, "rich"):
            yield from (_paragraph(text) for text in _all(label, "p"))


def _points(element: Any) -> list[str]:
    """Return the values that a chart shows, by their places; those of several levels of categories together."""
    if element is None:
        return []
    found: dict[int, str] = {}
    for point in _all(element, "pt"):
        value, place = _first(point, "v"), int(point.get("idx") or 0)
        if value is not None and value.text:
            found[place] = f"{value.text} {found[place]}" if place in found else value.text
    if not found:
        return [one.text for one in _all(element, "v") if one.text]
    return [found.get(place, "") for place in range(min(max(found) + 1, _POINTS_MAX))]


# More points of a series are a measurement that no slide shows one by one, or a place that an attacker made up.
_POINTS_MAX = 10_000


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table of a slide; a single row or column is a list."""
    is_table = len(rows) > 1 and len(rows[0]) > 1
    return (
        markdown_table([[clean(cell) for cell in row] for row in rows]) if is_table else "\n".join(map("\t".join, rows))
    )

"""What is read from handbooks and man pages, and what is taken out of them as a question."""

from __future__ import annotations

from highwater.streams.documents.chunking import Block
from tests.bench.figures import figure
from tests.bench.search_packages import _markdown, _page, _taken_out, _to_hold_out
from tests.bench.search_quality import Judged, _parts, table

RENDERED = """
CAT(1)                     User Commands                     CAT(1)

NAME
       cat, tac \N{MINUS SIGN} print   files on a
       terminal

DESCRIPTION
       Copies each file.  With no file it
       copies standard input.

   Details
       None.

GNU                           2026                           CAT(1)
"""

HANDBOOK = """
.. _top:

======
Spider
======

A :class:`~scrapy.Spider` reads pages, see :ref:`the list <list>`.

Arguments
---------

.. versionadded:: 1.2 with ``-a``

Names
-----
"""


def test_a_man_page_is_its_description_and_its_other_sections():
    """The lines at the margin are headings, the first and the last line none of the text."""
    page = _page("cat.1", RENDERED)
    assert page is not None
    assert page.description == "print files on a terminal"
    assert page.sections == [
        ("DESCRIPTION", "Copies each file. With no file it\ncopies standard input.\n\nDetails\nNone.")
    ]


def test_a_page_without_a_description_is_none():
    """A page that names only itself asks nothing."""
    assert _page("cat.1", RENDERED.replace("\N{MINUS SIGN}", "")) is None


def test_restructured_text_gets_headings_of_markdown():
    """The first kind of underline is the highest; labels are left out, directives and roles leave their words."""
    lines = [line for line in _markdown(HANDBOOK).splitlines() if line]
    assert lines == [
        "# Spider",
        "A scrapy.Spider reads pages, see the list.",
        "## Arguments",
        "1.2 with ``-a``",
        "## Names",
    ]


def test_the_first_sentence_of_a_section_is_held_out():
    """Only of a section with a name of its own, that no question in other words names, and with more text below."""
    sentence, rest = "Spiders read the pages of one site.", "More about it. " * 10
    document = [
        *(Block("One", 1), Block(f"{sentence} {rest}")),
        *(Block("Kept", 1), Block(f"Others read the pages of many sites. {rest}")),
        *(Block("Twice", 1), Block(f"These are not the same section. {rest}")),
        *(Block("Twice", 1), Block(f"Their names are equal, so none is asked. {rest}")),
        *(Block("Short", 1), Block("There is nothing below the sentence here.")),
    ]
    assert [section.name for section in _to_hold_out({"d": document}, {"d > Kept"})] == ["d > One"]
    assert _taken_out(document[1]) == (sentence, Block(rest.strip()))


def test_each_part_of_a_set_has_a_table():
    """The questions of a part are judged alone; MRR is also a multiple of BM25's."""
    answers = [frozenset([0]), frozenset([1]), frozenset([2])]
    made = Judged("ru", [""] * 3, [""] * 3, ["a", "b", "c"], answers, parts={"even": [0, 2], "odd": [1]})
    assert [(part.made.name, part.made.questions, list(part.places)) for part in _parts(made)] == [
        ("ru, even", ["a", "c"], [0, 2]),
        ("ru, odd", ["b"], [1]),
    ]
    figures = [figure("ru, odd, MRR", "ours", "", [0.5]), figure("ru, odd, MRR", "bm25s", "", [0.4])]
    assert table(figures).splitlines() == [
        "| ru, odd | MRR | x bm25s |",
        "| --- | --- | --- |",
        "| ours | .500 | 1.250 |",
        "| bm25s | .400 | 1.000 |",
    ]

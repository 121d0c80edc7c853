"""The rows of a query and dead letters as plain tables: unchanged, in order, with checkboxes if the visitor may select."""

from __future__ import annotations

import re

import pytest

from highwater.api.dashboard.letter_table import letters_html, row_of
from highwater.api.dashboard.pages.sql import rows_html
from highwater.api.dashboard.tables import Sorting
from highwater.api.dead_letters.letter import Letter
from highwater.connectors.kafka.records import Record

TOPIC = "feeds.user-active"
COLUMNS = ("offset", "reason")


def letters(*reasons: str) -> list[Letter]:
    """A dead letter for each reason, the newest first."""
    found = []
    for offset, reason in enumerate(reasons):
        headers = [("dlq_reason", reason.encode()), ("dlq_origin", f"{TOPIC}/2/{offset}".encode())]
        found.append(Letter(Record(f"{TOPIC}.dlq", 0, offset, 1_000 + offset, b"ann", b"v", headers)))
    return found[::-1]


def page(asked: str = "", selection: int | None = None) -> str:
    """A table of three dead letters."""
    sorting = Sorting(asked, COLUMNS, ("offset",), lambda: None)
    return letters_html(sorting.rows(map(row_of, letters("late", "<b>", "big_one"))), sorting, selection)


@pytest.mark.parametrize(
    ("asked", "offsets"), [("", ["2", "1", "0"]), ("offset", ["0", "1", "2"]), ("reason", ["1", "2", "0"])]
)
def test_letters_are_listed_in_the_order_that_was_chosen(asked: str, offsets: list[str]) -> None:
    """Each is a link to its record, which opens the letter; what an event says is text."""
    found = page(asked)
    assert re.findall(r'<tr data-key="(\d+)"', found) == offsets
    assert (f'href="/browse?topic={TOPIC}.dlq&amp;' in found, 'record=0%2F2" data-letter="2"' in found) == (True, True)
    assert ("&lt;b&gt;" in found, "<b>" in found, "big one" in found, "2 / 1" in found) == (True, False, True, True)


def test_letters_have_boxes_for_whoever_may_select() -> None:
    """One each, and one for all; those of another selection are other elements, so that nothing of it stays set."""
    assert "checkbox" not in page()
    found = page(selection=0)
    assert re.findall(r'checkbox" class="hw-box" data-key="0" value="([^"]+)"', found) == ["all", "2", "1", "0"]
    assert found.replace('data-key="0" value', 'data-key="1" value') == page(selection=1)


def test_no_letters_say_what_to_do() -> None:
    """There is no table without a row."""
    assert letters_html([], Sorting("", COLUMNS, (), lambda: None), 0).startswith(
        '<p class="hw-card hw-muted">The filter'
    )


def test_rows_are_shown_as_they_are() -> None:
    """Numbers to the right, nulls empty, nested values as JSON; names and values are text, also a name that looks like markup."""
    columns = [
        {"name": "n#", "type": "VARCHAR"},
        {"name": "<i>", "type": "DECIMAL(9,2)"},
        {"name": "of", "type": "STRUCT(a INTEGER)"},
    ]
    found = rows_html(columns, [["a  b", 1.5, {"a": 1}], [None, -2, None]])
    assert re.findall(r"<th[^>]*>([^<]*)</th>", found) == ["n# ", "&lt;i&gt; ", "of "]
    assert re.findall(r"<td([^>]*)><div>([^<]*)</div>", found) == [
        ("", "a  b"), (' class="hw-number"', "1.5"), ("", "{&quot;a&quot;:1}"),
        ("", ""), (' class="hw-number"', "-2"), ("", ""),
    ]  # fmt: skip

"""Tables that scroll within themselves if they are wider than the page, as HTML.

Invariant: names of columns are escaped here; cells are HTML already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nicegui import events, ui

from highwater.api.dashboard.tiles import filtered
from highwater.api.dashboard.view import text

# A row before it is HTML: the value that each column sorts by, by the name of the column.
Row: TypeAlias = Mapping[str, Any]


class Sort(NamedTuple):
    """What a table is sorted by."""

    column: str
    is_descending: bool = False

    @classmethod
    def of(cls, asked: str, columns: Collection[str]) -> Sort | None:
        """The sort that an address names, as `name` or `-name`; None: none, or an unknown column."""
        column = asked.removeprefix("-")
        return cls(column, asked.startswith("-")) if column in columns else None

    @property
    def parameter(self) -> str:
        """How an address names it."""
        return f"-{self.column}" if self.is_descending else self.column

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Rows in this order; those that are equal stay as they were."""
        return sorted(rows, key=lambda row: row[self.column], reverse=self.is_descending)


@dataclass(frozen=True, slots=True)
class WorkList:
    """The table of the latest queries or jobs, which a tile's link filters by a group of statuses.

    Attributes:
        address: the page, without a filter.
        title: the name of the table.
        columns: as in `table_html`.
        line: one row as HTML.
        groups: whether a status belongs to a group, by the name of the group in the address.
        empty: HTML for a list without any row.
    """

    address: str
    title: str
    columns: tuple[str, ...]
    line: Callable[[Row], str]
    groups: Mapping[str, Callable[[str], bool]]
    empty: str

    def html(self, rows: Sequence[Row], group: str) -> str:
        """Return the rows of a group with a note of their number; all rows for an unknown group."""
        if not rows:
            return f'<div class="hw-card hw-muted">{self.empty}</div>'
        is_of = self.groups.get(group)
        if is_of is None:
            return self._table(rows)
        shown = [row for row in rows if is_of(row["status"])]
        return filtered(len(shown), len(rows), group, self.address) + self._table(shown)

    def _table(self, rows: Iterable[Row]) -> str:
        return table_html(self.columns, "".join(map(self.line, rows)), self.title)


def next_sort(current: Sort | None, column: str, numbers: Collection[str]) -> Sort | None:
    """What a click on the head of a column does: numbers from the largest, names from A; then the other way; then no sort."""
    first = Sort(column, column in numbers)
    if current is None or current.column != column:
        return first
    return Sort(column, not first.is_descending) if current == first else None


def table_html(
    columns: tuple[str, ...],
    lines: str,
    label: str = "",
    *,
    sort: Sort | None = None,
    sortable: Collection[str] = (),
    boxes: str = "",
) -> str:
    """A plain table; `lines` are its rows as HTML. A column whose name ends in `#` holds numbers, as cells of the class do.

    It scrolls within itself where it is wider than the page; `label` names it for a reader of screens. The heads of columns that
    are `sortable` are buttons, whose clicks `Sorting` hears. `boxes` is the head, as HTML, of a first column of boxes.
    """
    region = f' role="region" aria-label="{text(label)}"' if label else ""
    head = f"<th>{boxes}</th>" if boxes else ""
    head += "".join(_head(name, sort, is_sortable=name.removesuffix("#") in sortable) for name in columns)
    return (
        f'<div class="hw-scroll q-table__container" tabindex="0"{region}><table class="q-table hw-lines" style="width:100%">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _head(name: str, sort: Sort | None, *, is_sortable: bool) -> str:
    column = name.removesuffix("#")
    place = ' class="hw-number"' if name.endswith("#") else ' style="text-align:left"'
    if not is_sortable:
        return f"<th{place}>{text(column)}</th>"
    is_chosen = sort is not None and sort.column == column
    order = "" if not is_chosen else "descending" if sort and sort.is_descending else "ascending"
    mark = {"": "↕", "ascending": "↑", "descending": "↓"}[order]
    named = f' aria-sort="{order}"' if order else ""
    return (
        f'<th{place}{named}><button type="button" class="hw-sort" data-sort="{text(column)}">{text(column)}'
        f' <span aria-hidden="true">{mark}</span></button></th>'
    )


class Sorting:
    """What the tables within an element are sorted by, in one browser; `changed` is called after a click on a head."""

    def __init__(
        self, asked: str, columns: Sequence[str], numbers: Collection[str], changed: Callable[[], None]
    ) -> None:
        self._columns = columns
        self._numbers = numbers
        self._changed = changed
        self.sort = Sort.of(asked, columns)

    def listen(self, element: ui.element) -> None:
        """Hear clicks within an element: one listener for all tables in it."""
        element.on(
            "click",
            self._clicked,
            js_handler="(event) => { const one = event.target.closest('[data-sort]'); if (one) emit(one.dataset.sort); }",
        )

    def _clicked(self, event: events.GenericEventArguments) -> None:
        column = str(event.args)
        if column in self._columns:
            self.sort = next_sort(self.sort, column, self._numbers)
            self._changed()

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Rows in the order that was chosen, else as they come."""
        return list(rows) if self.sort is None else self.sort.rows(rows)


def numbers(*cells: str) -> str:
    """Return cells of a plain table that contain numbers, as HTML; the numbers are HTML already."""
    return "".join(f'<td class="hw-number">{cell}</td>' for cell in cells)

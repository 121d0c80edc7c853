"""The dead letters of one topic as a plain table: sorted by a click on a head, opened by their offset, and selected.

Invariant: what is selected stays so while letters are added, wherever the order puts them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import events

from highwater.api.dashboard import figures
from highwater.api.dashboard.record import record_address
from highwater.api.dashboard.tables import Row, Sorting, table_html
from highwater.api.dashboard.view import place, set_html, text
from highwater.api.dead_letters.letter import Letter

_COLUMNS = (
    "arrived (UTC)", "offset#", "reason", "detail", "consumer", "came from partition / offset", "state",
)  # fmt: skip
_SORTED = ("arrived (UTC)", "offset", "reason", "consumer", "state")
_NUMBERS = ("offset",)
_EMPTY = "The filter finds no dead letter; choose another reason, or all states"
# A click on an offset opens the letter; elsewhere in the table the handler of the heads hears it.
_ON_OPEN = """(event) => {
  const one = event.target.closest("a[data-letter]");
  if (!one) return;
  event.preventDefault();
  emit(one.dataset.letter);
}"""
# The box of the head sets all of them; the offsets of those that are set are sent.
_ON_SELECT = """(event) => {
  const changed = event.target;
  const boxes = [...changed.closest("table").querySelectorAll("tbody input[type=checkbox]")];
  if (changed.closest("thead")) for (const one of boxes) one.checked = changed.checked;
  emit(boxes.filter((one) => one.checked).map((one) => one.value));
}"""


class LetterTable:
    """The table in one browser; `on_open` gets the offset of a letter."""

    def __init__(self, on_open: Callable[[int], Awaitable[None]], *, may_select: bool) -> None:
        self._on_open = on_open
        self._may_select = may_select
        self._letters: Sequence[Letter] = ()
        self._selections = 0
        self.selected: set[int] = set()
        self._sorting = Sorting("", _SORTED, _NUMBERS, self._show)

    def build(self) -> None:
        """Add the table."""
        self._table = place().classes("hw-wrap hw-records")
        self._table.on("click", self._open, js_handler=_ON_OPEN)
        self._table.on("change", self._select, js_handler=_ON_SELECT)
        self._sorting.listen(self._table)

    def show(self, letters: Sequence[Letter]) -> None:
        """Show these letters, in this order unless another was chosen."""
        self._letters = letters
        self._show()

    def unselect(self) -> None:
        """Select none."""
        self.selected.clear()
        self._selections += 1  # boxes of another selection are other elements, which nobody has clicked
        self._show()

    def _show(self) -> None:
        rows = self._sorting.rows(map(row_of, self._letters))
        selection = self._selections if self._may_select else None
        set_html(self._table, letters_html(rows, self._sorting, selection))

    async def _open(self, event: events.GenericEventArguments) -> None:
        await self._on_open(int(event.args))

    def _select(self, event: events.GenericEventArguments) -> None:
        self.selected = {int(offset) for offset in event.args}


def row_of(letter: Letter) -> Row:
    """Return the position of a letter, and what each column shows of it."""
    document = letter.document()
    return {
        "position": letter.position,
        "arrived (UTC)": figures.iso_text(document["arrived_at"]),
        "offset": letter.position.offset,
        "reason": (document["reason"] or "unknown").replace("_", " "),
        "detail": document["detail"] or "",
        "consumer": document["group"] or "",
        "came from partition / offset": _origin(document["origin"] or ""),
        "state": "waits" if letter.is_open else f"{letter.handlings[-1].action.value} by {letter.handlings[-1].by}",
    }


def letters_html(rows: Sequence[Row], sorting: Sorting, selection: int | None) -> str:
    """Return the letters as a table, with a box for each if they may be selected; another `selection` has other boxes."""
    if not rows:
        return f'<p class="hw-card hw-muted">{_EMPTY}</p>'
    lines = "".join(_line(row, selection) for row in rows)
    box = "" if selection is None else _box(selection, "all", "Select every dead letter of this page")
    return table_html(_COLUMNS, lines, "Dead letters", sort=sorting.sort, sortable=_SORTED, boxes=box)


def _line(row: Row, selection: int | None) -> str:
    offset = row["offset"]
    box = "" if selection is None else f"<td>{_box(selection, offset, f'Select the dead letter at {offset}')}</td>"
    address = record_address(row["position"])
    opens = (
        f'<a href="{text(address)}" data-letter="{offset}" aria-label="Show the dead letter at {offset}">{offset:,}</a>'
    )
    texts = "".join(f'<td class="hw-long">{text(row[name])}</td>' for name in _COLUMNS[2:])
    return (
        f'<tr data-key="{offset}">{box}<td class="hw-keep">{text(row["arrived (UTC)"])}</td>'
        f'<td class="hw-number">{opens}</td>{texts}</tr>'
    )


def _box(selection: int, value: Any, label: str) -> str:
    return f'<input type="checkbox" class="hw-box" data-key="{selection}" value="{value}" aria-label="{label}">'


def _origin(position: str) -> str:
    """Return its original position; the page names the topic."""
    _, _, place_of = position.partition("/")
    return place_of.replace("/", " / ")

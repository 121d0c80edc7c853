"""Tables that scroll within themselves if they are wider than the page: plain ones as HTML, and those of the library.

Invariant: names of columns are escaped here; cells are HTML already.
"""

from __future__ import annotations

from nicegui import ui

from highwater.api.dashboard.view import text


def table_html(columns: tuple[str, ...], lines: str, label: str = "") -> str:
    """A plain table; `lines` are its rows as HTML. A column whose name ends in `#` holds numbers, as cells of the class do.

    It scrolls within itself where it is wider than the page; `label` names it for a reader of screens.
    """
    region = f' role="region" aria-label="{text(label)}"' if label else ""
    head = "".join(
        f'<th class="hw-number">{text(name[:-1])}</th>'
        if name.endswith("#")
        else f'<th style="text-align:left">{text(name)}</th>'
        for name in columns
    )
    return (
        f'<div class="hw-scroll q-table__container" tabindex="0"{region}><table class="q-table hw-lines" style="width:100%">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def numbers(*cells: str) -> str:
    """Return cells of a plain table that contain numbers, as HTML; the numbers are HTML already."""
    return "".join(f'<td class="hw-number">{cell}</td>' for cell in cells)


def scrolled(table: ui.table, label: str) -> ui.table:
    """Make a table of the library focusable, so that the keyboard scrolls it on a phone, even without rows."""
    return table.classes("hw-outer").props(f'tabindex=0 role=region aria-label="{label}"')

"""Why something is served as it is, as a graph and as a collapsible tree: the same card on every page that has one.

Invariant: a visitor without access to a thing gets no explanation of it; the page with the card has checked that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nicegui import ui

from highwater.api.dashboard import figures, graph
from highwater.api.dashboard.addresses import step_address
from highwater.api.dashboard.view import View, note, set_html, text
from highwater.api.explain.routes import EXPLAIN, Ask, explained

# Expanded steps: down to the request, and the path to one event; the others are one click away.
_OPEN_DEPTH = 4
_PAGES = {"/insight": "the insight", "/match": "the match"}


class ExplainCard(NamedTuple):
    """The card in one browser; `clear` removes an earlier explanation, for example of another thing."""

    card: ui.column
    clear: Callable[[], None]


def explain_card(view: View, title: str, ask: Ask, *, anchor: str = "explain", label: str = "Explain") -> ExplainCard:
    """Return a card with an explain button; links to the card use `anchor`, and `label` is on the button."""
    with ui.column().classes("hw-card") as card:
        ui.html(f'<h2 class="hw" id="{anchor}">{text(title)}</h2>', sanitize=False)
        note(
            "The events behind the current answer, newest first, each with its position in the log and the time to the next."
        )
        button = ui.button(label, icon="account_tree").props("outline no-caps")
        state = ui.html("", sanitize=False).classes("full-width hw-muted").props("role=status")
        drawn = ui.html("", sanitize=False).classes("full-width hw-scroll")
        drawn.props('tabindex=0 role=region aria-label="Graph of the explanation"').set_visibility(False)
        tree = ui.html("", sanitize=False).classes("full-width hw-scroll")

    def address_of(step: Mapping[str, Any]) -> str | None:
        return step_address(step, sees_all=view.sees_all)

    async def explain() -> None:
        button.disable()
        state.set_content("Reading the log; this takes about a second…")
        try:
            await view.count(EXPLAIN)
            document = (await explained(view.services, ask)).document(view.services.settings.trace_url)
            set_html(drawn, graph.draw(document["tree"], address_of))
            drawn.set_visibility(True)
            set_html(
                tree,
                f'<h3 class="hw">As a list</h3><ul class="hw-tree">{step_html(document["tree"], 0, address_of)}</ul>',
            )
            state.set_content("")
            view.tell(None)
        except Exception as error:  # noqa: BLE001 - the page shows any error and stays
            view.tell(str(error))
            state.set_content("No explanation is available; the reason is at the top of the page. Try again.")
        finally:
            button.enable()

    def clear() -> None:
        set_html(drawn, "")
        drawn.set_visibility(False)
        set_html(tree, "")
        state.set_content("")

    button.on_click(explain)
    return ExplainCard(card, clear)


def step_html(step: Mapping[str, Any], depth: int, address_of: graph.AddressOf, *, is_first: bool = True) -> str:
    """Return a step of an explanation and its causes, as nested lists that open and close by keyboard."""
    delay = step.get("delay_ms")
    told = (
        f' <span class="hw-muted hw-small">{figures.seconds(delay / 1000)} before it</span>'
        if delay is not None
        else ""
    )
    numbers = " ".join(
        f"{name}={_told(name, value)}" for name, value in step.get("numbers", {}).items() if value not in (None, "")
    )
    missing = f' <span class="hw-warn">{text(step["missing"])}</span>' if step.get("missing") else ""
    line = (
        f"<b>{text(step['kind'])}</b> {text(step['about'])}{told}{missing}<br>"
        f'<span class="hw-mono hw-muted">{text(step.get("position") or "")} {figures.iso_text(step.get("at"))} '
        f"{text(numbers)}</span>"
    )
    links = _links(step, address_of(step))
    # A request before the events that it includes has no cause: the expanded path continues beside it.
    way = next((number for number, cause in enumerate(step.get("causes", ())) if cause.get("causes")), 0)
    causes = "".join(
        step_html(cause, depth + 1, address_of, is_first=is_first and number == way)
        for number, cause in enumerate(step.get("causes", ()))
    )
    if not causes:
        return f"<li>{line}{links}</li>"
    is_open = " open" if is_first or depth < _OPEN_DEPTH else ""
    return f'<li><details{is_open}><summary>{line}</summary>{links}<ul class="hw-tree">{causes}</ul></details></li>'


def _links(step: Mapping[str, Any], address: str | None) -> str:
    """Return the links of a step; beside the control that expands it, because links inside it are not accessible to everyone."""
    found = "" if address is None else f'<a href="{text(address)}">Open {text(_page_name(step, address))}</a> '
    if step.get("trace_url"):
        found += f'<a href="{text(step["trace_url"])}" rel="noreferrer">Open the trace</a>'
    return f'<div class="hw-small">{found}</div>' if found else ""


def _page_name(step: Mapping[str, Any], address: str) -> str:
    return _PAGES.get(address.partition("?")[0]) or f"the record {step.get('position')}"


def _told(name: str, value: object) -> str:
    """Return a number of a step; times in UTC, as beside each step."""
    return figures.moment(value).replace(" ", "T") if name.endswith("_at") and isinstance(value, int) else str(value)

"""One schema: its versions, the differences between two of them, and a check of a possible next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import topic_address
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import loading
from highwater.api.dashboard.view import View, chip, facts, heading, note, page, place, segment, set_html, text
from highwater.schemas.errors import HighwaterError

_REFRESH_SECONDS = 10.0
_TONES = {"added": "hw-good", "removed": "hw-bad", "changed": "hw-warn"}
# The registry's compatibility levels for the next version.
_LEVELS = {
    "BACKWARD": "readers with the new version read events of the version before it",
    "BACKWARD_TRANSITIVE": "readers with the new version read events of every version before it",
    "FORWARD": "readers with the version before it read events of the new version",
    "FORWARD_TRANSITIVE": "readers with any earlier version read events of the new version",
    "FULL": "readers with either of two neighbouring versions read events of the other",
    "FULL_TRANSITIVE": "readers with any version read events of every other version",
    "NONE": "any schema may be the next version",
}


def register() -> None:
    """Register the page."""
    page("/schemas/{name}", "Schema")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Schemas belong to the whole deployment; this key is bound to one user.")
        return
    shown = _Schema(view, unquote(view.named("name")))
    shown.build()
    view.live(_REFRESH_SECONDS, shown.refresh)


class _Schema:
    """The page in one browser."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._path = f"/api/schemas/{segment(name)}"
        self._name = name
        self._schema: dict[str, Any] | None = None

    def build(self) -> None:
        """Add the elements; the form is shown if the schema exists."""
        self._head = place(loading("the schema"))
        with ui.column().classes("full-width") as self._body:
            with ui.row().classes("hw-row"):
                self._from = ui.select([], label="From version", on_change=self._compare).props("dense outlined")
                self._to = ui.select([], label="To version", on_change=self._compare).props("dense outlined")
                for one in (self._from, self._to):
                    one.style("min-width:9rem")
            self._diff = place()
            self._text = place()
            with ui.column().classes("hw-card full-width"):
                heading("Check a next version")
                note("Asks the registry whether it would accept this schema. Nothing is registered.")
                self._candidate = ui.textarea("Schema").props("outlined rows=14").classes("full-width hw-mono")
                ui.button("Check", icon="rule", on_click=self._check).props("no-caps outline")
                self._verdict = ui.html("", sanitize=False).props("role=status").classes("full-width")
        self._body.set_visibility(visible=False)

    async def refresh(self) -> None:
        """Read it again; the selected comparison stays."""
        schema = await self._view.find(self._path)
        if schema is None:
            set_html(self._head, _missing(self._name))
            self._body.set_visibility(visible=False)
            return
        if schema == self._schema:
            return
        self._schema = schema
        set_html(self._head, _head(schema))
        versions = [one["version"] for one in schema["versions"]]
        self._from.set_options(versions, value=versions[max(0, len(versions) - 2)])
        self._to.set_options(versions, value=versions[-1])
        if not self._candidate.value:
            self._candidate.set_value(schema["versions"][-1]["text"])
        self._body.set_visibility(visible=True)
        await self._compare()

    async def _compare(self) -> None:
        before, after = self._from.value, self._to.value
        if self._schema is None or before is None or after is None:
            return
        try:
            diff = await self._view.get(f"{self._path}/diff", **{"from": before, "to": after})
        except HighwaterError as error:
            set_html(self._diff, f'<div class="hw-banner hw-bad" role="alert">{text(error)}</div>')
            return
        set_html(self._diff, diff_html(diff))
        chosen = next(one for one in self._schema["versions"] if one["version"] == after)
        set_html(self._text, _whole(chosen))

    async def _check(self) -> None:
        try:
            answer = await self._view.send("POST", f"{self._path}/check", body={"schema": self._candidate.value or ""})
        except HighwaterError as error:
            self._verdict.set_content(f'<div class="hw-banner hw-bad">{text(error)}</div>')
            return
        self._verdict.set_content(verdict_html(answer.json()))


def _missing(name: str) -> str:
    return (
        f'<div class="hw-card">The schema registry has no subject <b>{text(name)}</b>.'
        ' <a href="/schemas">See all schemas</a></div>'
    )


def _head(schema: Mapping[str, Any]) -> str:
    level = schema["compatibility"] or "unknown"
    shown = {"compatibility": text(level) + (f": {text(_LEVELS[level])}" if level in _LEVELS else "")}
    shown["topic"] = (
        "no topic has this name"
        if schema["topic"] is None
        else f'<a href="{text(topic_address(schema["topic"]))}">{text(schema["topic"])}</a>'
    )
    lines = "".join(
        f"<tr>{numbers(str(one['version']), str(one['schema_id']))}<td>{text(one['kind'])}</td>"
        f"{numbers(figures.count(len(one['text'])))}</tr>"
        for one in reversed(schema["versions"])
    )
    table = table_html(("version#", "schema id#", "kind", "characters#"), lines, "Versions")
    card = f'<div class="hw-card"><h2 class="hw">{text(schema["subject"])}</h2>{facts(shown)}</div>'
    return f'{card}<h2 class="hw" id="versions">Versions</h2>{table}'


def diff_html(diff: Mapping[str, Any]) -> str:
    """Return the differences between two versions."""
    if diff["from"] == diff["to"]:
        return f'<p class="hw-muted">This is version {diff["to"]} alone; choose another one to compare it with.</p>'
    title = f'<h2 class="hw">From version {diff["from"]} to version {diff["to"]}</h2>'
    if not diff["lines"]:
        return f'{title}<p class="hw-muted">The versions do not differ.</p>'
    lines = "".join(
        f'<tr><td>{chip(one["kind"], _TONES[one["kind"]])}</td><td class="hw-mono">{text(one["field"])}</td>'
        f"<td>{_declared(one['before'])}</td><td>{_declared(one['after'])}</td></tr>"
        for one in diff["fields"]
    )
    fields = table_html(("change", "field", "before", "after"), lines, "Changed fields") if lines else ""
    return f"{title}{fields}{_lines(diff['lines'])}"


def _declared(words: str | None) -> str:
    return figures.DASH if words is None else text(words)


def _lines(lines: Sequence[str]) -> str:
    """Return a unified diff; signs show the same as the colours."""
    tones = {"+": "hw-good", "-": "hw-bad", "@": "hw-muted"}
    shown = "\n".join(
        f'<span class="{tones[line[0]]}">{text(line)}</span>' if line[:1] in tones else text(line) for line in lines
    )
    return (
        '<div class="hw-card hw-scroll" tabindex="0" role="region" aria-label="Changed lines">'
        f'<pre class="hw" style="white-space:pre">{shown}</pre></div>'
    )


def _whole(version: Mapping[str, Any]) -> str:
    return (
        f"<details><summary>Version {version['version']} whole</summary>"
        f'<div class="hw-card"><pre class="hw">{text(version["text"])}</pre></div></details>'
    )


def verdict_html(check: Mapping[str, Any]) -> str:
    """Return whether a schema could be the next version."""
    level = text(check["compatibility"] or "the level of the registry")
    if check["is_compatible"]:
        return (
            f'<div class="hw-banner hw-good">The registry would accept this schema as the next version ({level}).</div>'
        )
    reasons = "".join(f"<li>{text(one)}</li>" for one in check["reasons"])
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return f'<div class="hw-banner hw-bad">This schema is not compatible with the versions before it ({level}).{listed}</div>'

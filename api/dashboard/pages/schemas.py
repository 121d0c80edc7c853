"""Subjects of the schema registry: those of the catalogue, and those of other applications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import schema_address, topic_address
from highwater.api.dashboard.searched import searched
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.view import View, note, page, text

_REFRESH_SECONDS = 10.0


def register() -> None:
    """Make the page known."""
    page("/schemas", "Schemas")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Schemas belong to the whole deployment; this key is bound to one user.")
        return
    searched(view, "schema", "subject", schemas_html, _REFRESH_SECONDS)


def schemas_html(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The subjects in two tables: of the catalogue, and of others."""
    if not schemas:
        return '<p class="hw-muted">No schema has this name.</p>'
    own = [one for one in schemas if one["is_catalogued"]]
    others = [one for one in schemas if not one["is_catalogued"]]
    return "".join(
        f'<h2 class="hw">{title}</h2>{table_html(("subject", "topic"), _lines(found), title)}'
        for title, found in (("Schemas of the catalogue", own), ("Other schemas", others))
        if found
    )


def _lines(schemas: Sequence[Mapping[str, Any]]) -> str:
    return "".join(
        f'<tr><td><a href="{text(schema_address(one["subject"]))}">{text(one["subject"])}</a></td><td>{_topic(one)}</td></tr>'
        for one in schemas
    )


def _topic(schema: Mapping[str, Any]) -> str:
    topic = schema["topic"]
    return figures.DASH if topic is None else f'<a href="{text(topic_address(topic))}">{text(topic)}</a>'

"""One record in full: its value as a tree, headers, bytes, schema, its cause, and where to search for its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import orjson
from nicegui import ui

from highwater.api.dashboard.browsing import OLDEST, Browsing
from highwater.api.dashboard.view import View, facts, heading, text
from highwater.connectors.kafka.foreign_values import schema_named
from highwater.connectors.kafka.reading import Decoder, open_reader, read_record
from highwater.connectors.kafka.records import Record
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.envelope import caused_by
from highwater.schemas.exact_json import write_json
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS
from highwater.streams.wording import counted

# The beginning of a value identifies it; `highwater replay` returns all of it.
_BYTES_SHOWN, _BYTES_A_LINE = 2_048, 16
_OUTSIDE = {"api", "outside"}
# Expanded branches; deeper ones are a click away.
_OPEN_DEPTH = 2


async def show_record(view: View, position: Position) -> None:
    """Open a record of the log over the page.

    Raises:
        UnavailableError: Kafka or the registry does not answer.
    """
    access = view.services.settings.registry_access()
    decoder = await Decoder.of(position.topic, Registry(access))
    record = await asyncio.to_thread(_read, view.services.settings.kafka_client(), position)
    if record is None:
        ui.notify(f"{position} is not in the log; it was deleted or compacted", type="warning")
        return
    document = await asyncio.to_thread(decoder.shown, record)
    value = document.get("value", document.get("undecodable"))
    pretty = write_json(value, orjson.OPT_INDENT_2).decode()
    with ui.dialog() as dialog, ui.card():
        heading(document["position"])
        ui.html(facts(_facts(record, document)), sanitize=False).classes("full-width")
        ui.html(f'<ul class="hw-tree hw-mono">{tree_html("value", value)}</ul>', sanitize=False).classes(
            "full-width hw-scroll"
        )
        ui.html(
            f"<details><summary>Bytes</summary><pre class='hw'>{text(hex_of(record.value or b''))}</pre></details>",
            sanitize=False,
        ).classes("full-width hw-scroll")
        with ui.row().classes("hw-row"):
            ui.button("Copy value", icon="content_copy", on_click=lambda: ui.clipboard.write(pretty)).props(
                "flat no-caps"
            )
            ui.button("Close", on_click=dialog.close).props("flat no-caps autofocus")
    dialog.on("hide", dialog.delete)
    dialog.open()


def _read(client: Mapping[str, str], position: Position) -> Record | None:
    with closing(open_reader(client)) as reader:
        return read_record(reader, position)


def _facts(record: Record, document: Mapping[str, Any]) -> dict[str, str]:
    """Return names and values, as HTML."""
    link = record_address(record.position)
    told = {"link": f'<a href="{text(link)}">this record</a>', "arrived": text(document["timestamp"])}
    told |= {"key": text(document["key"]), "bytes": f"{len(record.value or b''):,}"}
    told |= {f"header {name}": text(value) for name, value in document["headers"].items()}
    named = None if record.value is None else schema_named(record.value, record.headers)
    told["schema"] = named or (
        "none: a tombstone" if record.value is None else "none: neither the value nor a header names one"
    )
    cause = caused_by(record.headers)
    if cause is not None:
        told["caused by"] = f'<a href="{text(record_address(cause))}">{text(cause)}</a>'
    told["what it caused, if anything"] = (
        ", ".join(
            f'<a href="{text(_effects_address(topic, record.position, document))}">in {text(topic)}</a>'
            for topic in effect_topics(record.topic)
        )
        or "the product writes no other topic of its subsystem"
    )
    return told


def record_address(position: Position) -> str:
    """Return the page with a record open."""
    return Browsing(topic=position.topic, record=f"{position.partition}/{position.offset}").address()


def effect_topics(topic: str) -> list[str]:
    """Return the topics that may contain effects of this one's records: those of its subsystem that the product itself writes."""
    if topic.removesuffix(DEAD_LETTER_SUFFIX) not in TOPICS:
        return []
    subsystem = topic.partition(".")[0]
    return [
        one.name
        for one in TOPICS.values()
        if one.name != topic and one.name.startswith(f"{subsystem}.") and not set(one.producers) <= _OUTSIDE
    ]


def _effects_address(topic: str, cause: Position, document: Mapping[str, Any]) -> str:
    """Return a search for records that name a record as their cause; they arrived after it."""
    where = f"'ce_causedby' in headers && headers.ce_causedby == '{cause}'"
    return Browsing(topic=topic, since=document["timestamp"], order=OLDEST, where=where, search="1").address()


def tree_html(name: str, value: Any, depth: int = 0) -> str:
    """Return a value as nested lists that open and close by keyboard."""
    if isinstance(value, Mapping):
        parts = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, list):
        parts = [(str(number), one) for number, one in enumerate(value)]
    else:
        return f"<li><b>{text(name)}</b> {text(write_json(value).decode())}</li>"
    inside = "".join(tree_html(key, one, depth + 1) for key, one in parts)
    is_open = " open" if depth < _OPEN_DEPTH else ""
    summary = f"<summary><b>{text(name)}</b> ({len(parts)})</summary>"
    return f'<li><details{is_open}>{summary}<ul class="hw-tree">{inside}</ul></details></li>'


def hex_of(raw: bytes) -> str:
    """Return bytes as hexadecimal digits with their offsets and letters, from the beginning."""
    lines = []
    for begin in range(0, min(len(raw), _BYTES_SHOWN), _BYTES_A_LINE):
        part = raw[begin : begin + _BYTES_A_LINE]
        letters = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in part)
        lines.append(f"{begin:06x}  {part.hex(' '):<{_BYTES_A_LINE * 3}} {letters}")
    if len(raw) > _BYTES_SHOWN:
        lines.append(f"… and {counted(len(raw) - _BYTES_SHOWN, 'byte')} more")
    return "\n".join(lines)

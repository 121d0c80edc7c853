"""The form of an event, generated from its topic's schema, and the JSON document of its values.

Invariant: pure functions. The API checks the document as any client's, and as `highwater publish` does
(`schemas/json_events.py`, `streams/validation.py`); here only malformed JSON is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from highwater.api.broker.schema_diff import type_name
from highwater.schemas.avro_files import schema_text
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.topics import TOPICS

Widget: TypeAlias = Literal["text", "time", "integer", "number", "yes or no", "lines", "bytes", "JSON"]
_WIDGETS: Mapping[str, Widget] = {
    "string": "text",
    "boolean": "yes or no",
    "long": "integer",
    "int": "integer",
    "double": "number",
    "float": "number",
    "timestamp-millis": "time",
    "array of string": "lines",
    "bytes": "bytes",
}
# Input hints, where they differ from the name of the type.
_WORDS = {"bytes": "base64, or a JSON array of numbers", "timestamp-millis": "time", "array of string": "one a line"}


class FormField(NamedTuple):
    """A field of an event. `about`: its description in the schema; `is_optional`: it may be left empty."""

    name: str
    widget: Widget
    kind: str
    about: str
    is_optional: bool


def form_of(topic: str) -> list[FormField]:
    """Return the fields of a topic's events, required ones first, otherwise in the order of the schema."""
    found = []
    for field in json.loads(schema_text(TOPICS[topic].schema))["fields"]:
        kind = field["type"]
        if isinstance(kind, list):
            kind = next(part for part in kind if part != "null")
        words = type_name(kind)
        widget = _WIDGETS.get(words, "JSON")
        words = _WORDS.get(words, words)
        found.append(FormField(field["name"], widget, words, field.get("doc", ""), "default" in field))
    return sorted(found, key=lambda one: one.is_optional)


def document_of(fields: Sequence[FormField], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event as JSON; an empty field is left out.

    Raises:
        InvalidEventError: the text of a field is not the required JSON.
    """
    document = {}
    for field in fields:
        value = values.get(field.name)
        if field.widget == "yes or no":
            document[field.name] = bool(value)
        elif isinstance(value, str) and value.strip():
            document[field.name] = _value(field, value)
    return document


def _value(field: FormField, words: str) -> Any:
    stripped = words.strip()
    match field.widget:
        case "text":
            return words
        case "lines":
            return [line.strip() for line in words.splitlines() if line.strip()]
        case "time" | "integer":
            return int(stripped) if _is_integer(stripped) else stripped  # not an integer: the API reports it
        case "bytes" if not stripped.startswith("["):
            return stripped
        case _:
            try:
                return json.loads(words)
            except ValueError as error:
                raise InvalidEventError("not_json", f"{field.name} is not JSON: {error}", field=field.name) from error


def _is_integer(words: str) -> bool:
    return words.removeprefix("-").isascii() and words.removeprefix("-").isdecimal()

"""The JSON answers of operations, as the OpenAPI document describes them.

Invariant. A declared answer is described but neither checked nor serialized again: a route sends the bytes that it
built, and `tests/integration/documented.py` compares every answer that a test receives with the document. The schemas
are built when the document is first requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from highwater.api.core.openapi import fields

_REFERENCE = "#/components/schemas/{model}"
_JSON = "application/json"
# The types of answers by name, as routes declare them.
_DECLARED: dict[str, type] = {}

Time: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class DocumentPending(TypedDict):
    """202: the document is being built. `Retry-After` says when to try again."""

    status: Annotated[str, Field(json_schema_extra={"const": "pending"})]
    detail: str


def answer(
    *types: type,
    status: int = HTTPStatus.OK,
    names: Iterable[str] = (),
    description: str | None = None,
    media_type: str = _JSON,
) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` entry for a JSON answer of one of these types; `names` as in `fields`.

    Raises:
        ValueError: another type has that name.
    """
    references = []
    for one in types:
        if _DECLARED.setdefault(one.__name__, one) is not one:
            raise ValueError(f"two answers are called {one.__name__}")
        references.append({"$ref": _REFERENCE.format(model=one.__name__)})
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    found: dict[str, Any] = {"content": {media_type: {"schema": schema}}}
    found |= fields(*names)[200] if names else {}
    if description:
        found["description"] = description
    return {int(status): found}


def add_answers(document: dict[str, Any]) -> None:
    """Add the schemas of the answers and of the types they use."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    adapters: list[tuple[str, Literal["serialization"], TypeAdapter[Any]]] = [
        (name, "serialization", TypeAdapter(one)) for name, one in sorted(_DECLARED.items())
    ]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE)
    for name, schema in found["$defs"].items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas are called {name}")

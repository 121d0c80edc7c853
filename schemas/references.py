"""Puts the schemas that an Avro schema refers to into it: a registry stores them as schemas of other subjects, by full name.

Invariant: the result is one self-contained schema, with each definition at the first use of its name (Avro 1.12, "Names"), so the
limits of `shapes.py` see all of it. The registry names what a schema refers to; other names are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from highwater.schemas.shapes import UnsafeSchemaError

# More than any schema of people has; each is a request to the registry.
REFERENCES_MAX = 100
_NAMED = ("record", "error", "enum", "fixed")


def with_references(text: str, referenced: Mapping[str, str]) -> str:
    """Return a schema with the schemas it refers to in it.

    Args:
        text: the schema, in JSON.
        referenced: the schemas by the full name of their type, in JSON; they may refer to each other.

    Raises:
        UnsafeSchemaError: one is not JSON, or too deep for the reader.
    """
    if not referenced:
        return text
    try:
        found = {name: orjson.loads(one) for name, one in referenced.items()}
        return orjson.dumps(_Inliner(found).schema(orjson.loads(text), "")).decode()
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise UnsafeSchemaError("the schema, or one that it refers to, is not JSON that can be read") from error


class _Inliner:
    def __init__(self, referenced: Mapping[str, Any]) -> None:
        self._left = dict(referenced)

    def schema(self, found: Any, namespace: str) -> Any:
        """Return a schema within a namespace; the first use of a referenced name is its definition."""
        if isinstance(found, str):
            name = found if "." in found or not namespace else f"{namespace}.{found}"
            for one in (name, found):
                if one in self._left:
                    return self.schema(self._left.pop(one), "")
            return found
        if isinstance(found, list):
            return [self.schema(one, namespace) for one in found]
        if not isinstance(found, dict):
            return found
        if found.get("type") in _NAMED:
            namespace = _namespace_of(found, namespace)
        within = {
            name: self.schema(found[name], namespace)
            for name in ("type", "items", "values")
            if name in found and found[name] not in _NAMED
        }
        if isinstance(found.get("fields"), list):
            within["fields"] = [
                {**one, "type": self.schema(one.get("type"), namespace)} if isinstance(one, dict) else one
                for one in found["fields"]
            ]
        return {**found, **within}


def _namespace_of(named: Mapping[str, Any], enclosing: str) -> str:
    name, space = named.get("name"), named.get("namespace")
    if isinstance(name, str) and "." in name:
        return name.rpartition(".")[0]
    return space if isinstance(space, str) else enclosing

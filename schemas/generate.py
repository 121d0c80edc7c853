"""Generates the typed records and the names of their topics, one module per subsystem; `--check` fails if one is outdated."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from highwater.schemas.avro_files import schema_names, schema_text
from highwater.schemas.topics import TOPICS

_PRIMITIVES = {"string": "str", "bytes": "bytes", "boolean": "bool", "int": "int", "long": "int", "double": "float"}
_HEADER = '''"""Typed records of the {subsystem} events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName
'''


def _annotation(node: Any, nested: list[dict[str, Any]]) -> str:
    if isinstance(node, list):
        return " | ".join(sorted((_annotation(item, nested) for item in node), key=lambda text: text == "None"))
    if isinstance(node, dict):
        kind = node["type"]
        if kind == "array":
            return f"list[{_annotation(node['items'], nested)}]"
        if kind == "map":
            return f"dict[str, {_annotation(node['values'], nested)}]"
        if kind == "record":
            nested.append(node)
            return str(node["name"])
        return _annotation(kind, nested)
    return "None" if node == "null" else _PRIMITIVES[node]


def _record(node: dict[str, Any]) -> list[str]:
    nested: list[dict[str, Any]] = []
    lines = [f"class {node['name']}(TypedDict):", f'    """{node.get("doc", "Part of a record.")}"""', ""]
    lines += [f"    {field['name']}: {_annotation(field['type'], nested)}" for field in node["fields"]]
    before = [line for inner in nested for line in (*_record(inner), "", "")]
    return before + lines


def render(subsystem: str) -> str:
    """Return the module of one subsystem."""
    records = [json.loads(schema_text(name)) for name in schema_names() if name.startswith(f"{subsystem}/")]
    body = "\n".join(line for record in records for line in ("", "", *_record(record)))
    return _HEADER.format(subsystem=subsystem) + body.rstrip("\n") + "\n\n\n" + "\n".join(_topics(subsystem)) + "\n"


def _topics(subsystem: str) -> list[str]:
    """Return the names of the topics whose events are of this subsystem: `feeds.plan-changed` is `PLAN_CHANGED` in `feeds`."""
    named = {
        topic.name.split(".", 1)[1].replace("-", "_").upper(): topic
        for topic in TOPICS.values()
        if topic.schema.startswith(f"{subsystem}/")
    }
    return [
        f'{constant}: Final = TopicName[{topic.schema.split("/")[1].split(".")[0]}]("{topic.name}")'
        for constant, topic in named.items()
    ]


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare, `schemas/<subsystem>.py`; return the exit status."""
    stale = []
    for subsystem in sorted({name.split("/")[0] for name in schema_names()}):
        path = Path(__file__).parent / f"{subsystem}.py"
        text = render(subsystem)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make generate`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

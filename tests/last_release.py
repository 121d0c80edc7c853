"""Writes `tests/contract/last_release.json`: what this version has of migrations and schemas, for the version after it.

    python -m tests.last_release

It is run once, when a version has been released (docs/releasing.md); the contract tests of the next version compare with it.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

from highwater.connectors.postgres.migrate import known_migrations
from highwater.schemas.avro_files import schema_names, schema_text
from tests import ROOT

RELEASE = ROOT / "tests" / "contract" / "last_release.json"


def without_docs(node: Any) -> Any:
    """A schema without its docs, which may change at any time."""
    if isinstance(node, list):
        return [without_docs(one) for one in node]
    if isinstance(node, dict):
        return {name: without_docs(value) for name, value in node.items() if name != "doc"}
    return node


def release() -> dict[str, Any]:
    """This version, as its successor is compared with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "version": project["version"],
        "migrations": known_migrations(),
        "schemas": {name: without_docs(json.loads(schema_text(name))) for name in sorted(schema_names())},
    }


def text_of(made: dict[str, Any]) -> str:
    """It as the file holds it: a line for each migration and each schema, so that a change of one is a line of a diff."""
    parts = [f'"version": {json.dumps(made["version"])}']
    for name in ("migrations", "schemas"):
        lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in made[name].items()]
        parts.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    RELEASE.write_text(text_of(release()), encoding="utf-8")

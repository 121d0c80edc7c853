"""`/docs`: the OpenAPI document as one page, and `/problems`: the types of errors; without scripts or external files.

Invariant: they show only what `/openapi.json` and `problems.KINDS` contain, so they cannot become stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response

from highwater.api.core.access import PUBLIC, declared
from highwater.api.core.errors import NotFoundError
from highwater.api.core.plain_pages import answer, framed
from highwater.api.core.problems import BY_NAME, KINDS, ProblemKind

router = APIRouter(include_in_schema=False)

_PART = re.compile(r"\{([^{}]*)\}")
_METHODS = ("get", "put", "post", "patch", "delete", "head", "options")


@router.get("/docs")
@declared(PUBLIC)
async def docs(request: Request) -> Response:
    """Return the operations by subject."""
    return answer(request, page_of(request.app.openapi()))


@router.get("/problems")
@declared(PUBLIC)
async def problems(request: Request) -> Response:
    """Return every type of problem."""
    return answer(request, framed("Problems", f"<h1>Problems</h1>{''.join(map(_problem, KINDS))}"))


@router.get("/problems/{name}")
@declared(PUBLIC)
async def problem_page(request: Request, name: str) -> Response:
    """Return one type of problem: the page that its `type` links to."""
    kind = BY_NAME.get(name)
    if kind is None:
        raise NotFoundError(f"there is no problem {name!r}; /problems lists all of them")
    return answer(request, framed(kind.name, f"<h1>Problem: {kind.name}</h1>{_answer(kind)}"))


def _problem(kind: ProblemKind) -> str:
    return f'<h2 id="{kind.name}"><a href="{kind.type}">{kind.name}</a></h2>{_answer(kind)}'


def _answer(kind: ProblemKind) -> str:
    return (
        f"<p>{kind.status:d} {escape(kind.status.phrase)}. {_marked(kind.meaning)}</p>"
        f"<p>What to do: {_marked(kind.remedy)}</p>"
    )


def _marked(text: str) -> str:
    """Return text with backtick spans as code."""
    return "".join(
        f"<code>{escape(part)}</code>" if place % 2 else escape(part) for place, part in enumerate(text.split("`"))
    )


def page_of(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    groups: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in _METHODS:
                tag = next(iter(operation.get("tags", ())), "other")
                groups.setdefault(tag, []).append(_operation(path, method, operation))
    info = document["info"]
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in sorted(groups.items()))
    schemas = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>'
        for name, schema in sorted(document.get("components", {}).get("schemas", {}).items())
    )
    return framed(
        f"{info['title']} API",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('summary', ''))}</p>"
        '<p>For tools: <a href="/openapi.json">/openapi.json</a>; of events <a href="/asyncapi.json">/asyncapi.json</a>.'
        ' Errors: <a href="/problems">/problems</a>.</p>'
        f"{sections}<h2>Schemas</h2>{schemas}",
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = [
        (f"<code>{escape(one['name'])}</code>", escape(one["in"]) + (", required" if one.get("required") else ""),
         _brief(one.get("schema", {})), escape(one.get("description", "")))
        for one in operation.get("parameters", ())
    ]  # fmt: skip
    body = [
        (f"<code>{escape(kind)}</code>", _brief(content.get("schema", {})))
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
    ]
    answers = [
        (f"<code>{escape(status)}</code>", escape(answer.get("description", "")), _contents(answer))
        for status, answer in sorted(operation.get("responses", {}).items())
    ]
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f"<span>{escape(operation.get('summary', ''))}</span></summary>"
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"{_table('Parameters', parameters)}{_table('Body', body)}{_example(path, method, operation)}"
        f"{_table('Answers', answers)}</details>"
    )


def _example(path: str, method: str, operation: dict[str, Any]) -> str:
    """Return the example of an operation as it is sent; empty if a part of its path has none."""
    given = {one["name"]: one["example"] for one in operation.get("parameters", ()) if "example" in one}
    named = _PART.findall(path)
    if not set(named) <= given.keys():
        return ""
    query = {name: value for name, value in given.items() if name not in named}
    target = _PART.sub(lambda part: quote(str(given[part[1]]), safe=""), path) + (
        f"?{urlencode(query)}" if query else ""
    )
    bodies = [
        one["example"] for one in operation.get("requestBody", {}).get("content", {}).values() if "example" in one
    ]
    if operation.get("requestBody", {}).get("required") and not bodies:
        return ""
    sent = "".join(one if isinstance(one, str) else json.dumps(one, indent=2, ensure_ascii=False) for one in bodies)
    return f"<h3>Example</h3><pre>{method.upper()} {escape(target)}\n{escape(sent)}</pre>"


def _contents(answer: dict[str, Any]) -> str:
    return "<br>".join(
        f"<code>{escape(kind)}</code> {_brief(content.get('schema', {}))}"
        for kind, content in answer.get("content", {}).items()
    ) + "".join(
        f"<br>{escape(name)}: {escape(one.get('description', ''))}" for name, one in answer.get("headers", {}).items()
    )


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h3>{title}</h3><table>{lines}</table>"


def _brief(schema: dict[str, Any]) -> str:
    """Describe a schema in a few words: its name, or its type."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if not schema:
        return ""
    told = {key: value for key, value in schema.items() if key != "title"}
    return f"<code>{escape(json.dumps(told, ensure_ascii=False))}</code>"


def _json(schema: dict[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"

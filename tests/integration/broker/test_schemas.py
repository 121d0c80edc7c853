"""Schemas over HTTP, against a real registry: those of the catalogue, and one of another application with two versions."""

from __future__ import annotations

import json

from tests.integration.api_server import Api
from tests.integration.broker.making import NOTE, TEXT, schema

KEYS = "admin:root-key,viewer:eye-key,viewer:ann-key:ann"
INSIGHTS = "feeds.insight-ingested"


async def test_schemas_are_listed_and_described(guarded: Api, subject: str) -> None:
    """Those of the catalogue first, each with its topic; every version with its text."""
    listed = (await guarded.get("/api/schemas", "eye-key")).json()["schemas"]
    names = [one["subject"] for one in listed]
    assert listed[names.index(f"{INSIGHTS}-value")]["topic"] == INSIGHTS
    assert names.index(f"{INSIGHTS}-value") < names.index(subject)
    found = (await guarded.get(f"/api/schemas/{subject}", "eye-key")).json()
    assert (found["topic"], found["is_catalogued"], found["compatibility"]) == (None, False, "FULL_TRANSITIVE")
    assert [(one["version"], one["kind"]) for one in found["versions"]] == [(1, "AVRO"), (2, "AVRO")]
    assert json.loads(found["versions"][1]["text"])["fields"] == [TEXT, NOTE]


async def test_versions_are_compared(guarded: Api, subject: str) -> None:
    """By default the last two; a version that does not exist is named."""
    path = f"/api/schemas/{subject}/diff"
    found = (await guarded.get(path, "eye-key")).json()
    added = {"kind": "added", "field": "note", "before": None, "after": "string or null, default null"}
    assert (found["from"], found["to"], found["fields"]) == (1, 2, [added])
    assert '+      "name": "note",' in found["lines"]
    backwards = (await guarded.get(path, "eye-key", params={"from": 2, "to": 1})).json()
    assert backwards["fields"] == [{**added, "kind": "removed", "before": added["after"], "after": None}]
    missing = await guarded.get(path, "eye-key", params={"to": 7})
    assert (missing.status_code, missing.json()["detail"]) == (404, f"{subject} has no version 7; it has 1, 2")


async def test_a_next_version_is_checked(guarded: Api, subject: str) -> None:
    """A compatible one, one that lacks a default, and a text that is not a schema; none is registered."""
    path = f"/api/schemas/{subject}/check"
    optional = {"name": "count", "type": "int", "default": 0}
    good = (await guarded.post(path, {"schema": schema(TEXT, NOTE, optional)}, "eye-key")).json()
    assert (good["is_compatible"], good["reasons"]) == (True, [])
    bad = (await guarded.post(path, {"schema": schema(TEXT, NOTE, {"name": "count", "type": "int"})}, "eye-key")).json()
    assert (bad["is_compatible"], bad["compatibility"]) == (False, "FULL_TRANSITIVE")
    assert [("READER_FIELD_MISSING_DEFAULT_VALUE" in one, "field count" in one) for one in bad["reasons"]] == [
        (True, True)
    ] * 2
    wrong = await guarded.post(path, {"schema": "no schema"}, "eye-key")
    assert (wrong.status_code, wrong.json()["field"]) == (422, "schema")
    assert len((await guarded.get(f"/api/schemas/{subject}", "eye-key")).json()["versions"]) == 2


async def test_what_is_not_there_and_who_may_not(guarded: Api, subject: str) -> None:
    """404 names the subject; a key that is bound to a user reads none."""
    missing = await guarded.get("/api/schemas/no-such-value", "eye-key")
    assert (missing.status_code, "'no-such-value'" in missing.json()["detail"]) == (404, True)
    for path in ("/api/schemas", f"/api/schemas/{subject}", f"/api/schemas/{subject}/diff"):
        assert (await guarded.get(path, "ann-key")).status_code == 403

"""The last release runs beside this version: migrations only expand, schemas are FULL_TRANSITIVE with those that it writes.

`last_release.json` holds its migrations with their digests and its schemas without their docs; at a release
`python -m tests.last_release` renews it (docs/releasing.md).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from highwater.connectors.postgres.migrate import FOLDER, known_migrations
from highwater.schemas.avro_files import schema_names, schema_text
from tests.last_release import RELEASE as FILE
from tests.last_release import release, text_of, without_docs

RELEASE = json.loads(FILE.read_text(encoding="utf-8"))
LATER = sorted(set(known_migrations()) - set(RELEASE["migrations"]))
# Changes that the last release does not notice: something new, a column that it need not fill, rows converted to the form of a
# new column, an index less, another expression of a column that it cannot write. A trigger fills the values that it does not
# store.
_EXPANDS = re.compile(
    r"CREATE (TABLE|INDEX|UNIQUE INDEX|SEQUENCE|VIEW|FUNCTION|EXTENSION|(CONSTRAINT )?TRIGGER)|INSERT INTO|UPDATE|DELETE FROM|"
    r"DROP INDEX|SET LOCAL|COMMENT ON",
)
# Parts that 0.1.0 leaves unused: only releases before it needed them.
_UNUSED = ("DROP TRIGGER usage_of_older_workers ON jobs", "DROP FUNCTION count_usage_of_older_worker()")
# A trigger fills the column from here on, also of rows of the last release; the function does what it did, with a column more.
_COMPUTED = (
    "ALTER TABLE chunks ALTER COLUMN words DROP EXPRESSION",
    "ALTER TABLE former_chunks ALTER COLUMN words DROP EXPRESSION",
    "CREATE OR REPLACE FUNCTION keep_former_chunk() RETURNS trigger LANGUAGE plpgsql AS ''",
)
# Checks that admit more than before: the last release writes what it wrote.
_WIDENED = (
    (
        "ALTER TABLE user_roles DROP CONSTRAINT user_roles_role_check, "
        "ADD CONSTRAINT user_roles_role_check CHECK (role IN ('viewer', 'assistant', 'editor', 'admin'))"
    ),
)
_ADDS = re.compile(r"ADD COLUMN (IF NOT EXISTS )?\w+ (?P<rest>.*)", re.DOTALL)


def statements(text: str) -> list[str]:
    """The statements of a migration, without comments; bodies between dollar quotes are left out."""
    text = re.sub(r"\$(\w*)\$.*?\$\1\$", "''", text, flags=re.DOTALL)
    text = re.sub(r"--[^\n]*", "", text)
    return [" ".join(one.split()) for one in text.split(";") if one.strip()]


def breaks(statement: str) -> str | None:
    """Why the last release would notice a statement; None if it does not."""
    if statement in _COMPUTED:
        return None
    if not statement.startswith("ALTER TABLE"):
        return None if _EXPANDS.match(statement) or statement in _UNUSED else "is not known to expand"
    if statement in _WIDENED:
        return None
    actions = re.split(
        r",\s*(?=(?:ADD|ALTER|DROP|RENAME|VALIDATE)\b)", re.sub(r"^ALTER TABLE (ONLY )?\w+ ", "", statement)
    )
    for action in actions:
        if re.match(r"ALTER COLUMN \w+ SET EXPRESSION AS ", action):
            continue
        found = _ADDS.match(action)
        if found is None:
            return f"does more than add columns: {action}"
        if "NOT NULL" in found["rest"] and "DEFAULT" not in found["rest"]:
            return f"adds a column that the last release does not fill: {action}"
    return None


def test_migrations_after_the_last_release_expand() -> None:
    """They add; what they would take away waits for the release after. Right after a release there are none."""
    found = {name: statements((FOLDER / f"{name}.sql").read_text(encoding="utf-8")) for name in LATER}
    assert [name for name, has in found.items() if not has] == []
    assert [(name, one, why) for name, has in found.items() for one in has if (why := breaks(one)) is not None] == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE jobs DROP COLUMN error",
        "ALTER TABLE jobs ADD COLUMN a int, DROP COLUMN error",
        "ALTER TABLE jobs RENAME COLUMN error TO reason",
        "ALTER TABLE jobs ADD COLUMN payer text NOT NULL",
        "ALTER TABLE jobs ALTER COLUMN error SET NOT NULL",
        "ALTER TABLE jobs ADD CONSTRAINT few CHECK (epoch < 9)",
        "DROP TABLE jobs",
        "TRUNCATE jobs",
    ],
)
def test_what_contracts_is_noticed(statement: str) -> None:
    """The check of the migrations is one."""
    assert breaks(statement) is not None


def test_released_migrations_are_as_they_were() -> None:
    """None was edited or taken away, and newer ones come after them."""
    known = known_migrations()
    assert {name: known.get(name) for name in RELEASE["migrations"]} == RELEASE["migrations"]
    assert min(LATER, default="~") > max(RELEASE["migrations"])


def problems(before: Any, after: Any, at: str) -> list[str]:
    """Where data of one schema is not read by the other: both ways, since both versions write."""
    if isinstance(before, dict) and isinstance(after, dict) and before.get("type") == after.get("type") == "record":
        return _problems_of_records(before, after, at)
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [one for b, a in zip(before, after, strict=True) for one in problems(b, a, at)]
    if isinstance(before, dict) and isinstance(after, dict) and isinstance(before.get("type"), dict | list):
        return problems(before["type"], after.get("type"), at)
    if isinstance(before, dict) and isinstance(after, dict) and before.get("type") in ("array", "map"):
        inner = "items" if before["type"] == "array" else "values"
        return [] if before["type"] != after.get("type") else problems(before[inner], after[inner], at)
    return [] if before == after else [f"{at}: {before} became {after}"]


def _problems_of_records(before: dict[str, Any], after: dict[str, Any], at: str) -> list[str]:
    old = {field["name"]: field for field in before["fields"]}
    new = {field["name"]: field for field in after["fields"]}
    found = [f"{at}.{name} is new without a default" for name in new.keys() - old.keys() if "default" not in new[name]]
    found += [
        f"{at}.{name} is gone and had no default" for name in old.keys() - new.keys() if "default" not in old[name]
    ]
    for name in old.keys() & new.keys():
        found += problems(old[name]["type"], new[name]["type"], f"{at}.{name}")
    return found


@pytest.mark.parametrize("name", sorted(RELEASE["schemas"]))
def test_a_schema_is_read_by_the_last_release_and_reads_what_it_wrote(name: str) -> None:
    """Side by side both versions write each topic: fields come and go with defaults, and none changes its type."""
    assert name in schema_names()
    assert problems(RELEASE["schemas"][name], without_docs(json.loads(schema_text(name))), name) == []


def test_a_schema_that_breaks_is_noticed() -> None:
    """A field without a default, and one of another type."""
    before = RELEASE["schemas"]["feeds/UserActive.v1"]
    more = {**before, "fields": [*before["fields"], {"name": "x", "type": "string"}]}
    other = {**before, "fields": [{**field, "type": "string"} for field in before["fields"]]}
    assert problems(before, more, "a") == ["a.x is new without a default"]
    assert problems(more, before, "a") == ["a.x is gone and had no default"]
    assert problems(before, other, "a") != []


def test_a_release_is_written_as_the_next_version_reads_it() -> None:
    """The output of the command has the form of the compared file, and this version does not break itself."""
    assert text_of(RELEASE) == FILE.read_text(encoding="utf-8")
    made = json.loads(text_of(release()))
    assert (made.keys(), made["migrations"]) == (RELEASE.keys(), known_migrations())
    assert set(made["schemas"]) == set(schema_names())
    assert all('"doc"' not in json.dumps(schema) for schema in made["schemas"].values())

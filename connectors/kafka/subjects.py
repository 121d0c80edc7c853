"""Subjects of the schema registry with their versions and compatibility levels, also of other applications. Nothing
here writes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from highwater.connectors.kafka.registry_http import NOT_FOUND, RegistryConnection, RegistryRefusedError, ask
from highwater.schemas.errors import HighwaterError
from highwater.streams.access import RegistryAccess

AVRO = "AVRO"
# The registry's error for a text that is not a schema.
_INVALID = 422


class InvalidSchemaError(HighwaterError):
    """The text is not a schema. The registry's answer says why."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject. `kind` is AVRO, JSON or PROTOBUF."""

    version: int
    schema_id: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject, its versions oldest first. `compatibility` None: the registry has no level for it."""

    name: str
    compatibility: str | None
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a schema may be the next version of a subject; the registry's reasons if not."""

    is_compatible: bool
    reasons: tuple[str, ...]


async def listed_subjects(access: RegistryAccess | None) -> list[str]:
    """Return every subject, by name.

    Raises:
        UnavailableError: the registry does not answer.
    """
    return sorted(map(str, await asyncio.to_thread(ask, RegistryAccess.required(access), "GET", "subjects")))


async def described_subject(access: RegistryAccess | None, name: str) -> Subject | None:
    """Return a subject with all its versions; None if it was never registered.

    Raises:
        UnavailableError: the registry does not answer.
    """
    return await asyncio.to_thread(_described, RegistryAccess.required(access), name)


def _described(access: RegistryAccess, name: str) -> Subject | None:
    with RegistryConnection(access) as registry:
        found = registry.versions_of(name)
        if not found:
            return None
        compatibility = _compatibility(registry, name)
    versions = tuple(
        Version(int(one["version"]), int(one["id"]), str(one.get("schemaType") or AVRO), str(one["schema"]))
        for one in found
    )
    return Subject(name, compatibility, versions)


def _compatibility(registry: RegistryConnection, name: str) -> str | None:
    """Return the level of a subject, or the registry's default if it has none."""
    for path in (f"config/{quote(name, safe='')}", "config"):
        found = registry.find("GET", path)
        if found is not None:
            return str(found["compatibilityLevel"])
    return None


async def checked_schema(access: RegistryAccess | None, name: str, text: str, kind: str = AVRO) -> Verdict | None:
    """Check whether a schema may be registered under a subject, by its compatibility level; None: there is no such
    subject.

    Raises:
        InvalidSchemaError: the text is not a schema of the kind.
        UnavailableError: the registry does not answer.
    """
    return await asyncio.to_thread(_checked, RegistryAccess.required(access), name, text, kind)


def _checked(access: RegistryAccess, name: str, text: str, kind: str) -> Verdict | None:
    quoted = quote(name, safe="")
    body: dict[str, Any] = {"schema": text} if kind == AVRO else {"schema": text, "schemaType": kind}
    try:
        if not ask(access, "GET", f"subjects/{quoted}/versions"):
            return None
        found = ask(access, "POST", f"compatibility/subjects/{quoted}/versions?verbose=true", body)
    except RegistryRefusedError as error:
        if error.status == NOT_FOUND:
            return None
        if error.status == _INVALID:
            raise InvalidSchemaError(error.told) from error
        raise
    return Verdict(bool(found["is_compatible"]), tuple(map(str, found.get("messages") or ())))

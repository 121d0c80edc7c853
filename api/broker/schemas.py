"""Gathers the contents of the schema registry and assembles the API's answers."""

from __future__ import annotations

from collections.abc import Container

from highwater.api.broker.answers import ListedSchema, RegisteredSchema, SchemaCheck, SchemaDiff
from highwater.api.broker.schema_diff import changed_fields, changed_lines, formatted
from highwater.api.broker.sources import Sources
from highwater.api.core.errors import NotFoundError, UnprocessableError
from highwater.connectors.kafka.subjects import (
    AVRO,
    InvalidSchemaError,
    Subject,
    Verdict,
    Version,
    checked_schema,
    described_subject,
    listed_subjects,
)
from highwater.schemas.compatibility import incompatibilities
from highwater.schemas.topics import TOPICS

# How the topic-name strategy names the subjects of a topic.
_SUFFIXES = ("-value", "-key")


def topic_of(subject: str, topics: Container[str]) -> str | None:
    """Return the topic that a subject describes, if there is one."""
    for suffix in _SUFFIXES:
        topic = subject.removesuffix(suffix)
        if topic != subject and topic in topics:
            return topic
    return None


def listed(subject: str, topics: Container[str]) -> ListedSchema:
    """Return the list entry of a subject."""
    own = topic_of(subject, TOPICS)
    return {"subject": subject, "topic": own or topic_of(subject, topics), "is_catalogued": own is not None}


async def all_schemas(sources: Sources) -> list[ListedSchema]:
    """Return every subject, those of the catalogue first.

    Raises:
        UnavailableError: the registry or the broker does not answer.
    """
    topics = await sources.admin.partition_counts()
    found = [listed(subject, topics) for subject in await listed_subjects(sources.registry)]
    return sorted(found, key=lambda one: (not one["is_catalogued"], one["subject"]))


async def one_schema(sources: Sources, name: str) -> RegisteredSchema:
    """Return a subject with its versions.

    Raises:
        NotFoundError: there is no such subject.
        UnavailableError: the registry or the broker does not answer.
    """
    found = await _subject(sources, name)
    return {
        **listed(found.name, await sources.admin.partition_counts()),
        "compatibility": found.compatibility,
        "versions": [
            {"version": one.version, "schema_id": one.schema_id, "kind": one.kind, "text": formatted(one.text)}
            for one in found.versions
        ],
    }


async def _subject(sources: Sources, name: str) -> Subject:
    found = await described_subject(sources.registry, name)
    if found is None:
        raise NotFoundError(f"the schema registry has no subject {name[:250]!r}")
    return found


async def schema_diff(sources: Sources, name: str, before: int | None = None, after: int | None = None) -> SchemaDiff:
    """Compare two versions. `after` defaults to the latest one, `before` to the version before it.

    Raises:
        NotFoundError: there is no such subject or version.
        UnavailableError: the registry does not answer.
    """
    found = await _subject(sources, name)
    new = found.versions[-1] if after is None else _version(found, after)
    place = found.versions.index(new)
    old = found.versions[max(0, place - 1)] if before is None else _version(found, before)
    return {
        "subject": found.name,
        "from": old.version,
        "to": new.version,
        "fields": [
            {"kind": one.kind, "field": one.field, "before": one.before, "after": one.after}
            for one in changed_fields(old.text, new.text)
        ],
        "lines": changed_lines(old.text, new.text),
    }


def _version(subject: Subject, number: int) -> Version:
    found = next((one for one in subject.versions if one.version == number), None)
    if found is None:
        there = ", ".join(str(one.version) for one in subject.versions)
        raise NotFoundError(f"{subject.name} has no version {number}; it has {there}")
    return found


async def schema_check(sources: Sources, name: str, text: str) -> SchemaCheck:
    """Check whether a schema may be the next version of a subject, without registering it.

    Raises:
        NotFoundError: there is no such subject.
        UnprocessableError: the text is not a schema.
        UnavailableError: the registry does not answer.
    """
    subject = await _subject(sources, name)
    try:
        verdict = await checked_schema(sources.registry, name, text, subject.versions[-1].kind)
    except InvalidSchemaError as error:
        raise UnprocessableError(f"this is not a schema: {error}", field="schema") from error
    if verdict is None:
        raise NotFoundError(f"the schema registry has no subject {name[:250]!r}")
    return {
        "subject": name,
        "compatibility": subject.compatibility,
        "is_compatible": verdict.is_compatible,
        "reasons": list(verdict.reasons) or _reasons(subject, text, verdict),
    }


def _reasons(subject: Subject, text: str, verdict: Verdict) -> list[str]:
    """Return why a schema is refused; where the registry gives no reason, by the rules of Avro."""
    if verdict.is_compatible or subject.versions[-1].kind != AVRO:
        return []
    return incompatibilities(text, [(one.version, one.text) for one in subject.versions], subject.compatibility or "")

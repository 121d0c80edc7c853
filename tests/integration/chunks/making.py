"""Chunks, sources and namespaces as their sinks store them, for tests of reads."""

from __future__ import annotations

from typing import Any

from highwater.connectors.pages.statements import QUERIES
from highwater.streams.chunks.passports import PASSPORT_KEYS, load_passports
from tests.integration.api_server import NOW, Seeds

SUBMITTED, FINISHED = "chunks.chunk-submitted", "chunks.ingest-finished"


async def store_namespace(seeds: Seeds, ns: str, **columns: Any) -> None:
    """A namespace with the default passport and other columns."""
    passport = load_passports().of(ns)
    of_passport = {name: getattr(passport, name) for name in PASSPORT_KEYS}
    await seeds.insert("chunk_namespaces", **{"ns": ns, **of_passport, "created_at": NOW, **columns})


async def store_chunk(seeds: Seeds, ns: str, number: int, **columns: Any) -> None:
    """A chunk of a namespace; `embedding` as text."""
    row = {
        "ns": ns, "slot": "main", "source_id": "readme", "chunk_no": number, "content": f"chunk {number}", "content_hash": "h",
        "created_at": NOW, "updated_at": NOW, "ingest_id": "i", "source_partition": 0, "source_offset": number, **columns,
    }  # fmt: skip
    names = list(row)
    places = [
        f"${place}" + ("::text::vector" if name == "embedding" else "") for place, name in enumerate(names, start=1)
    ]
    await seeds.run(f"INSERT INTO chunks ({', '.join(names)}) VALUES ({', '.join(places)})", *row.values())


async def store_ingest(seeds: Seeds, ingest_id: str, source_id: str, **columns: Any) -> None:
    """An ingest of a source."""
    times = {"created_at": NOW, "updated_at": NOW}
    of_source = {"ingest_id": ingest_id, "ns": "docs", "slot": "main", "source_id": source_id}
    await seeds.insert("chunk_ingests", **{**of_source, **times, "position": f"{SUBMITTED}/0/7", **columns})


async def bump(seeds: Seeds, ns: str) -> None:
    """Something visible of a namespace has changed."""
    await seeds.run(QUERIES["bump_version"], f"ns:{ns}", f"{SUBMITTED}/0/1", NOW, None)

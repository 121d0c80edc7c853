"""Chunks stored in the tables as by the sink, for tests of later steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from highwater.connectors.postgres import vectors
from highwater.streams.chunks.identity import content_hash
from highwater.streams.chunks.scoring import TEXT_SHARE
from highwater.streams.clock import to_datetime
from highwater.streams.languages import text_language

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


@dataclass
class Rows:
    """Puts rows into a database of a test's own."""

    pool: Any
    ns: str = "docs"

    async def namespace(self, ns: str | None = None, **columns: Any) -> None:
        """A namespace with the default passport, except for these columns."""
        row = {
            "ns": ns or self.ns,
            "half_life_days": 30.0,
            "ttl_days": 365.0,
            "ttl_mode": "filter",
            "alpha": 0.8,
            "beta": 0.2,
            "hot_days": 14.0,
            "hot_queries_per_day": 100.0,
            "removal": "soft",
            "grace_days": 7.0,
            "archives_cold": False,
            "is_open": True,
            "text_share": TEXT_SHARE,
            "created_at": to_datetime(NOW_MS),
            **columns,
        }
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        await self.pool.execute(f"INSERT INTO chunk_namespaces ({', '.join(row)}) VALUES ({places})", *row.values())

    async def passport(self, ns: str | None = None) -> Any:
        """The namespace's row."""
        return await self.pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = $1", ns or self.ns)

    async def put(
        self,
        source_id: str,
        contents: Sequence[str],
        *,
        ns: str | None = None,
        slot: str = "s",
        vector: Sequence[Any] | None = None,
        age_days: float = 0.0,
        published_days: float | None = None,
        first: int = 0,
        each: Mapping[str, Sequence[Any]] | None = None,
        **columns: Any,
    ) -> None:
        """Chunks of a source, in one go. `vector`: one for each, None for none. `each`: columns with a value for each."""
        made = []
        for number, content in enumerate(contents, start=first):
            one = None if vector is None else vector[number - first]
            row = {
                "ns": ns or self.ns,
                "slot": slot,
                "source_id": source_id,
                "chunk_no": number,
                "content": content,
                "content_hash": content_hash(ns or self.ns, slot, source_id, number, content),
                "embedding": None if one is None else np.asarray(one, "<f4").tobytes(),
                "embedding_model": None if one is None else "sent",
                "created_at": to_datetime(NOW_MS - round(age_days * DAY_MS)),
                "published_at": None
                if published_days is None
                else to_datetime(NOW_MS - round(published_days * DAY_MS)),
                "updated_at": to_datetime(NOW_MS - round(age_days * DAY_MS)),
                "ingest_id": "i",
                "source_partition": 0,
                "source_offset": number,
                "language": text_language(content),
                **columns,
                **{name: values[number - first] for name, values in (each or {}).items()},
            }
            made.append(row)
        async with self.pool.acquire() as tx:
            await vectors.enable(tx)
            await tx.execute(
                "INSERT INTO chunk_sources (ns, slot, source_id, ingest_id) VALUES ($1, $2, $3, 'i') ON CONFLICT DO NOTHING",
                ns or self.ns, slot, source_id,
            )  # fmt: skip
            names = list(made[0])
            await tx.copy_records_to_table("chunks", records=[tuple(row.values()) for row in made], columns=names)

    async def rows(self, source_id: str, ns: str | None = None) -> list[Any]:
        """The rows of a source in order, with their versions."""
        async with self.pool.acquire() as tx:
            await vectors.enable(tx)
            return await tx.fetch(
                "SELECT *, xmin::text AS row_version FROM chunks WHERE ns = $1 AND source_id = $2 ORDER BY slot, chunk_no",
                ns or self.ns, source_id,
            )  # fmt: skip

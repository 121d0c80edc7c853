"""The identity of a chunk: the parts of its key, and the hash of its content.

Invariant: different chunks never hash the same input. No part of a key contains the `|` that joins them, so the hash's
input can be split in one way only (R3.2); the text is neither trimmed nor normalised.
"""

from __future__ import annotations

from hashlib import sha256

from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id

# Joins the parts of the key of a source, in hashes, keys of records and names of resources.
SEPARATOR = "|"


def check_key_part(name: str, value: str) -> None:
    """Check that a part of a key (ns, slot or source_id) is an id without `|`.

    Raises:
        InvalidEventError: it is not.
    """
    check_id(name, value)
    if SEPARATOR in value:
        raise InvalidEventError("separator", f"{name} holds a {SEPARATOR}, which joins the parts of a key", field=name)


def content_hash(ns: str, slot: str, source_id: str, chunk_no: int, content: str) -> str:
    """Return the SHA-256 of `ns|slot|source_id|chunk_no|content` in UTF-8, 64 lower-case hex digits (R3.2).

    A text that no store accepts has a hash too, so that its refusals can be distinguished.
    """
    said = f"{ns}|{slot}|{source_id}|{chunk_no}|{content}"
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()

"""Which bodies are accepted: their media type and coding are checked before they are read.

Invariants. A body declares its type (415 otherwise): a form or plain text, which any site can send without permission,
is not JSON. No content coding is accepted for bodies, since the decoded size of 16 MiB has no limit; for answers see
`encodings.py`.
"""

from __future__ import annotations

from functools import lru_cache

JSON = "application/json"
NDJSON = "application/x-ndjson"
# Names in use for lines of JSON; none of them is registered.
JSON_LINES = frozenset(
    {NDJSON, "application/ndjson", "application/jsonl", "application/jsonlines", "application/x-jsonlines"}
)
FORM = "application/x-www-form-urlencoded"
# Value of the field for a body without coding.
_UNENCODED = frozenset({"", "identity"})

_EVENTS = "/api/events/"
_API = "/api/"
# Accepts bytes of any type, or without one.
_ANY_TYPE = frozenset({"/api/blobs"})
_FORMS = frozenset({"/login"})


@lru_cache(256)
def media_type_of(content_type: str) -> str:
    """`type/subtype` in lower case, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def wrong_type(path: str, content_type: str) -> str | None:
    """Return why a path does not accept a body of this type; None if it does.

    Args:
        path: of the request; what is beneath `/api/` takes JSON, other paths are the dashboard's own.
        content_type: the field, empty where there is none.
    """
    kind = media_type_of(content_type)
    if path in _ANY_TYPE:
        return None
    if path in _FORMS:
        return None if kind == FORM else f"the body is not {FORM}"
    if not path.startswith(_API):
        return None
    if kind == JSON or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    if path.startswith(_EVENTS):
        return None if kind in JSON_LINES else f"the body is neither {JSON} nor {NDJSON}"
    return f"the body is not {JSON}"


def wrong_coding(content_encoding: str) -> str | None:
    """Return why a body with this coding is refused; None if it has no coding."""
    if content_encoding.strip().lower() in _UNENCODED:
        return None
    return "bodies are taken as they are, without Content-Encoding"

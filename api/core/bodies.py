"""What a body may be: its media type and its coding, judged before it is read.

Invariants. A body says what it is (415 otherwise): a form or a text, which a page of any site may send without being asked, is
no JSON. No coding of a body is taken, since what 16 MiB decode to has no bound; answers are another matter (`encodings.py`).
"""

from __future__ import annotations

from functools import lru_cache

JSON = "application/json"
NDJSON = "application/x-ndjson"
# Names that are in use for lines of JSON; none of them is registered.
JSON_LINES = frozenset(
    {NDJSON, "application/ndjson", "application/jsonl", "application/jsonlines", "application/x-jsonlines"}
)
FORM = "application/x-www-form-urlencoded"
# What a request says whose body is not encoded.
_UNENCODED = frozenset({"", "identity"})

_EVENTS = "/api/events/"
_API = "/api/"
# Takes bytes of any type, also without one.
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
    """Why a body in this coding is not taken, None where it is not encoded."""
    if content_encoding.strip().lower() in _UNENCODED:
        return None
    return "bodies are taken as they are, without Content-Encoding"

"""Rules for any event: ids, times and texts that every store, URL and terminal accepts.

Decided from the event alone, never from the clock, so that a replay of the log accepts and refuses the same events.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from highwater.schemas.errors import InvalidEventError

# Refuses the value of a field; takes the field's name and value.
Check: TypeAlias = Callable[[str, Any], None]
# Ids are keys of Kafka records, rows and URLs; 512 bytes is far above any in use and keeps index entries small.
ID_BYTES_MAX = 512
# Years 1 to 9999: the range of datetime, and so of all our readers; except for its very first moment, which
# PostgreSQL's driver reads as minus infinity.
TS_MS_MIN, TS_MS_MAX = -62_135_596_799_999, 253_402_300_799_999

# Unicode categories Cc and Cs: no store, URL or terminal accepts these unescaped.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Surrogates have no UTF-8 form, so PostgreSQL rejects them like NUL, which `check_text` refuses.
_SURROGATE = re.compile("[\ud800-\udfff]")
# Control and format characters (zero-width spaces and joiners, direction marks, soft hyphens).
_INVISIBLE = frozenset({"Cc", "Cf"})
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_uuid(value: str) -> bool:
    """Return whether an id is a UUID in its canonical form: lower case with hyphens."""
    return _UUID.fullmatch(value) is not None


def check_uuid(name: str, value: str) -> None:
    """Check that an id that must be a UUID is one in its canonical form.

    Raises:
        InvalidEventError: it is not.
    """
    if not is_uuid(value):
        raise InvalidEventError("bad_uuid", f"{name} is not a UUID in lower case with hyphens", field=name)


def check_id(name: str, value: str) -> None:
    """Check that an id is 1 to 512 bytes of UTF-8 without control characters.

    Raises:
        InvalidEventError: it is not.
    """
    check_name(name, value, ID_BYTES_MAX)


def check_name(name: str, value: str, bytes_max: int) -> None:
    """Check that a name is 1 to `bytes_max` bytes of UTF-8 without control characters.

    Raises:
        InvalidEventError: it is not.
    """
    if not value.strip():
        raise InvalidEventError("empty_id", f"{name} is empty", field=name)
    if len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise InvalidEventError("too_long", f"{name} is longer than {bytes_max} bytes", field=name)
    if _CONTROL.search(value):
        raise InvalidEventError("control_character", f"{name} holds a control character", field=name)


def check_text(name: str, value: str, bytes_max: int) -> None:
    """Check that a text is at most `bytes_max` bytes of UTF-8 without NUL.

    Raises:
        InvalidEventError: it is not.
    """
    # A character takes at most four bytes, so most texts need no encoding for this check.
    if len(value) * 4 > bytes_max and len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise InvalidEventError("too_long", f"{name} is longer than {bytes_max} bytes", field=name)
    if "\x00" in value:
        raise InvalidEventError("control_character", f"{name} holds a NUL character", field=name)


def check_user_text(name: str, value: str, bytes_max: int) -> None:
    """Check that a user's text is not empty and contains only complete characters.

    Raises:
        InvalidEventError: it is invalid.
    """
    check_text(name, value, bytes_max)
    if _SURROGATE.search(value):
        raise InvalidEventError("control_character", f"{name} holds half a character (a surrogate)", field=name)
    check_not_blank(name, value)


def check_not_blank(name: str, value: str) -> None:
    """Check that a text has a visible character.

    Raises:
        InvalidEventError: it has none.
    """
    if is_blank(value):
        raise InvalidEventError("empty_text", f"{name} is empty", field=name)


def is_blank(value: str) -> bool:
    """Return whether a text is blank: empty, or only white space, control or format characters."""
    return all(character.isspace() or unicodedata.category(character) in _INVISIBLE for character in value)


def check_time(name: str, value: int) -> None:
    """Check that a time is after the beginning of the year 1, which programs write for "no time", and before the year
    10000.

    Raises:
        InvalidEventError: it is not.
    """
    if not TS_MS_MIN <= value <= TS_MS_MAX:
        raise InvalidEventError(
            "time_out_of_range", f"{name} does not lie after 0001-01-01T00:00:00Z and before the year 10000", field=name
        )


def unless_null(check: Check) -> Check:
    """Return the check of a field that may be null."""

    def checked(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return checked


def one_of(allowed: Collection[str], reason: str) -> Check:
    """Return the check of a field with a few allowed values."""

    def check(name: str, value: str) -> None:
        if value not in allowed:
            raise InvalidEventError(reason, f"{name} is none of {', '.join(allowed)}", field=name)

    return check


def check_fields(checks: Mapping[str, Check], event: Mapping[str, object]) -> None:
    """Check the fields of an event, in the order of the checks, so that of several faults the first field's is named.

    Raises:
        InvalidEventError: names the field at fault and a machine-readable reason.
    """
    for name, check in checks.items():
        if name in event:
            check(name, event[name])

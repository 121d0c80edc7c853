"""The passports of namespaces: how their chunks age, are found and are removed (R3.16 to R3.23).

Invariant: every namespace has one. Values missing in a file are the defaults, and a namespace missing in the file has
the default passport; but documents do not expire by age unless their own table says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from highwater.schemas.errors import ConfigurationError, InvalidEventError
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.toml_files import read_toml

_DEFAULT_FILE = Path(__file__).with_name("default_namespaces.toml")
# A century: anything longer is a typing error, and its milliseconds fit all our integer types.
DAYS_MAX = 36_600
# More per day than any installation serves, so that a setting can prevent a namespace from becoming hot.
_QUERIES_MAX = 10**12


class TtlMode(StrEnum):
    """How a search treats a cold chunk (R3.18)."""

    FILTER = "filter"
    ZERO_WEIGHT = "zero_weight"


class Removal(StrEnum):
    """How chunks are removed (R3.20)."""

    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Passport:
    """The configuration of a namespace; the fields are those columns of `chunk_namespaces`. Ages in days."""

    half_life_days: float
    ttl_days: float
    ttl_mode: TtlMode
    alpha: float
    beta: float
    hot_days: float
    hot_queries_per_day: float
    removal: Removal
    grace_days: float
    archives_cold: bool
    is_open: bool
    text_share: float


@dataclass(frozen=True, slots=True)
class Given:
    """What events said of a namespace: that it holds documents, and that answers may quote it."""

    is_lasting: bool = False
    is_opened: bool = False

    @classmethod
    def of_row(cls, row: Any) -> Given:
        """Return what a row of `chunk_namespaces` has of it."""
        return cls(row["is_lasting"], row["is_opened"])

    def __or__(self, other: Given) -> Given:
        """Return both together."""
        return Given(self.is_lasting or other.is_lasting, self.is_opened or other.is_opened)


NOTHING_GIVEN = Given()

# In the order of the fields, which is that of the columns.
PASSPORT_KEYS = tuple(one.name for one in fields(Passport))


@dataclass(frozen=True, slots=True)
class Passports:
    """The passports of all namespaces, configured or not."""

    default: Passport
    named: Mapping[str, Passport]
    # The keys that a namespace's own table sets.
    own_keys: Mapping[str, Collection[str]] = field(default_factory=dict)

    def of(self, ns: str, given: Given = NOTHING_GIVEN) -> Passport:
        """Return the passport of a namespace. What events gave it counts unless its own table sets that key: one of documents
        has no maximum age (they are not news), and one that was opened is open.
        """
        given_values = {"ttl_days": DAYS_MAX} if given.is_lasting else {}
        values: dict[str, Any] = given_values | ({"is_open": True} if given.is_opened else {})
        own = self.own_keys.get(ns, ())
        return replace(
            self.named.get(ns, self.default), **{key: value for key, value in values.items() if key not in own}
        )


def load_passports(path: Path | None = None) -> Passports:
    """Return the built-in passports, overridden key by key by a TOML file of `[default]` and `[namespaces.<name>]`.

    Raises:
        ConfigurationError: the file, a namespace, a key or a value is invalid; the message names all of them.
    """
    default, named = _read(_DEFAULT_FILE)
    if path is not None:
        own_default, own_named = _read(path)
        default |= own_default
        named = {ns: named.get(ns, {}) | own_named.get(ns, {}) for ns in (*named, *own_named)}
    where = path or _DEFAULT_FILE
    return Passports(
        default=_passport(where, "default", default),
        named={ns: _passport(where, f"namespaces.{ns}", default | values) for ns, values in named.items()},
        own_keys={ns: frozenset(values) for ns, values in named.items()},
    )


def _passport(path: Path, name: str, values: Mapping[str, Any]) -> Passport:
    passport = Passport(**values)
    if not passport.alpha + passport.beta > 0:
        raise ConfigurationError(f"{path}: {name} has alpha and beta of 0: every score would be 0")
    return passport


_Values = dict[str, Any]


def _read(path: Path) -> tuple[_Values, dict[str, _Values]]:
    """Return the values of `[default]`, and of each namespace, checked one by one."""
    document = read_toml(path, "the namespaces are")
    unknown = sorted(set(document) - {"default", "namespaces"})
    if unknown:
        raise ConfigurationError(f"{path}: {unknown[0]} is neither [default] nor a table [namespaces.<name>]")
    namespaces = document.get("namespaces", {})
    if not isinstance(namespaces, dict):
        raise ConfigurationError(f"{path}: namespaces is not a table [namespaces.<name>]")
    for ns in namespaces:
        _check_name(path, ns)
    default = _values(path, "default", document.get("default", {}))
    return default, {ns: _values(path, f"namespaces.{ns}", table) for ns, table in namespaces.items()}


def _check_name(path: Path, ns: str) -> None:
    try:
        check_key_part("its name", ns)
    except InvalidEventError as error:
        raise ConfigurationError(f"{path}: namespaces.{ns!r}: {error}") from error


def _values(path: Path, name: str, table: Any) -> _Values:
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: {name} is not a table of {', '.join(PASSPORT_KEYS)}")
    values = {}
    for key, value in table.items():
        where = f"{path}: {name}.{key}"
        if key not in _CHECKS:
            raise ConfigurationError(f"{where} is not a key; there are {', '.join(PASSPORT_KEYS)}")
        values[key] = _CHECKS[key](where, value)
    return values


def _number(where: str, value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{where} = {value!r} is not a number")
    if not 0 <= value <= most:
        raise ConfigurationError(f"{where} = {value!r} is not between 0 and {most}")
    return float(value)


def _weight(where: str, value: Any) -> float:
    return _number(where, value, 1)


def _days(where: str, value: Any) -> float:
    return _number(where, value, DAYS_MAX)


def _some_days(where: str, value: Any) -> float:
    days = _days(where, value)
    if not days > 0:
        raise ConfigurationError(f"{where} = {value!r} is not above 0")
    return days


def _queries(where: str, value: Any) -> float:
    return _number(where, value, _QUERIES_MAX)


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{where} = {value!r} is neither true nor false")
    return value


def _ttl_mode(where: str, value: Any) -> TtlMode:
    return TtlMode(_one_of(where, value, TtlMode))


def _removal(where: str, value: Any) -> Removal:
    return Removal(_one_of(where, value, Removal))


def _one_of(where: str, value: Any, words: type[StrEnum]) -> str:
    if not isinstance(value, str) or value not in list(words):
        raise ConfigurationError(f"{where} = {value!r} is not one of {', '.join(words)}")
    return value


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "half_life_days": _some_days,  # the decay divides by it
    "ttl_days": _some_days,
    "ttl_mode": _ttl_mode,
    "alpha": _weight,
    "beta": _weight,
    "hot_days": _days,
    "hot_queries_per_day": _queries,
    "removal": _removal,
    "grace_days": _days,
    "archives_cold": _flag,
    "is_open": _flag,
    "text_share": _weight,
}

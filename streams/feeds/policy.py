"""The plans: how much novelty, how much time, who counts as active, and the minimum interval (R0.10).

A policy is read once, is frozen, and has a hash, so that a recorded decision identifies its numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from highwater.schemas.errors import ConfigurationError
from highwater.streams.toml_files import read_plan_tables

FALLBACK_PLAN = "free"

_DEFAULT_FILE = Path(__file__).with_name("default_policy.toml")
# A century; a larger value is a typing error.
_SECONDS_MAX = 100 * 366 * 86_400
_COUNT_MAX = 10**9


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """The thresholds of one plan. Seconds may be fractions; 0 seconds of cooldown means none."""

    novelty_count_min: int
    rebuild_interval_seconds: float
    active_within_seconds: float
    cooldown_seconds: float

    @property
    def rebuild_interval_ms(self) -> int:
        """T in milliseconds."""
        return int(self.rebuild_interval_seconds * 1000)

    @property
    def active_within_ms(self) -> int:
        """A in milliseconds."""
        return int(self.active_within_seconds * 1000)

    @property
    def cooldown_ms(self) -> int:
        """The cooldown in milliseconds."""
        return int(self.cooldown_seconds * 1000)


_KEYS = tuple(field.name for field in fields(PlanPolicy))


@dataclass(frozen=True, slots=True)
class Policy:
    """All plans, and the hash that identifies their numbers."""

    plans: Mapping[str, PlanPolicy]
    hash: str

    def plan(self, name: str | None) -> PlanPolicy:
        """Return the plan with that name; an unknown one, or none, counts as `free` (R0.10)."""
        found = self.plans.get(name) if name is not None else None
        return found if found is not None else self.plans[FALLBACK_PLAN]


def make_policy(plans: Mapping[str, PlanPolicy]) -> Policy:
    """Return a policy of these plans. Hash: first 16 hex digits of the SHA-256 of the canonical JSON of all numbers.

    Raises:
        ConfigurationError: the plan that stands in for unknown ones is missing.
    """
    if FALLBACK_PLAN not in plans:
        raise ConfigurationError(f"a policy needs the plan {FALLBACK_PLAN!r}, which stands in for unknown ones")
    numbers = {
        name: {key: float(value) for key, value in asdict(plan).items()}  # 60 and 60.0 are one policy
        for name, plan in plans.items()
    }
    canonical = json.dumps(numbers, sort_keys=True, separators=(",", ":")).encode()
    return Policy(plans=dict(plans), hash=hashlib.sha256(canonical).hexdigest()[:16])


def load_policy(path: Path | None = None) -> Policy:
    """Return the default plans, overridden key by key by a TOML file with one table `[plans.<name>]` per plan.

    A new plan takes missing keys from `free`.

    Raises:
        ConfigurationError: the file, a plan, a key or a value is invalid; the message names all of them.
    """
    plans = _read_plans(_DEFAULT_FILE, {})
    if path is not None:
        plans = _read_plans(path, plans)
    return make_policy(plans)


def _read_plans(path: Path, base: Mapping[str, PlanPolicy]) -> dict[str, PlanPolicy]:
    plans = dict(base)
    for name, table in read_plan_tables(path, "the policy is").items():
        known = plans.get(name) or plans.get(FALLBACK_PLAN)
        values: dict[str, Any] = asdict(known) if known is not None else {}
        if not isinstance(table, dict):
            raise ConfigurationError(f"{path}: plans.{name} is not a table of {', '.join(_KEYS)}")
        for key, value in table.items():
            values[key] = _checked(path, name, key, value)
        missing = [key for key in _KEYS if key not in values]
        if missing:
            raise ConfigurationError(f"{path}: plans.{name} lacks {', '.join(missing)}")
        plans[name] = PlanPolicy(**values)
    return plans


def _checked(path: Path, plan: str, key: str, value: Any) -> Any:
    where = f"{path}: plans.{plan}.{key}"
    if key not in _KEYS:
        raise ConfigurationError(f"{where} is not a key; there are {', '.join(_KEYS)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{where} = {value!r} is not a number")
    if key == "novelty_count_min":
        # 0 would make everybody due at every tick, only to be skipped by the worker.
        if not isinstance(value, int) or not 1 <= value <= _COUNT_MAX:
            raise ConfigurationError(f"{where} = {value!r} is not a whole number of at least 1")
    elif not 0 <= value <= _SECONDS_MAX:
        raise ConfigurationError(f"{where} = {value!r} is not between 0 and {_SECONDS_MAX} seconds")
    return value

"""The plans of organizations: what each allows per month, and which limit blocks a request (R2.32, R2.33).

Invariant: the decision depends only on the plan, the subscription and the usage of an organization, so that the API,
which answers at once, and the sink, whose decision is final, agree on the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from highwater.schemas.errors import ConfigurationError
from highwater.streams.toml_files import read_plan_tables

PLAN_NAMES = ("free", "pro", "team", "enterprise")
FALLBACK_PLAN = "free"
BRAND_KIT = "brand_kit"
FEATURES = (BRAND_KIT, "api_access", "webhooks")
# The value of an unlimited limit, in Redis and JSON (R2.32).
UNLIMITED: Final = "unlimited"
MEBIBYTE, GIBIBYTE = 1 << 20, 1 << 30

_DEFAULT_FILE = Path(__file__).with_name("default_plans.toml")
# Its sums fit PostgreSQL's bigint and are exact in JSON readers.
_NUMBER_MAX = 10**12


class Subscription(StrEnum):
    """The payment status of an organization."""

    ACTIVE = "active"
    TRIALING = "trialing"
    PAST_DUE = "past_due"
    SUSPENDED = "suspended"


SUBSCRIPTIONS = tuple(Subscription)


class Limit(StrEnum):
    """The possible limits; the names are those of `plan_limits` and of a refusal's `limit`."""

    SUSPENDED = "suspended"
    PAST_DUE = "past_due"
    PRESENTATIONS = "max_presentations_per_month"
    TOKENS = "ai_tokens_per_month"
    FILE_SIZE = "max_file_size_mb"
    STORAGE = "storage_gb"
    FEATURES = "features"


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits of a plan; None: unlimited."""

    name: str
    max_presentations_per_month: int | None
    ai_tokens_per_month: int | None
    max_file_size_mb: int
    storage_gb: int
    requests_per_minute: int
    features: tuple[str, ...] = ()

    @property
    def file_bytes_max(self) -> int:
        """Return the bytes of the largest document."""
        return self.max_file_size_mb * MEBIBYTE

    @property
    def storage_bytes_max(self) -> int:
        """Return the bytes of everything stored."""
        return self.storage_gb * GIBIBYTE


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of an organization in a month at a new request, and the size of the request.

    `presentations`: decks built in the month or in progress; `tokens`: those of services, since the built-in model costs
    nothing; `file_bytes`: the largest document named; `stored_bytes`:
    all documents of the organization, including the new ones.
    """

    presentations: int = 0
    tokens: int = 0
    file_bytes: int = 0
    stored_bytes: int = 0


def refusal(
    plan: Plan,
    status: str,
    usage: Usage,
    *,
    is_new_deck: bool = False,
    is_query: bool = False,
    is_upload: bool = False,
    features: Collection[str] = (),
) -> Limit | None:
    """Return the limit that blocks one more job, a query, or an upload; None: it is allowed.

    A suspended organization may do nothing; one whose payment is past due gets no language-model calls, but keeps
    everything else (R2.33). Used-up limits block new work; work that began within the limit is never stopped by it.
    """
    calls_model = is_new_deck or is_query
    stands_in_the_way = {
        Limit.SUSPENDED: status == Subscription.SUSPENDED,
        Limit.PAST_DUE: calls_model and status == Subscription.PAST_DUE,
        Limit.PRESENTATIONS: is_new_deck and _is_reached(plan.max_presentations_per_month, usage.presentations),
        Limit.TOKENS: calls_model and _is_reached(plan.ai_tokens_per_month, usage.tokens),
        Limit.FILE_SIZE: usage.file_bytes > plan.file_bytes_max,
        Limit.FEATURES: not set(features) <= set(plan.features),
        Limit.STORAGE: is_upload and usage.stored_bytes > plan.storage_bytes_max,
    }
    return next((limit for limit, is_there in stands_in_the_way.items() if is_there), None)


def _is_reached(limit: int | None, used: int) -> bool:
    return limit is not None and used >= limit


def refusal_text(limit: Limit, organization_id: str, plan: Plan) -> str:
    """Return a refusal for people; it names the organization and the limit."""
    if limit is Limit.SUSPENDED:
        return f"the organization {organization_id} is suspended"
    if limit is Limit.PAST_DUE:
        return f"the organization {organization_id} is past_due: no presentations or answers are made until it has paid"
    if limit is Limit.FEATURES:
        return f"the organization {organization_id} asks for a feature that the plan {plan.name} has not: see features"
    verb = "is above" if limit in (Limit.FILE_SIZE, Limit.STORAGE) else "has reached"
    return f"the organization {organization_id} {verb} {limit}, which is {getattr(plan, limit)} in the plan {plan.name}"


_KEYS = tuple(field.name for field in fields(Plan) if field.name != "name")
_MAY_BE_UNLIMITED = (Limit.PRESENTATIONS, Limit.TOKENS)


def load_plans(path: Path | None = None) -> Mapping[str, Plan]:
    """Return the default plans, overridden key by key by a TOML file with one table `[plans.<name>]` per plan.

    Raises:
        ConfigurationError: the file, a plan, a key or a value is invalid; the message names all of them.
    """
    plans = _read_plans(_DEFAULT_FILE, {})
    return plans if path is None else _read_plans(path, plans)


def _read_plans(path: Path, base: Mapping[str, Plan]) -> dict[str, Plan]:
    plans = dict(base)
    for name, table in read_plan_tables(path, "the plans are").items():
        if name not in PLAN_NAMES:
            raise ConfigurationError(f"{path}: plans.{name} is not a plan; there are {', '.join(PLAN_NAMES)}")
        if not isinstance(table, dict):
            raise ConfigurationError(f"{path}: plans.{name} is not a table of {', '.join(_KEYS)}")
        known = asdict(plans[name]) if name in plans else {"name": name}
        plans[name] = Plan(**known | {key: _checked(path, name, key, value) for key, value in table.items()})
    return plans


def _checked(path: Path, plan: str, key: str, value: Any) -> Any:
    where = f"{path}: plans.{plan}.{key}"
    if key not in _KEYS:
        raise ConfigurationError(f"{where} is not a key; there are {', '.join(_KEYS)}")
    if key == "features":
        if not isinstance(value, list) or not all(isinstance(item, str) and item in FEATURES for item in value):
            raise ConfigurationError(f"{where} = {value!r} is not a list of {', '.join(FEATURES)}")
        return tuple(dict.fromkeys(value))
    if key in _MAY_BE_UNLIMITED and value == UNLIMITED:
        return None
    # To block a key, revoke it; 0 decks or tokens are a valid plan.
    least = 0 if key in _MAY_BE_UNLIMITED else 1
    if type(value) is not int or not least <= value <= _NUMBER_MAX:
        raise ConfigurationError(f"{where} = {value!r} is not a whole number of at least {least}")
    return value


PLANS: Mapping[str, Plan] = load_plans()


def plan_of(name: str | None, plans: Mapping[str, Plan] = PLANS) -> Plan:
    """Return the plan with that name; an unknown one, or none, counts as free."""
    found = plans.get(name) if name is not None else None
    return found if found is not None else plans[FALLBACK_PLAN]

"""Plans: their numbers, and which limit stands in the way of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.identity.plans import PLANS, Limit, Plan, Usage, load_plans, plan_of, refusal, refusal_text
from highwater.streams.jobs.states import Kind

SMALL = Plan("pro", 3, 1_000, 2, 1, 60)
MIB = 1 << 20


@pytest.mark.requirement("R2.28", "R2.32")
def test_the_plans_are_those_of_the_specification() -> None:
    """R2.28 and the example of R2.32."""
    assert {name: plan.requests_per_minute for name, plan in PLANS.items() if name != "enterprise"} == {
        "free": 10, "pro": 60, "team": 60,
    }  # fmt: skip
    team, enterprise = PLANS["team"], PLANS["enterprise"]
    assert (team.max_presentations_per_month, team.ai_tokens_per_month) == (100, 5_000_000)
    assert (team.max_file_size_mb, team.storage_gb) == (50, 50)
    assert (enterprise.max_presentations_per_month, enterprise.ai_tokens_per_month) == (None, None)


def test_an_unknown_plan_counts_as_free() -> None:
    """A misspelling gives no higher limits."""
    assert [plan_of(name).name for name in ("team", "gold", None)] == ["team", "free", "free"]


@pytest.mark.requirement("R2.33")
@pytest.mark.parametrize(
    ("status", "usage", "kind", "limit"),
    [
        ("active", Usage(2, 999, 2 * MIB), Kind.GENERATION, None),
        ("trialing", Usage(2, 999), Kind.GENERATION, None),
        ("active", Usage(3, 0), Kind.GENERATION, Limit.PRESENTATIONS),
        ("active", Usage(0, 1_000), Kind.GENERATION, Limit.TOKENS),
        ("active", Usage(0, 0, 2 * MIB + 1), Kind.GENERATION, Limit.FILE_SIZE),
        ("active", Usage(9, 9_999, 2 * MIB), Kind.INGESTION, None),
        ("active", Usage(9, 9_999, 2 * MIB + 1), Kind.INGESTION, Limit.FILE_SIZE),
        ("active", Usage(9, 9_999), Kind.EXPORT, None),
        ("past_due", Usage(), Kind.GENERATION, Limit.PAST_DUE),
        ("past_due", Usage(), Kind.INGESTION, None),
        ("past_due", Usage(), Kind.EXPORT, None),
        ("past_due", Usage(), None, None),
        *(("suspended", Usage(), kind, Limit.SUSPENDED) for kind in (*Kind, None)),
        ("active", Usage(file_bytes=2 * MIB, stored_bytes=1 << 30), None, None),
        ("active", Usage(stored_bytes=(1 << 30) + 1), None, Limit.STORAGE),
        ("active", Usage(stored_bytes=(1 << 30) + 1), Kind.GENERATION, None),
        ("active", Usage(file_bytes=2 * MIB + 1), None, Limit.FILE_SIZE),
    ],
)
def test_which_limit_stands_in_the_way(status: str, usage: Usage, kind: Kind | None, limit: Limit | None) -> None:
    """Only new decks are stopped by a month's limits and by an unpaid bill; a suspended organization may do nothing (R2.33)."""
    assert limit == refusal(SMALL, status, usage, is_new_deck=kind is Kind.GENERATION, is_upload=kind is None)


def test_a_limit_that_is_none_is_never_reached() -> None:
    """The enterprise plan continues without a limit."""
    assert refusal(PLANS["enterprise"], "active", Usage(10**9, 10**12), is_new_deck=True) is None


def test_a_plan_may_allow_no_decks_at_all() -> None:
    """A limit of 0 is reached before the first."""
    assert refusal(Plan("free", 0, None, 1, 1, 1), "active", Usage(), is_new_deck=True) is Limit.PRESENTATIONS


@pytest.mark.parametrize("limit", list(Limit))
def test_a_refusal_names_the_organization_and_the_limit(limit: Limit) -> None:
    """The reader learns what to request."""
    text = refusal_text(limit, "acme", SMALL)
    assert "acme" in text
    assert limit in text


def test_a_file_overrides_single_keys(tmp_path: Path) -> None:
    """Missing keys have the product's values."""
    path = tmp_path / "plans.toml"
    path.write_text(
        '[plans.free]\nmax_presentations_per_month = "unlimited"\nrequests_per_minute = 11\nfeatures = ["webhooks"]\n'
    )
    free = load_plans(path)["free"]
    assert (free.max_presentations_per_month, free.requests_per_minute, free.features) == (None, 11, ("webhooks",))
    assert free.ai_tokens_per_month == PLANS["free"].ai_tokens_per_month
    assert load_plans(path)["team"] == PLANS["team"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[plans.gold]\nstorage_gb = 1", "plans.gold"),
        ("[plans.free]\nspeed = 1", "plans.free.speed"),
        ("[plans.free]\nstorage_gb = 0", "plans.free.storage_gb"),
        ("[plans.free]\nstorage_gb = true", "plans.free.storage_gb"),
        ('[plans.free]\nstorage_gb = "unlimited"', "plans.free.storage_gb"),
        ("[plans.free]\nrequests_per_minute = 1.5", "plans.free.requests_per_minute"),
        ("[plans.free]\nai_tokens_per_month = -1", "plans.free.ai_tokens_per_month"),
        ('[plans.free]\nfeatures = ["sauna"]', "plans.free.features"),
        ("[plans]\nfree = 3", "plans.free"),
        ("[offers]\n", "offers"),
        ("plans =", "not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_the_name_of_what_is_wrong(
    tmp_path: Path, text: str, named: str
) -> None:
    """The program does not start with an invalid configuration."""
    path = tmp_path / "plans.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        load_plans(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Its name stands in the message."""
    with pytest.raises(ConfigurationError, match=r"nothing\.toml"):
        load_plans(tmp_path / "nothing.toml")

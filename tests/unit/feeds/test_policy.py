"""Plans are read from TOML, fall back to free, and refuse invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.feeds.policy import PlanPolicy, load_policy, make_policy


def written(folder: Path, text: str) -> Path:
    """A policy file."""
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.requirement("R0.10")
def test_the_defaults_are_those_of_the_specification() -> None:
    """Free 50 / 24 h / 7 d / 60 min, pro 20 / 6 h / 14 d / 15 min (R0.10)."""
    policy = load_policy()
    assert policy.plan("free") == PlanPolicy(50, 86_400, 7 * 86_400, 3_600)
    assert policy.plan("pro") == PlanPolicy(20, 6 * 3_600, 14 * 86_400, 900)


@pytest.mark.requirement("R0.10")
@pytest.mark.parametrize("name", ["platinum", "", None, "FREE"])
def test_an_unknown_plan_counts_as_free(name: str | None) -> None:
    """An unknown plan has the numbers of the free plan."""
    policy = load_policy()
    assert policy.plan(name) == policy.plan("free")


def test_a_file_overrides_single_keys_and_adds_plans(tmp_path: Path) -> None:
    """Keys left out keep the default; a new plan takes them from free."""
    policy = load_policy(written(tmp_path, "[plans.pro]\ncooldown_seconds = 0.5\n[plans.vip]\nnovelty_count_min = 1\n"))
    assert policy.plan("pro") == PlanPolicy(20, 6 * 3_600, 14 * 86_400, 0.5)
    assert policy.plan("pro").cooldown_ms == 500
    assert policy.plan("vip") == PlanPolicy(1, 86_400, 7 * 86_400, 3_600)


def test_the_hash_stands_for_the_numbers_alone(tmp_path: Path) -> None:
    """Sixteen hex digits, the same for the same numbers however written, another for another number."""
    default = load_policy().hash
    assert len(default) == 16
    assert int(default, 16) >= 0
    assert load_policy(written(tmp_path, "[plans.pro]\ncooldown_seconds = 900.0\n")).hash == default
    assert load_policy(written(tmp_path, "[plans.pro]\ncooldown_seconds = 901\n")).hash != default


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[plans.pro]\ncooldown_seconds = -1\n", "plans.pro.cooldown_seconds"),
        ("[plans.pro]\ncooldown_minutes = 1\n", "plans.pro.cooldown_minutes"),
        ("[plans.pro]\ncooldown_seconds = 'soon'\n", "plans.pro.cooldown_seconds"),
        ("[plans.pro]\ncooldown_seconds = true\n", "plans.pro.cooldown_seconds"),
        ("[plans.pro]\ncooldown_seconds = nan\n", "plans.pro.cooldown_seconds"),
        ("[plans.pro]\ncooldown_seconds = 1e300\n", "plans.pro.cooldown_seconds"),
        ("[plans.pro]\nnovelty_count_min = 0\n", "plans.pro.novelty_count_min"),
        ("[plans.pro]\nnovelty_count_min = 2.5\n", "plans.pro.novelty_count_min"),
        ("plans = 3\n", "plans"),
        ("[plans]\npro = 3\n", "plans.pro"),
        ("[plan.pro]\ncooldown_seconds = 1\n", "plan"),
        ("[plans.pro\n", "TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    """The message is one line that names the file, the plan and the key."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as refused:
        load_policy(path)
    assert str(path) in str(refused.value)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A policy that was named must be there: the defaults would be a surprise."""
    with pytest.raises(ConfigurationError, match=r"absent\.toml"):
        load_policy(tmp_path / "absent.toml")


def test_a_policy_without_free_is_refused() -> None:
    """Free stands in for unknown plans."""
    with pytest.raises(ConfigurationError, match="free"):
        make_policy({})

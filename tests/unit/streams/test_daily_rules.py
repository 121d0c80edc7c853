"""When a daily digest is due, and what its file may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.daily_rules import DailyRule, DailySent, due_day, load_daily_rules

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
RULE = DailyRule("ada", 450, "mail", "ada@example.org", sends_empty=True)


def test_a_rule_is_due_once_a_day_from_its_time_on() -> None:
    """Not before 07:30, then at any later time until it is sent; the next day at the same time again."""
    at = 100 * DAY_MS + 7 * HOUR_MS + HOUR_MS // 2
    sent = DailySent(99, 5)
    assert due_day(RULE, sent, at - 1) is None
    assert due_day(RULE, sent, at) == 100
    assert due_day(RULE, sent, at + 10 * HOUR_MS) == 100
    assert due_day(RULE, DailySent(100, 6), at + 10 * HOUR_MS) is None
    assert due_day(RULE, DailySent(100, 6), at + DAY_MS) == 101


def test_a_new_rule_is_due_at_once_and_days_that_were_missed_are_one() -> None:
    """After a week without the process there is one digest."""
    at = 100 * DAY_MS + 8 * HOUR_MS
    assert due_day(RULE, None, at) == 100
    assert due_day(RULE, DailySent(93, 5), at) == 100


def test_a_file_holds_rules(tmp_path: Path) -> None:
    """User, time of day, one address, and whether a day without news is sent; the stored name hides the address."""
    path = tmp_path / "digests.toml"
    path.write_text(
        '[[digest]]\nuser = "ada"\nat = "07:30"\nmail = "ada@example.org"\n'
        '[[digest]]\nuser = "ada"\nat = "18:00"\nwebhook = "https://hook.test/token"\nempty = false\n'
    )
    rules = load_daily_rules(path, "SETTING")
    assert rules == (RULE, DailyRule("ada", 1080, "webhook", "https://hook.test/token", sends_empty=False))
    assert rules[1].name.startswith("webhook:")
    assert "token" not in rules[1].name
    assert load_daily_rules(None, "SETTING") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digest = 1", "something else than tables"),
        ("[other]\n[[digest]]", "something else than tables"),
        ('[[digest]]\nuser = ""\nat = "07:30"\nmail = "a"', "digest 1: user"),
        ('[[digest]]\nuser = "a"\nat = "7:30"\nmail = "a"', "digest 1: at"),
        ('[[digest]]\nuser = "a"\nat = "24:00"\nmail = "a"', "digest 1: at"),
        ('[[digest]]\nuser = "a"\nat = "07:30"', "either mail or webhook"),
        ('[[digest]]\nuser = "a"\nat = "07:30"\nmail = "a"\nwebhook = "b"', "either mail or webhook"),
        ('[[digest]]\nuser = "a"\nat = "07:30"\nmail = 1', "either mail or webhook"),
        ('[[digest]]\nuser = "a"\nat = "07:30"\nmail = "a"\nempty = 1', "neither true nor false"),
        ('[[digest]]\nuser = "a"\nat = "07:30"\nmail = "a"\nsms = "b"', "is not a table of at, empty, mail"),
        ('[[digest]]\nuser = "a"\nat = "07:30"\nmail = "a"\n' * 2, "two digests of one user to one address"),
        ("".join(f'[[digest]]\nuser = "u{n}"\nat = "07:30"\nmail = "a"\n' for n in range(101)), "the limit is 100"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """With the setting, the file and the fault."""
    path = tmp_path / "digests.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as found:
        load_daily_rules(path, "SETTING")
    assert words in str(found.value)
    assert str(found.value).startswith(f"SETTING: {path}")

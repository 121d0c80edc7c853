"""What is sent to people once a day: who gets it, when and how; and when it is due.

Invariant: a rule is due once for each day, from its time of that day on; a day that was missed is not made up, since what
is sent later begins where the last one ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from highwater.schemas.errors import ConfigurationError
from highwater.streams.toml_files import read_toml

MAIL, WEBHOOK = "mail", "webhook"
# As many as one process sends in a minute or two, one after the other.
RULES_MAX = 100
_MINUTE_MS, _DAY_MS = 60_000, 86_400_000
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_KEYS = {"user", "at", MAIL, WEBHOOK, "empty"}


@dataclass(frozen=True, slots=True)
class DailyRule:
    """One line of the file: what user's news, at which minute of the day (UTC), by which channel and to which address.

    `sends_empty`: a day without news is sent, too.
    """

    user_id: str
    minute: int
    channel: str
    to: str
    sends_empty: bool

    @property
    def name(self) -> str:
        """Return what the channel is stored as; it does not reveal the address, which may hold a token."""
        return f"{self.channel}:{sha256(self.to.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class DailySent:
    """The last day (since 1970) for which a rule was carried out, and the version that its reader knows since."""

    day: int
    version: int


def due_day(rule: DailyRule, last: DailySent | None, now_ms: int) -> int | None:
    """Return the day for which a rule is due at a time in ms since 1970; None: it is not due."""
    day = (now_ms - rule.minute * _MINUTE_MS) // _DAY_MS
    return day if last is None or day > last.day else None


def load_daily_rules(path: Path | None, setting: str) -> tuple[DailyRule, ...]:
    """Return the rules in a TOML file with a table `[[digest]]` for each; none without a file.

    Raises:
        ConfigurationError: the file or a rule is invalid, or the file has two for one user and address.
    """
    if path is None:
        return ()
    document = read_toml(path, "the digests are")
    tables = document.get("digest", [])
    if set(document) - {"digest"} or not isinstance(tables, list):
        raise ConfigurationError(f"{setting}: {path} holds something else than tables [[digest]]")
    rules = tuple(_rule(table, f"{setting}: {path}: digest {place}") for place, table in enumerate(tables, start=1))
    if len({(rule.user_id, rule.name) for rule in rules}) < len(rules):
        raise ConfigurationError(f"{setting}: {path} sends two digests of one user to one address")
    if len(rules) > RULES_MAX:
        raise ConfigurationError(f"{setting}: {path} has {len(rules)} digests; the limit is {RULES_MAX}")
    return rules


def _rule(table: Any, where: str) -> DailyRule:
    if not isinstance(table, Mapping) or set(table) - _KEYS:
        raise ConfigurationError(f"{where} is not a table of {', '.join(sorted(_KEYS))}")
    user_id, at, sends_empty = table.get("user"), table.get("at"), table.get("empty", True)
    if not isinstance(user_id, str) or not user_id:
        raise ConfigurationError(f"{where}: user is not the id of a user")
    time = _TIME.fullmatch(at) if isinstance(at, str) else None
    if time is None:
        raise ConfigurationError(f'{where}: at is not a time of day in UTC, "07:30"')
    if not isinstance(sends_empty, bool):
        raise ConfigurationError(f"{where}: empty is neither true nor false")
    named = [channel for channel in (MAIL, WEBHOOK) if channel in table]
    if len(named) != 1 or not isinstance(table[named[0]], str):
        raise ConfigurationError(f"{where} needs an address: either {MAIL} or {WEBHOOK}")
    return DailyRule(user_id, int(time[1]) * 60 + int(time[2]), named[0], table[named[0]], sends_empty)

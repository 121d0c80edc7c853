"""Times as options: an ISO 8601 time, or an age before now."""

from __future__ import annotations

import re
from typing import Any

import click

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE = re.compile(r"-(\d{1,9})([smhd])")


class TimeOption(click.ParamType):
    """An ISO 8601 time or an age such as -30d, as milliseconds; an age is negative."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970; an age is negative."""
        from highwater.schemas.envelope import ms_from_iso

        if isinstance(value, int):
            return value
        age = _AGE.fullmatch(value)
        if age is not None:
            return -int(age[1]) * _UNIT_MS[age[2]]
        try:
            return max(0, ms_from_iso(value))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither an ISO 8601 time nor an age such as -30d", param, ctx)


def at_ms(given: int, now_ms: int) -> int:
    """Return the time in ms since 1970; an age that reaches further back is 1970."""
    return given if given >= 0 else max(0, now_ms + given)

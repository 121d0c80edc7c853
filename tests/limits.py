"""Limits of a run of tests: one that hangs ends with the stacks of its threads, and says at once what failed; one that takes
too long leaves out what takes longest.
"""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import pytest

from highwater.streams.clock import ProductClock

# pytest-timeout raises in a test that takes too long. It does not once the test has failed, so that what its fixtures then wait
# for has no limit; nor does the exception arrive in a call that does not return, or after the last test. Then the process exits
# this many seconds after the limit.
HUNG_SECONDS = 120
# Of each failure that is shown as it happens; the whole is in the summary.
_CHARACTERS_SHOWN = 1_500


class Limits:
    """A plugin of pytest. `errors`: the descriptor of the standard error, since the tests' own is captured."""

    def __init__(self, errors: int) -> None:
        self._errors = errors
        self._seconds: float = HUNG_SECONDS

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, settings: Any) -> None:
        """Bound a test with its fixtures, by its own limit."""
        self._seconds = settings.timeout + HUNG_SECONDS
        self._exit_after(self._seconds)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Bound what is left of a test that failed; pytest has just cancelled the limit."""
        self._exit_after(self._seconds)

    def pytest_runtest_logfinish(self) -> None:
        """Bound the time until the next test."""
        self._exit_after(HUNG_SECONDS)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say what failed: a run that is ended has no summary."""
        if report.failed:
            text = f"\n{report.nodeid}: {report.when} failed\n{report.longreprtext[-_CHARACTERS_SHOWN:]}\n"
            os.write(self._errors, text.encode())

    def _exit_after(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._errors)


class LongTests:
    """A plugin of pytest: tests marked `long` come last, and are left out after `until_ms` (since 1970)."""

    def __init__(self, until_ms: int) -> None:
        self._until_ms = until_ms

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order them."""
        items.sort(key=_is_long)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Leave it out before anything is started for it."""
        if _is_long(item) and ProductClock()() > self._until_ms:
            pytest.skip("a long test, and the time of the gate is used up (.ci/run)")


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None

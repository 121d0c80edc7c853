"""Where tests of jobs begin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Stack
from tests.integration.jobs.making import Jobs, jobs


@pytest.fixture
async def j(stack: Stack) -> AsyncIterator[Jobs]:
    """Jobs on an empty database."""
    async with jobs(stack) as made:
        yield made

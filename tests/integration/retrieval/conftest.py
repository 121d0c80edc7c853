"""Where tests of retrieval begin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Stack
from tests.integration.chunks.chunk_rows import Rows
from tests.integration.databases import own_database


@pytest.fixture
async def rows(stack: Stack) -> AsyncIterator[Rows]:
    """An empty database of its own."""
    async with own_database(stack) as context:
        yield Rows(context.pool)

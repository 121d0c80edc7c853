"""An API that asks for a key, and who administers it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.integration.api_server import Api


@pytest.fixture(scope="module")
def api(guarded: Api) -> Api:
    """An API with the keys that the module names."""
    return guarded


@pytest.fixture
async def admin(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with the admin's key."""
    async with api.client("root") as client:
        yield client

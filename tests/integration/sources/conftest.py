"""The inputs of the tests of sources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sources.github_server import GitHubServer


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    """A service of the test's own."""
    with GitHubServer() as server:
        yield server

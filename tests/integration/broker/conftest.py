"""A topic, a group and a schema of another application."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Stack
from tests.integration.broker.making import foreign_subject, foreign_topic
from tests.integration.connecting import fresh


@pytest.fixture(scope="module")
def foreign(stack: Stack) -> Iterator[str]:
    """A topic of another application with five records; a group of the same name has read two of them."""
    with foreign_topic(stack.kafka, fresh("orders")) as name:
        yield name


@pytest.fixture(scope="module")
def subject(stack: Stack) -> str:
    """A subject of another application: its second version has one more field."""
    return foreign_subject(stack.schema_registry, f"{fresh('orders')}-value")

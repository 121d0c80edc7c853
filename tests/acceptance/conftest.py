"""Shared fixtures of acceptance tests: a product that calls a scripted chat service, since to start
one takes most of a minute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from highwater.deploy.local.stack import Addresses, LocalStack
from tests.conftest import RUNNING
from tests.integration.models.scripted_llm import ScriptedLLM
from tests.product import Product

# A call that is held must not time out while a process is killed and started again on a busy machine.
_CALL_SECONDS = 60
# The model that is asked: an answer of two tokens costs 14.5 cents, so a deck of one slide (two calls) 29.
_USD_PER_MILLION = 72_500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the product stand together, so that it is not running beside those that do not need it."""
    items.sort(key=lambda item: "scripted" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def llm() -> Iterator[ScriptedLLM]:
    """The chat service."""
    with ScriptedLLM() as server:
        yield server


@pytest.fixture(scope="session")
def scripted(
    shared_registry: Addresses, tmp_path_factory: pytest.TempPathFactory, llm: ScriptedLLM
) -> Iterator[Product]:
    """A product that asks that service; its clock only goes forward, its processes may be killed."""
    folder: Path = tmp_path_factory.mktemp("scripted")
    with contextlib.ExitStack() as running:
        RUNNING["scripted"] = running
        local = running.enter_context(LocalStack(folder / "parts", shared_registry))
        product = Product(folder / "data", local)
        product.environment.update(
            LLM_BASE_URL=llm.url,
            LLM_API_KEY="key",
            LLM_MODEL="m",
            HIGHWATER_LLM_PRICES=f"m=0/{_USD_PER_MILLION}",
            HIGHWATER_LLM_TIMEOUT_SECONDS=str(_CALL_SECONDS),
        )
        yield running.enter_context(product)

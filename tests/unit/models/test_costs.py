"""The cost of calls of the language model."""

from __future__ import annotations

from decimal import Decimal

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.costs import parse_prices
from highwater.streams.settings import Settings


def test_a_call_costs_its_tokens_at_the_price_per_million() -> None:
    """In and out at their own prices, exactly."""
    prices = parse_prices(" gpt-4o-mini = 0.15 / 0.60 , gpt-4o=2.50/10,")
    assert prices.cost_usd("gpt-4o-mini", 1_000, 500) == Decimal("0.00045")
    assert prices.cost_usd("gpt-4o", 1_000_000, 1) == Decimal("2.50001")
    assert prices.cost_usd("gpt-4o", 0, 0) == 0


def test_a_model_without_a_price_has_none() -> None:
    """It is None, not zero; a model with a similar name is not used either."""
    prices = parse_prices("gpt-4o=2.50/10.00")
    assert prices.cost_usd("other", 1, 1) is None
    assert prices.cost_usd("gpt-4o-mini", 1, 1) is None
    assert prices.cost_usd("gpt-4", 1, 1) is None
    assert parse_prices(" ").cost_usd("gpt-4o", 1, 1) is None


def test_a_dated_name_has_the_price_of_its_model() -> None:
    """Services answer with the version that they used; the longest name counts."""
    prices = parse_prices("gpt-4o=2.50/10.00,gpt-4o-2024=1/1")
    assert prices.cost_usd("gpt-4o-2023-08-06", 1_000_000, 0) == Decimal("2.5")
    assert prices.cost_usd("gpt-4o-2024-08-06", 1_000_000, 0) == 1


def test_a_name_may_hold_an_equals_sign() -> None:
    """The last one is what the prices follow."""
    assert parse_prices("ft:a=b=1/2").cost_usd("ft:a=b", 0, 1_000_000) == 2


def test_the_default_setting_can_be_read() -> None:
    """Both default models have a price."""
    settings = Settings()
    prices = parse_prices(settings.llm_prices)
    assert prices.cost_usd(settings.llm_model, 1, 1) is not None
    assert prices.cost_usd(settings.llm_strong_model, 1, 1) is not None


@pytest.mark.parametrize(
    "text",
    ["a", "a=1", "a=1/2/3", "=1/2", "a=x/1", "a=/1", "a=-1/1", "a=NaN/1", "a=1/inf", "a=1/1,a=2/2", "a=1/1000000"],
)
def test_a_price_that_cannot_be_read_stops_the_start(text: str) -> None:
    """The setting and the part at fault are named."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_LLM_PRICES"):
        parse_prices(text)

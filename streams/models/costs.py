"""What calls of the language model cost (R1.41). Invariant: money is decimal, and an unknown price is None, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from highwater.schemas.errors import ConfigurationError

_PER_TOKENS = 1_000_000
# The scale of the database column: a hundred-millionth of a dollar, a hundredth of the cheapest token on offer.
_SCALE = Decimal("0.00000001")
# A price per million tokens above this is a typing error.
_PRICE_USD_MAX = Decimal(100_000)
_FORM = "model=input/output,... in USD per million tokens"


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per million tokens, in and out, by model."""

    by_model: Mapping[str, tuple[Decimal, Decimal]]

    def cost_usd(self, model: str, prompt_tokens: int, completion_tokens: int) -> Decimal | None:
        """Return what a call cost, to eight places; None if the model has no price.

        A service may answer with a dated name (`gpt-4o-2024-08-06`): the longest priced name that is its prefix counts.
        """
        price = self._price_of(model)
        if price is None:
            return None
        return ((price[0] * prompt_tokens + price[1] * completion_tokens) / _PER_TOKENS).quantize(_SCALE)

    def _price_of(self, model: str) -> tuple[Decimal, Decimal] | None:
        if (exact := self.by_model.get(model)) is not None:
            return exact
        # Only if a date or version follows: `gpt-4o-mini` without a price of its own does not cost what `gpt-4o` does.
        dated = [
            name for name in self.by_model if model.startswith(f"{name}-") and model[len(name) + 1 :][:1].isdigit()
        ]
        return self.by_model[max(dated, key=len)] if dated else None


# Without prices no cost is known.
UNPRICED = Prices({})


def parse_prices(text: str) -> Prices:
    """Parse the setting `HIGHWATER_LLM_PRICES`; a blank text has no prices.

    Raises:
        ConfigurationError: a part is not `model=input/output`, a price is not a number from 0, or a model has two.
    """
    by_model: dict[str, tuple[Decimal, Decimal]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        # A name may contain an equals sign (a fine-tuned model), a price does not.
        model, _, prices = part.rpartition("=")
        model = model.strip()
        given = prices.split("/")
        if not model or len(given) != 2:
            raise ConfigurationError(f"HIGHWATER_LLM_PRICES: {part!r} is not of the form {_FORM}")
        if model in by_model:
            raise ConfigurationError(f"HIGHWATER_LLM_PRICES: {model} has two prices")
        by_model[model] = (_price(given[0], part), _price(given[1], part))
    return Prices(by_model)


def _price(text: str, part: str) -> Decimal:
    try:
        price = Decimal(text.strip())
    except InvalidOperation as error:
        raise ConfigurationError(f"HIGHWATER_LLM_PRICES: {part!r} is not of the form {_FORM}") from error
    if not (price.is_finite() and 0 <= price <= _PRICE_USD_MAX):
        raise ConfigurationError(f"HIGHWATER_LLM_PRICES: {part!r} has a price that is not from 0 to {_PRICE_USD_MAX}")
    return price

"""One call of a language model: the port for queries and jobs, and the built-in model that is used without a service.

Invariant: a call is one attempt within one time limit, and ends in an answer or a `CallFailedError` with one of five
failures. The service: `chat_service.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Protocol, TypeAlias

from highwater.schemas.errors import HighwaterError
from highwater.streams.models.answers import clean_text
from highwater.streams.models.costs import Prices
from highwater.streams.models.retries import Failure
from highwater.streams.models.tokens import count_tokens
from highwater.streams.telemetry import LLM_COST_USD, LLM_TOKENS


class CallFailedError(HighwaterError):
    """The language model gave no usable answer. See the failure, the log and LLM_BASE_URL."""

    def __init__(self, failure: Failure, detail: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(detail, retry_after_ms=retry_after_ms)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class ChatCall:
    """The request of a stage. `key` is the same whenever the call is repeated, so that a service may answer it once.

    `stage` is one of the stages of queries, or a step of a job (`outline`, `slide-7`).
    """

    stage: str
    key: str
    model: str
    system: str
    user: str
    temperature: float
    tokens_max: int
    is_json: bool


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A model's answer and its usage. `model` is the requested one, which prices and labels name.

    `is_cut`: the model reached its limit of tokens before the end.
    """

    text: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    is_cut: bool = False


def count_answer(answer: ChatAnswer, prices: Prices) -> Decimal | None:
    """Count the tokens of an answer and what they cost; return it in USD, None if the model has no price."""
    cost = prices.cost_usd(answer.model, answer.prompt_tokens, answer.completion_tokens)
    LLM_TOKENS.labels(answer.model, "prompt").inc(answer.prompt_tokens)
    LLM_TOKENS.labels(answer.model, "completion").inc(answer.completion_tokens)
    LLM_COST_USD.labels(answer.model).inc(float(cost or 0))
    return cost


# Called with each piece of an answer as it comes; together they are its text.
OnDelta: TypeAlias = Callable[[str], None]


class ChatPort(Protocol):
    """A service or model that answers calls."""

    # Whether a repeated call costs twice; the end of a free call may be stored with what follows from it.
    is_paid: bool

    async def complete(self, call: ChatCall, on_delta: OnDelta | None = None) -> ChatAnswer:
        """Return the answer; `on_delta` gets its pieces, if it comes in pieces. Pieces of a failed call do not count.

        Raises:
            CallFailedError: there is no answer, and why.
        """

    async def close(self) -> None:
        """Release its resources."""


# The built-in model's answer to a call; each slice knows the answers to its own.
LocalAnswer: TypeAlias = Callable[[ChatCall], str]
# The name under which the built-in model's calls are counted; it has no price.
BUILT_IN = "built-in"
# Between two sentences or lines, without consuming a character.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)(?=.)")


@lru_cache(maxsize=16)
def _prompt_tokens(prompt: str) -> int:
    """Estimate the tokens of a system prompt; there are few prompts."""
    return count_tokens(prompt)


class LocalChat:
    """The built-in model, which quotes its input: queries are answered and decks built without a service."""

    is_paid = False

    def __init__(self, answer: LocalAnswer) -> None:
        self._answer = answer

    async def complete(self, call: ChatCall, on_delta: OnDelta | None = None) -> ChatAnswer:
        """Return its answer, which always exists; the pieces are its sentences."""
        text = clean_text(self._answer(call))
        if on_delta is not None:
            for sentence in _SENTENCE_END.split(text):
                on_delta(sentence)
        return ChatAnswer(text, BUILT_IN, _prompt_tokens(call.system) + count_tokens(call.user), count_tokens(text))

    async def close(self) -> None:
        """Do nothing."""

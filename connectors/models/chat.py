"""Requests a JSON object from a chat service within one time limit; used for feeds and titles.

The interface is `ChatModel.object_for`. Every failure (no response, an error page, a truncated document) raises
`ModelError` after as many attempts as fit into the time limit; callers only ever receive parsed objects.
`chat_service.py` builds the client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from highwater.connectors.models.calls import CallFailedError, count_answer
from highwater.connectors.models.opening import context_windows
from highwater.schemas.errors import UnavailableError
from highwater.streams.models.answers import UnusableAnswerError, json_object_in
from highwater.streams.models.completion import cut_off
from highwater.streams.models.costs import UNPRICED, Prices, parse_prices
from highwater.streams.models.retries import Failure
from highwater.streams.retry import MODEL_CALL, RetryPolicy
from highwater.streams.settings import Settings
from highwater.streams.telemetry import MODEL_CALLS, get_log

if TYPE_CHECKING:
    from highwater.connectors.models.chat_service import ChatEndpoint

# All attempts together: a reader waits for it, and otherwise gets the last document or a 503.
CALL_SECONDS_MAX = 30.0
# A feed of 50 items of three sentences each is about 6,000 tokens.
TOKENS_MAX = 8_000

_log = get_log("llm")


class ModelError(UnavailableError):
    """The language model gave no usable answer. The last document is served; see the log and LLM_BASE_URL."""

    retry_after_ms = 5_000


class ChatModel:
    """A chat model behind a service."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        model: str,
        *,
        seconds_max: float = CALL_SECONDS_MAX,
        policy: RetryPolicy = MODEL_CALL,
        prices: Prices = UNPRICED,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._seconds_max = seconds_max
        self._policy = policy
        self._prices = prices

    async def object_for(self, system: str, user: str) -> dict[str, Any]:
        """Return the JSON object of the model's answer.

        Raises:
            ModelError: no attempt returned one within the time.
        """
        reason = f"no answer within {self._seconds_max} s"
        try:
            async with asyncio.timeout(self._seconds_max):
                attempt = 0
                while True:
                    attempt += 1
                    try:
                        found = await self._attempt(system, user)
                    except CallFailedError as error:
                        reason = str(error)
                        MODEL_CALLS.labels("chat", "failed").inc()
                        wait_ms = self._policy.wait_ms(attempt)
                        if error.failure is Failure.REFUSED or wait_ms is None:
                            break
                        await asyncio.sleep(max(wait_ms, error.retry_after_ms or 0) / 1000)
                    else:
                        MODEL_CALLS.labels("chat", "answered").inc()
                        return found
        except TimeoutError:
            MODEL_CALLS.labels("chat", "timed_out").inc()
        _log.warning("the language model gave no usable answer", reason=reason)
        raise ModelError(f"the language model gave no usable answer: {reason}")

    async def _attempt(self, system: str, user: str) -> dict[str, Any]:
        answer = await self._endpoint.ask(self._model, system, user, temperature=0, tokens_max=TOKENS_MAX, is_json=True)
        count_answer(answer, self._prices)
        try:
            return json_object_in(answer.text)
        except UnusableAnswerError as error:
            raise CallFailedError(Failure.UNUSABLE, cut_off(TOKENS_MAX) if answer.is_cut else str(error)) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._endpoint.close()


def open_chat_model(settings: Settings) -> ChatModel | None:
    """Return the configured model; None without one, and then summaries are extractive."""
    if settings.llm_url is None:
        return None
    from highwater.connectors.models.chat_service import ChatEndpoint  # noqa: PLC0415 - its client takes half a second

    windows = context_windows(settings)
    endpoint = ChatEndpoint(settings.llm_url, settings.llm_key, seconds_max=CALL_SECONDS_MAX, windows=windows)
    return ChatModel(endpoint, settings.llm_model, prices=parse_prices(settings.llm_prices))

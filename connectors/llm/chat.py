"""One call of an OpenAI-compatible chat service that answers with a JSON object, within one time limit.

The port: `ChatModel.object_for`. Whatever goes wrong (silence, an error page, half a document) is one error, `ModelError`,
after as many attempts as fit the time; nothing of the service's answer reaches a caller unparsed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import orjson

from schemas.errors import UnavailableError
from streams.retry import MODEL_CALL, RetryPolicy
from streams.settings import Settings
from streams.telemetry import MODEL_CALLS, get_log

# All attempts together: a reader waits for it, and what follows is the last document or a 503.
CALL_SECONDS_MAX = 30.0
# A feed of 50 items of three sentences each is about 6,000 tokens.
TOKENS_MAX = 8_000
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500

_log = get_log("llm")


class ModelError(UnavailableError):
    """The language model gave no usable answer. The last document is served; see the log and LLM_BASE_URL."""

    retry_after_ms = 5_000


class _AttemptError(Exception):
    """One attempt failed; `wait_ms` is what the service asked for, None when it asked for nothing."""

    def __init__(self, reason: str, *, is_final: bool = False, wait_ms: int | None = None) -> None:
        super().__init__(reason)
        self.is_final = is_final
        self.wait_ms = wait_ms


class ChatModel:
    """A chat model at an address."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        seconds_max: float = CALL_SECONDS_MAX,
        policy: RetryPolicy = MODEL_CALL,
    ) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # local services need no key, the client insists on one
            max_retries=0,  # attempts are counted here, so that they share one time limit
            timeout=seconds_max,
        )
        self._model = model
        self._seconds_max = seconds_max
        self._policy = policy

    async def object_for(self, system: str, user: str) -> dict[str, Any]:
        """The JSON object that the model answers with.

        Raises:
            ModelError: no attempt gave one within the time.
        """
        reason = f"no answer within {self._seconds_max} s"
        try:
            async with asyncio.timeout(self._seconds_max):
                attempt = 0
                while True:
                    attempt += 1
                    try:
                        found = await self._attempt(system, user)
                    except _AttemptError as error:
                        reason = str(error)
                        MODEL_CALLS.labels("chat", "failed").inc()
                        wait_ms = self._policy.wait_ms(attempt)
                        if error.is_final or wait_ms is None:
                            break
                        await asyncio.sleep(max(wait_ms, error.wait_ms or 0) / 1000)
                    else:
                        MODEL_CALLS.labels("chat", "answered").inc()
                        return found
        except TimeoutError:
            MODEL_CALLS.labels("chat", "timed_out").inc()
        _log.warning("the language model gave no usable answer", reason=reason)
        raise ModelError(f"the language model gave no usable answer: {reason}")

    async def _attempt(self, system: str, user: str) -> dict[str, Any]:
        try:
            completion = await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                response_format={"type": "json_object"},
                temperature=0,
                max_tokens=TOKENS_MAX,
            )
        except openai.APIStatusError as error:
            is_final = error.status_code < _SERVER_ERROR and error.status_code != _TOO_MANY_REQUESTS
            wait_ms = _retry_after_ms(error.response.headers.get("retry-after"))
            raise _AttemptError(f"status {error.status_code}", is_final=is_final, wait_ms=wait_ms) from error
        except openai.OpenAIError as error:
            raise _AttemptError(str(error) or type(error).__name__) from error
        except ValueError as error:  # a body that says it is JSON and is not
            raise _AttemptError(f"not JSON: {error}") from error
        return _object_in(completion)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()


def _retry_after_ms(text: str | None) -> int | None:
    return int(text) * 1000 if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else None


def _object_in(completion: Any) -> dict[str, Any]:
    """The object in a completion. The client does not check what it is given, so nothing is taken for granted here."""
    choices = getattr(completion, "choices", None)
    content = getattr(getattr(choices[0], "message", None), "content", None) if choices else None
    if not isinstance(content, str):
        raise _AttemptError("the answer is not a chat completion")
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _AttemptError(f"the content is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _AttemptError("the content is not a JSON object")
    return found


def open_chat_model(settings: Settings) -> ChatModel | None:
    """The configured model; None when none is, and summaries are extractive."""
    if settings.llm_url is None:
        return None
    return ChatModel(settings.llm_url, settings.llm_key, settings.llm_model)

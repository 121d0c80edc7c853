"""The client of a chat service: one attempt per call, within one time limit, with a limited and checked answer.

Invariant: nothing that a service sends can hold a worker longer, fill its memory, or put its key into an error. Only
this module imports the service's client library, which takes half a second to load: installations without a service do
not load it (`calls.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import httpx2
import openai

from highwater.connectors.bounded import UnusableAnswerError, bounded_transport
from highwater.connectors.models.calls import CallFailedError, ChatAnswer, ChatCall, OnDelta
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import Clock, ProductClock, to_ms
from highwater.streams.models.answers import clean_text
from highwater.streams.models.completion import NoCompletion, completion_in, failure_of_status
from highwater.streams.models.context_windows import ContextWindows, is_too_long
from highwater.streams.models.event_stream import StreamedAnswer, completion_of
from highwater.streams.models.retries import Failure
from highwater.streams.models.tokens import count_tokens

# The longest requested answer is 8,000 tokens: some 400 kB if every character is escaped. Five times that leaves room
# for what services add, and 64 concurrent calls hold at most 128 MiB.
RESPONSE_BYTES_MAX = 2 * 1024 * 1024
# The part of an error page that is shown: enough to distinguish a proxy from a model, and short enough for a log line.
_DETAIL_CHARACTERS_MAX = 200
# More than the pipeline would wait anyway (`streams/models/retries.py`); a larger number is a mistake.
_RETRY_AFTER_MS_MAX = 24 * 3_600_000
# Counts are stored as 32-bit integers.
_COUNT_MAX = 2**31 - 1
_BAD_REQUEST, _UNPROCESSABLE = 400, 422
# Characters that a header may contain; a key with a line break would be quoted completely in the error about it.
_KEY = re.compile(r"[\x20-\x7e]+")


# A form that is cut off at four times what its stage needs does not end by itself.
_LONGER_MAX = 4
# The fields that request an answer in pieces, followed by its token counts.
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
# Receives the pieces of the response that this task reads.
_reading: ContextVar[StreamedAnswer | None] = ContextVar("reading", default=None)


class _Form(NamedTuple):
    """The form of a request: models and services differ in what they refuse.

    OpenAI's reasoning models refuse `max_tokens` and a temperature; older services do not know `max_completion_tokens`.
    """

    limit: str = "max_completion_tokens"
    has_temperature: bool = True
    is_streamed: bool = True
    # Reasoning counts as tokens of the answer for some services, so a limit that is long enough for the answer may cut it off.
    longer: int = 1

    def fields(self, temperature: float, tokens_max: int, *, is_streamed: bool) -> dict[str, Any]:
        """Return the fields of a request; `is_streamed`: the answer should come in pieces."""
        return {
            self.limit: tokens_max * self.longer,
            **({"temperature": temperature} if self.has_temperature else {}),
            # Bypasses the client, which would otherwise parse the response itself.
            **({"extra_body": _STREAMED} if is_streamed and self.is_streamed else {}),
        }

    def after(self, refusal: str, *, is_streamed: bool) -> _Form | None:
        """Return another form if the refusal names a field that can be sent differently; None: it was refused for
        another reason.

        `is_streamed`: the answer should have come in pieces.
        """
        if self.limit in refusal and self.longer > 1:
            return self._replace(longer=1)
        if self.limit in refusal:
            return self._replace(limit="max_tokens" if self.limit == _Form().limit else _Form().limit)
        if self.has_temperature and "temperature" in refusal:
            return self._replace(has_temperature=False)
        if is_streamed and self.is_streamed and "stream" in refusal:
            return self._replace(is_streamed=False)
        return None


class ChatEndpoint:
    """A chat service at an address: one attempt per call."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        seconds_max: float,
        clock: Clock | None = None,
        windows: ContextWindows | None = None,
    ) -> None:
        """Create it without opening a connection.

        Raises:
            ConfigurationError: the address or key is invalid.
        """
        self._secrets = check_address(base_url, api_key)
        # Dates from outside are compared with the real time, not with the product's clock.
        self._clock = clock or ProductClock()
        self._seconds_max = seconds_max
        self._windows = windows or ContextWindows()
        self._forms: dict[str, _Form] = {}  # by model, as learned; the models are those of the settings
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # local services need no key, but the client requires one
            max_retries=0,
            timeout=seconds_max,
            http_client=_ReadingClient(
                transport=bounded_transport(base_url, seconds_max=seconds_max, bytes_max=RESPONSE_BYTES_MAX),
                timeout=seconds_max,
                follow_redirects=False,
            ),
        )

    async def ask(
        self,
        model: str,
        system: str,
        user: str,
        *,
        temperature: float,
        tokens_max: int,
        is_json: bool,
        key: str | None = None,
        on_delta: OnDelta | None = None,
    ) -> ChatAnswer:
        """Return the answer to one call; with `on_delta` the service is asked to send it in pieces, which it may
        ignore.

        Raises:
            CallFailedError: there is no answer, and why.
        """
        tokens_max = self._windows.answer_tokens(model, tokens_max)
        asked = {"role": "system", "content": clean_text(system)}, {"role": "user", "content": clean_text(user)}
        given: dict[str, Any] = {
            "model": model,
            "messages": asked,
            "extra_headers": {} if key is None else {"Idempotency-Key": key},
            **({"response_format": {"type": "json_object"}} if is_json else {}),
        }
        try:
            # Around the whole call: the client's own limits restart with each byte.
            async with asyncio.timeout(self._seconds_max):
                token = _reading.set(None if on_delta is None else StreamedAnswer(on_delta))
                try:
                    raw = await self._asked(model, given, temperature, tokens_max, is_streamed=on_delta is not None)
                finally:
                    _reading.reset(token)
        # None of them is chained as a cause: a library's error may quote the header with the key, and stack traces are
        # logged.
        except (TimeoutError, openai.APITimeoutError):
            raise CallFailedError(Failure.TIMEOUT, f"no answer within {self._seconds_max:g} s") from None
        except openai.APIStatusError as error:
            found = self._of_status(error)
            raise self._shorter(
                found, error.response.text, model, prompt=(system, user), tokens_max=tokens_max
            ) from None
        except (UnusableAnswerError, openai.APIConnectionError) as error:
            raise self._of_connection(error) from None
        body = raw.content
        if _is_stream(raw.headers):
            body = completion_of(body)
        try:
            answer = self._answer_in(body, model, prompt=(system, user))
        except CallFailedError as error:
            raise self._shorter(error, str(error), model, prompt=(system, user), tokens_max=tokens_max) from None
        form = self._forms[model]
        if answer.is_cut and is_json and form.longer < _LONGER_MAX:  # half of a JSON object is useless
            self._forms[model] = form._replace(longer=2 * form.longer)
        return answer

    async def _asked(
        self, model: str, given: Mapping[str, Any], temperature: float, tokens_max: int, *, is_streamed: bool
    ) -> Any:
        """Return the response to a form that the model accepts; the form is remembered, so that another is refused only
        once.

        A refusal may name a field because of its value (a limit that is too high): if every form is refused, nothing is
        remembered, and the first refusal is reported.
        """
        form = self._forms.get(model, _Form())
        tried, first = {form}, None
        while True:
            try:
                found = await self._client.chat.completions.with_raw_response.create(
                    **given, **form.fields(temperature, tokens_max, is_streamed=is_streamed)
                )
            except openai.APIStatusError as error:
                is_of_form = error.status_code in (_BAD_REQUEST, _UNPROCESSABLE)
                text = error.response.text
                other = form.after(text, is_streamed=is_streamed) if is_of_form and not is_too_long(text) else None
                if other is None or other in tried:
                    raise (first or error) from None
                form, first = other, first or error
                tried.add(other)
            else:
                self._forms[model] = form
                return found

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    def _of_status(self, error: openai.APIStatusError) -> CallFailedError:
        status = error.status_code
        page = self._shown(error.response.text)
        wait_ms = retry_after_ms(error.response.headers, self._clock())
        told = f"status {status}: {page}" if page else f"status {status}"
        return CallFailedError(failure_of_status(status), told, retry_after_ms=wait_ms)

    def _shorter(
        self, error: CallFailedError, refusal: str, model: str, *, prompt: tuple[str, str], tokens_max: int
    ) -> CallFailedError:
        """Return the failure of a call that less may be sent of, if it was refused for its length; else the same one."""
        if error.failure is not Failure.REFUSED or not is_too_long(refusal):
            return error
        sent = sum(count_tokens(text) for text in prompt) + tokens_max
        if not self._windows.learn(model, refusal, sent):
            return error
        return CallFailedError(Failure.TOO_LONG, str(error))

    def _of_connection(self, error: Exception) -> CallFailedError:
        cause = error if isinstance(error, UnusableAnswerError) else error.__cause__
        if isinstance(cause, UnusableAnswerError):
            return CallFailedError(Failure.UNUSABLE, str(cause))
        told = "connection failed" if cause is None else f"connection failed: {type(cause).__name__}: {cause}"
        return CallFailedError(Failure.UNAVAILABLE, self._shown(told))

    def _shown(self, text: str) -> str:
        """Return the part of a text that may be shown: its beginning, without secrets, in one line."""
        for secret in self._secrets:
            text = text.replace(secret, "(secret)")
        return clean_text(" ".join(text[: 4 * _DETAIL_CHARACTERS_MAX].split()))[:_DETAIL_CHARACTERS_MAX]

    def _answer_in(self, body: bytes, model: str, *, prompt: tuple[str, str]) -> ChatAnswer:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            page = self._shown(body.decode(errors="replace"))
            raise CallFailedError(Failure.UNUSABLE, f"the answer is not JSON: {page or '(empty)'}") from None
        completion = completion_in(found)
        if isinstance(completion, NoCompletion):
            raise CallFailedError(completion.failure, self._shown(completion.detail))
        text = clean_text(completion.text)
        if not text.strip():
            raise CallFailedError(Failure.UNUSABLE, "the answer is empty")
        usage = found.get("usage")
        return ChatAnswer(
            text,
            model,
            _counted(usage, "prompt_tokens", *prompt),
            _counted(usage, "completion_tokens", text),
            is_cut=completion.is_cut,
        )


class _ReadingClient(httpx2.AsyncClient):
    """Reads a response completely; pieces are passed on as they come."""

    async def send(self, request: Any, *, stream: bool = False, **more: Any) -> Any:
        """Return the response with its body read."""
        response = await super().send(request, stream=True, **more)
        try:
            body = bytearray()
            streamed = _reading.get() if response.is_success and _is_stream(response.headers) else None
            async for part in response.aiter_raw():
                body += part
                if streamed is not None:
                    streamed.feed(bytes(part))
            if streamed is not None:
                streamed.end()
        finally:
            await response.aclose()
        headers = {name: value for name, value in response.headers.items() if name != "transfer-encoding"}
        return type(response)(response.status_code, headers=headers, content=bytes(body), request=request)


class RemoteChat:
    """The port to an OpenAI-compatible service."""

    is_paid = True

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    async def complete(self, call: ChatCall, on_delta: OnDelta | None = None) -> ChatAnswer:
        """Return the service's answer.

        Raises:
            CallFailedError: there is no answer, and why.
        """
        return await self._endpoint.ask(
            call.model,
            call.system,
            call.user,
            temperature=call.temperature,
            tokens_max=call.tokens_max,
            is_json=call.is_json,
            key=call.key,
            on_delta=on_delta,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._endpoint.close()


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Return how long a response asks to wait, from 0 to a day; None if it does not say (RFC 9110 10.2.3).

    Args:
        headers: of the response, in any case.
        now_ms: for a date, if the response has no date of its own.
    """
    wait_ms = _number(headers.get("retry-after-ms"))
    if wait_ms is None:
        text = headers.get("retry-after")
        seconds = _number(text)
        wait_ms = _until_ms(text, headers.get("date"), now_ms) if seconds is None else seconds * 1000
    return None if wait_ms is None else int(min(max(wait_ms, 0), _RETRY_AFTER_MS_MAX))


def _number(text: str | None) -> float | None:
    """Parse a plain decimal number, which may have a fraction."""
    is_number = text is not None and re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text.strip(), re.ASCII)
    return float(text) if text is not None and is_number else None


def _until_ms(text: str | None, sent: str | None, now_ms: int) -> int | None:
    """Return the time from when the service sent the response (its clock may differ from ours) to the named time."""
    until = _date_ms(text)
    since = _date_ms(sent)
    return None if until is None else until - (now_ms if since is None else since)


def _date_ms(text: str | None) -> int | None:
    try:
        return None if text is None else to_ms(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError):  # not a date, or one without a zone
        return None


def _is_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def _counted(usage: Any, name: str, *texts: str) -> int:
    """Return the service's token count, or an estimate if it is missing or not a number."""
    count = usage.get(name) if isinstance(usage, dict) else None
    if type(count) is int and 0 <= count <= _COUNT_MAX:
        return count
    return sum(count_tokens(text) for text in texts)


def check_address(base_url: str, api_key: str | None) -> tuple[str, ...]:
    """Return what no error may show: the key, and a password in the address.

    Raises:
        ConfigurationError: the address or key is invalid.
    """
    try:
        parts = urlsplit(base_url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError("LLM_BASE_URL is not an address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("LLM_BASE_URL is not an http:// or https:// address")
    if api_key is not None and not _KEY.fullmatch(api_key):
        raise ConfigurationError("LLM_API_KEY has characters that a header cannot contain")
    passwords = (parts.password, unquote(parts.password)) if parts.password else ()
    return tuple(secret for secret in (api_key, *passwords) if secret)

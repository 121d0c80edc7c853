"""Calls of a language model against a service on a real socket that misbehaves in every way there is."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Any, cast

import pytest

from highwater.connectors.models import chat_service
from highwater.connectors.models.call_rows import Calls
from highwater.connectors.models.calls import BUILT_IN, CallFailedError, ChatAnswer, ChatCall, LocalChat
from highwater.connectors.models.chat import ChatModel, ModelError
from highwater.connectors.models.chat_service import ChatEndpoint, RemoteChat
from highwater.connectors.models.opening import open_chat_port
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.queries.stages import answered_locally
from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.answers import json_object_in
from highwater.streams.models.costs import Prices
from highwater.streams.models.retries import Failure
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.states import Stage
from highwater.streams.retry import RetryPolicy
from highwater.streams.settings import read_settings
from tests.integration.connecting import until
from tests.integration.models.scripted_llm import (
    STEPS,
    Reply,
    ScriptedLLM,
    Step,
    answer,
    big,
    limited,
    status,
    streamed,
)

KEY = "sk-very-secret-0123456789"
CALL = ChatCall(Stage.ANALYZER, "run-1/analyzer/1", "small", "You are the Analyzer.", "what?", 0.7, 2_000, is_json=True)
# The limit of calls that meet it, and of those that must not, however busy the machine is.
SHORT_SECONDS, LONG_SECONDS = 0.5, 30.0
# A good answer, but compressed: its length after unpacking is unknown.
_ZIPPED = gzip.compress(b'{"choices": [{"message": {"content": "good"}}]}')


@pytest.fixture(scope="module")
def service() -> Iterator[ScriptedLLM]:
    """The service, for the module."""
    with ScriptedLLM() as running:
        yield running


@pytest.fixture
def llm(service: ScriptedLLM) -> Iterator[ScriptedLLM]:
    """The service, with nothing scripted."""
    service.clear()
    yield service
    service.release_all()


@pytest.fixture
async def chat(llm: ScriptedLLM) -> AsyncIterator[RemoteChat]:
    """The port to it."""
    port = RemoteChat(ChatEndpoint(llm.url, KEY, seconds_max=LONG_SECONDS))
    yield port
    await port.close()


@pytest.fixture
async def hasty(llm: ScriptedLLM) -> AsyncIterator[RemoteChat]:
    """A port that waits for half a second."""
    port = RemoteChat(ChatEndpoint(llm.url, KEY, seconds_max=SHORT_SECONDS))
    yield port
    await port.close()


async def _failure(chat: RemoteChat, call: ChatCall = CALL) -> CallFailedError:
    with pytest.raises(CallFailedError) as found:
        await chat.complete(call)
    assert KEY not in "".join(traceback.format_exception(found.value))
    # Libraries cite the headers of a request in some of their errors.
    assert found.value.__cause__ is None
    assert found.value.__context__ is None or found.value.__suppress_context__
    return found.value


async def test_a_call_is_sent_as_it_is(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Model, prompts, temperature, limit, form, key of the call and key of the service are those that were given."""
    found = await chat.complete(CALL)
    (call,) = llm.seen()
    assert found == ChatAnswer(llm.answers["analyzer"](call), "small", 100, 20)
    assert call.body == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "You are the Analyzer."},
            {"role": "user", "content": "what?"},
        ],
        "temperature": 0.7,
        "max_completion_tokens": 2_000,
        "response_format": {"type": "json_object"},
    }
    assert (call.path, call.key, call.stage) == ("/v1/chat/completions", "run-1/analyzer/1", "analyzer")
    assert call.headers["authorization"] == f"Bearer {KEY}"
    prose = ChatCall(Stage.RESPONDER, "r/responder/1", "large", "s", "u", 0, 1, is_json=False)
    await chat.complete(prose)
    assert "response_format" not in llm.seen()[1].body
    assert llm.by_key() == {"run-1/analyzer/1": 1, "r/responder/1": 1}


def _refused(field: str) -> Reply:
    return status(400, json.dumps({"error": {"message": f"Unsupported parameter: '{field}' is not supported"}}))


async def test_a_field_that_a_model_refuses_is_learnt_once(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """An older service takes `max_tokens`, a reasoning model no temperature; the next call is right at once, model by model."""
    llm.script("analyzer", _refused("max_completion_tokens"), _refused("temperature"))
    await chat.complete(CALL)
    await chat.complete(CALL)
    await chat.complete(replace(CALL, model="large"))
    forms = [
        tuple(name for name in ("max_completion_tokens", "max_tokens", "temperature") if name in call.body)
        for call in llm.seen()
    ]
    new, old = ("max_completion_tokens", "temperature"), ("max_tokens",)
    assert forms == [new, ("max_tokens", "temperature"), old, old, new]


async def test_what_is_refused_in_every_form_teaches_nothing(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """A limit that is too high for a model is reported as such, and the model's next call has the form that it accepts."""
    too_high = status(400, '{"error": {"message": "max_completion_tokens is too large: 2000"}}')
    llm.script("analyzer", too_high, _refused("max_tokens"))
    assert "too large" in str(await _failure(chat))
    await chat.complete(CALL)
    assert ["max_completion_tokens" in call.body for call in llm.seen()] == [True, False, True]


async def test_an_answer_in_pieces_is_told_piece_by_piece(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Together they are the answer, whose tokens the service counts; who wants no pieces asks for none."""
    llm.script("analyzer", streamed("The ", "\u00e9nd.", " \u65e5\u672c"))
    pieces: list[str] = []
    found = await chat.complete(CALL, pieces.append)
    assert (pieces, found) == (
        ["The ", "\u00e9nd.", " \u65e5\u672c"],
        ChatAnswer("The \u00e9nd. \u65e5\u672c", "small", 90, 30),
    )
    await chat.complete(CALL)
    asked = [(call.body.get("stream"), call.body.get("stream_options")) for call in llm.seen()]
    assert asked == [(True, {"include_usage": True}), (None, None)]


async def test_an_answer_that_comes_whole_is_an_answer(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """A service need not send pieces; one that refuses to gets no such request from then on."""
    pieces: list[str] = []
    assert (await chat.complete(CALL, pieces.append)).text == llm.answers["analyzer"](llm.seen()[0])
    llm.script("analyzer", _refused("stream"))
    for _ in range(2):
        await chat.complete(CALL, pieces.append)
    assert (pieces, ["stream" in call.body for call in llm.seen()]) == ([], [True, True, False, False])
    llm.script("analyzer", status(400, '{"error": {"message": "upstream says no"}}'))
    assert (await _failure(chat, replace(CALL, model="large"))).failure is Failure.REFUSED
    assert len(llm.seen()) == 5


async def test_an_answer_that_breaks_off_is_none(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Its pieces were published, but the next attempt starts over."""
    llm.script("analyzer", streamed("The ", is_whole=False))
    pieces: list[str] = []
    with pytest.raises(CallFailedError) as failed:
        await chat.complete(CALL, pieces.append)
    assert (failed.value.failure, pieces) == (Failure.UNUSABLE, ["The "])


async def test_a_call_that_is_refused_for_its_content_is_not_repeated(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """A 400 that names none of the fields that can be put otherwise."""
    llm.script("analyzer", status(400, '{"error": {"message": "content policy"}}'))
    assert (await _failure(chat)).failure is Failure.REFUSED
    assert len(llm.seen()) == 1


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        (status(408), Failure.TIMEOUT),
        (status(504), Failure.TIMEOUT),
        ("429", Failure.RATE_LIMITED),
        ("closed", Failure.UNAVAILABLE),
        ("reset", Failure.UNAVAILABLE),
        ("closed_inside", Failure.UNAVAILABLE),
        ("500", Failure.UNAVAILABLE),
        ("503", Failure.UNAVAILABLE),
        (status(599), Failure.UNAVAILABLE),
        ("html", Failure.UNUSABLE),
        ("html_as_json", Failure.UNUSABLE),
        ("half", Failure.UNUSABLE),
        ("cut", Failure.UNUSABLE),
        ("empty", Failure.UNUSABLE),
        ("blank", Failure.UNUSABLE),
        ("nothing", Failure.UNUSABLE),
        ("no_choices", Failure.UNUSABLE),
        (status(200, "[]"), Failure.UNUSABLE),
        (status(200, "null"), Failure.UNUSABLE),
        (status(200, '{"choices": "no"}'), Failure.UNUSABLE),
        (status(200, '{"choices": [null]}'), Failure.UNUSABLE),
        (status(200, '{"choices": [{"message": {"content": null}}]}'), Failure.UNUSABLE),
        (answer({"a": 1}), Failure.UNUSABLE),
        (answer(["a"]), Failure.UNUSABLE),
        (answer("\x00\x00"), Failure.UNUSABLE),
        (status(200, "[" * 200_000), Failure.UNUSABLE),
        (Reply(200, {"content-type": "application/json", "content-encoding": "gzip"}, _ZIPPED), Failure.UNUSABLE),
        (status(400), Failure.REFUSED),
        (status(401), Failure.REFUSED),
        (status(404), Failure.REFUSED),
        (status(307, location="http://127.0.0.1:1/"), Failure.REFUSED),
    ],
    ids=str,
)
async def test_what_became_of_a_call(llm: ScriptedLLM, chat: RemoteChat, step: Step, failure: Failure) -> None:
    """Each misbehaviour is one of five failures, after one attempt."""
    llm.script(None, step)
    error = await _failure(chat)
    assert (error.failure, error.retry_after_ms, len(llm.seen())) == (failure, None, 1)
    assert (await chat.complete(CALL)).text  # and the next call is answered


@pytest.mark.parametrize("step", ["silent", "drip", answer("late", delay_seconds=20)], ids=str)
async def test_a_call_ends_within_its_limit(llm: ScriptedLLM, hasty: RemoteChat, step: Step) -> None:
    """Nothing comes, or each byte in time but not the whole: given up, after one attempt."""
    llm.script(None, step)
    async with asyncio.timeout(10):  # the script's would take 20 at least, the client's own limit of a drip any time
        error = await _failure(hasty)
    assert (error.failure, str(error), len(llm.seen())) == (Failure.TIMEOUT, "no answer within 0.5 s", 1)


async def test_nobody_is_there() -> None:
    """A refused connection is an unavailable service."""
    with ScriptedLLM() as gone:
        chat = RemoteChat(ChatEndpoint(gone.url, KEY, seconds_max=LONG_SECONDS))
    assert (await _failure(chat)).failure is Failure.UNAVAILABLE
    await chat.close()


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"retry-after": "7"}, 7_000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after-ms": "250", "retry-after": "7"}, 250),
        (
            {"retry-after": formatdate(1_700_000_090, usegmt=True), "date": formatdate(1_700_000_000, usegmt=True)},
            90_000,
        ),
        ({"retry-after": formatdate(1_700_000_090, usegmt=True)}, 60_000),
        ({"retry-after": formatdate(1_699_999_000, usegmt=True)}, 0),
        ({"retry-after": "99999999"}, 86_400_000),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Fri, 99 Foo 2023 00:00:00 GMT"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_how_long_a_service_asks_to_wait(headers: dict[str, str], wait_ms: int | None) -> None:
    """Seconds, milliseconds or a date, which is measured by the service's own clock if it sends it."""
    assert chat_service.retry_after_ms(headers, 1_700_000_030_000) == wait_ms


async def test_a_rate_limit_says_how_long(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Retry-After reaches the caller, as seconds and as a date."""
    llm.script(None, limited(3), status(429, retry_after=formatdate(time.time() + 100, usegmt=True)))  # noqa: TID251
    assert (await _failure(chat)).retry_after_ms == 3_000
    wait_ms = (await _failure(chat)).retry_after_ms
    assert wait_ms is not None
    assert 97_000 <= wait_ms <= 101_000


async def test_an_error_page_is_told_in_part(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """At most 200 characters of it, in one line, and without the key that some services cite."""
    llm.script(None, status(401, f"no such key:\n{KEY}\x00 " + "x" * 5_000), Reply(200, {}, f"<p>{KEY}".encode()))
    llm.script(None, status(401, json.dumps({"error": {"message": f"no such key: {KEY}"}})))
    detail = str(await _failure(chat))
    assert detail.startswith("status 401: no such key: (secret) xxx")
    assert len(detail) == len("status 401: ") + 200
    assert str(await _failure(chat)) == "the answer is not JSON: <p>(secret)"
    assert str(await _failure(chat)) == 'status 401: {"error": {"message": "no such key: (secret)"}}'


async def test_a_key_never_leaves_in_a_log(
    llm: ScriptedLLM, chat: RemoteChat, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds for any log line of the libraries, at any level."""
    caplog.set_level("DEBUG")
    llm.script(None, "429", "closed", "html")
    for _ in range(3):
        await _failure(chat)
    assert caplog.records
    assert KEY not in caplog.text


@pytest.mark.parametrize("step", [big(50 * 1024 * 1024), Reply(500, {"x-size": str(50 * 1024 * 1024)})])
async def test_a_flood_is_not_read(llm: ScriptedLLM, chat: RemoteChat, step: Reply) -> None:
    """At most the limit of 50 MB is held, for an answer and for an error page."""
    import tracemalloc

    llm.script(None, step)
    tracemalloc.start()
    try:
        error = await _failure(chat)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (error.failure, str(error)) == (Failure.UNUSABLE, f"the answer is longer than {2 * 1024 * 1024} bytes")
    assert held < 4 * chat_service.RESPONSE_BYTES_MAX


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 0}, 7, 0),
        (None, None, None),
        ({"prompt_tokens": -1, "completion_tokens": True}, None, None),
        ({"prompt_tokens": "7", "completion_tokens": 2**31}, None, None),
        ("much", None, None),
    ],
)
async def test_tokens_are_counted_or_estimated(
    llm: ScriptedLLM, chat: RemoteChat, usage: Any, prompt: int | None, completion: int | None
) -> None:
    """A missing count of the service, or an invalid one, is estimated."""
    text = "A plain answer of a few words."
    llm.script(None, answer(text, usage=usage))
    found = await chat.complete(CALL)
    estimated = count_tokens(CALL.system) + count_tokens(CALL.user), count_tokens(text)
    assert min(estimated) > 0
    wanted = (estimated[0] if prompt is None else prompt, estimated[1] if completion is None else completion)
    assert (found.prompt_tokens, found.completion_tokens) == wanted


async def test_an_answer_that_was_cut_off_says_so(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """`finish_reason` "length": the text so far; a JSON object is then asked for with twice the limit, up to four times."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "So far"}, "finish_reason": "length"}
    for _ in range(4):
        llm.script(None, answer(choices=[choice]))
        found = await chat.complete(CALL)
        assert (found.text, found.is_cut) == ("So far", True)
    limits = [seen.body["max_completion_tokens"] for seen in llm.seen()]
    assert limits == [CALL.tokens_max * longer for longer in (1, 2, 4, 4)]


async def test_a_cut_text_is_marked_and_a_cut_object_is_asked_for_again(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Both are recorded with what they cost."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "So {far"}, "finish_reason": "length"}
    llm.script(None, *[answer(choices=[choice])] * 2)
    calls = ModelCalls(Calls(cast("Any", None)), chat, Prices({}), lambda: 0)
    told: list[str] = []
    text = await calls.sent("run-1", 1, replace(CALL, is_json=False), str, told.append)
    assert text.outcome.concluded == "So {far\n\n[the answer was cut off at its limit of 2,000 tokens]"
    assert told == ["\n\n[the answer was cut off at its limit of 2,000 tokens]"]
    cut = await calls.sent("run-1", 2, CALL, json_object_in)
    assert (cut.outcome.failure, cut.outcome.detail) == (
        Failure.UNUSABLE,
        "the answer was cut off at its limit of 2,000 tokens",
    )
    assert min(text.end.completion_tokens or 0, cut.end.completion_tokens or 0) > 0


async def test_texts_can_be_stored(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """U+0000 and halves of pairs are removed from answers and requests; whole pairs stay."""
    llm.script(None, answer("a\x00b\ud83dc \U0001f600 \udc00"))
    asked = ChatCall(Stage.ANALYZER, "k", "m", "s\ud800", "u\x00\U0001f600", 0, 1, is_json=False)
    assert (await chat.complete(asked)).text == "abc \U0001f600 "
    assert (llm.seen()[0].system, llm.seen()[0].user) == ("s", "u\U0001f600")


async def test_a_caller_that_goes_away_ends_the_call(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Cancelling is not taken for a time limit."""
    held = llm.hold("analyzer")
    task = asyncio.create_task(chat.complete(CALL))
    await until(held.reached.is_set, "the service is asked")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_do_not_wait_for_each_other(llm: ScriptedLLM, chat: RemoteChat) -> None:
    """Sixty at once, while one is held, are answered."""
    held = llm.hold(None)
    slow = asyncio.create_task(chat.complete(CALL))
    await until(held.reached.is_set, "the first is held")
    await asyncio.gather(*(chat.complete(CALL) for _ in range(60)))
    assert not slow.done()
    held.release.set()
    assert (await slow).text


async def test_the_built_in_model_answers_every_stage() -> None:
    """Without a service: each stage has an answer of its form, the same each time, with its tokens."""
    for stage in Stage:
        asked = json.dumps({"user_query": "When do consumers rebalance?", "lsm_summary": []})
        call = ChatCall(stage, "k", "local", "s", asked, 0, 100, is_json=True)
        found = await LocalChat(answered_locally).complete(call)
        assert found == await LocalChat(answered_locally).complete(call)
        assert (found.model, found.completion_tokens) == (BUILT_IN, count_tokens(found.text))
        assert found.prompt_tokens == count_tokens("s") + count_tokens(asked)
        assert found.text.strip()


@pytest.mark.parametrize(("given", "kind"), [({}, LocalChat), ({"LLM_BASE_URL": "http://127.0.0.1:1/v1"}, RemoteChat)])
async def test_the_port_is_chosen_by_setting(given: dict[str, str], kind: type) -> None:
    """LLM_BASE_URL is the service's; without it the built-in model answers."""
    port = open_chat_port(read_settings(given), answered_locally)
    assert isinstance(port, kind)
    await port.close()


async def test_the_limit_of_a_call_is_a_setting(llm: ScriptedLLM) -> None:
    """HIGHWATER_LLM_TIMEOUT_SECONDS."""
    port = open_chat_port(
        read_settings({"LLM_BASE_URL": llm.url, "HIGHWATER_LLM_TIMEOUT_SECONDS": "0.2"}), answered_locally
    )
    llm.script(None, "drip")
    with pytest.raises(CallFailedError, match=r"^no answer within 0\.2 s$"):
        await port.complete(CALL)
    await port.close()


@pytest.mark.parametrize(
    "given",
    [
        {"LLM_BASE_URL": "localhost:8000"},
        {"LLM_BASE_URL": "ftp://models/v1"},
        {"LLM_BASE_URL": "http://[::1"},
        {"LLM_BASE_URL": "http://u:hunter2@models:port/v1"},
        {"LLM_BASE_URL": "http://models/v1", "LLM_API_KEY": "hunter2-ключ"},
        {"LLM_BASE_URL": "http://models/v1", "LLM_API_KEY": "hunter2\r\nx: y"},
    ],
)
def test_what_cannot_be_asked_stops_the_program(given: dict[str, str]) -> None:
    """An address or a key that no request can carry is a ConfigurationError, which cites neither."""
    with pytest.raises(ConfigurationError, match=r"^LLM_(BASE_URL|API_KEY) ") as found:
        open_chat_port(read_settings(given), answered_locally)
    assert "hunter2" not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize(("step", "attempts"), [("500", 2), ("html", 2), ("closed", 2), ("429", 2), (status(401), 1)])
async def test_feeds_ask_in_the_same_way(llm: ScriptedLLM, step: Step, attempts: int) -> None:
    """`ChatModel` tries again what may pass, and says at once what will not."""
    model = ChatModel(
        ChatEndpoint(llm.url, KEY, seconds_max=30), "m", policy=RetryPolicy(first_ms=1, most_ms=1, attempts_max=2)
    )
    llm.always(None, step)
    with pytest.raises(ModelError, match=r"^the language model gave no usable answer: "):
        await model.object_for("s", "u")
    assert len(llm.seen()) == attempts
    llm.clear()
    llm.script(None, answer('{"a": 1}'))
    assert await model.object_for("s", "u") == {"a": 1}
    assert llm.by_key() == {}
    await model.close()


def test_every_step_has_a_test() -> None:
    """Every named step of the scripted service is used above."""
    (mark,) = _marks(test_what_became_of_a_call)
    tried = {step for step, _ in mark.args[1] if isinstance(step, str)}
    assert tried >= set(STEPS) | {"closed", "reset", "closed_inside", "cut"}


def _marks(test: Callable[..., Any]) -> list[pytest.Mark]:
    return list(test.pytestmark)  # type: ignore[attr-defined]

"""A chat service on a real socket that behaves, or misbehaves on order, and remembers who asked what.

    with ScriptedLLM() as llm:
        llm.script("responder", limited(1), "500")   # its next two calls; then it behaves
        held = llm.hold("analyzer")                  # its next call waits until held.release.set()
        ...
        assert llm.by_key()["..."] == 1

A step is a name of `STEPS`, or what `answer`, `limited`, `status`, `hold` and `big` give. Steps of a stage come before those of
any stage. Thread-safe: the test's thread scripts and looks while others are answered.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from highwater.streams.models.tokens import count_tokens

STAGES = ("analyzer", "assembler", "responder", "archivist")
# The format of a job's key: `{job}/slide-7/1`.
_STEP_OF_JOB = re.compile(r"/(outline|slide-[0-9]+)/")
# A forgotten step ends with its test, at the latest after this time.
_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Call:
    """One request, as it was published; `number` counts all from 1."""

    number: int
    at: float  # monotonic seconds
    path: str
    headers: Mapping[str, str]  # by lower-case name
    body: dict[str, Any]
    key: str | None
    stage: str

    @property
    def system(self) -> str:
        """Its system prompt."""
        return str(self.body["messages"][0]["content"])

    @property
    def user(self) -> str:
        """The subject of the call."""
        return str(self.body["messages"][-1]["content"])


@dataclass
class Hold:
    """A call that waits: `reached` once it is there, answered by `then` after `release`."""

    then: Step = "good"
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Reply:
    """A response with these parts; `delay_seconds` goes before it."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay_seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """A completion with this text (None: what fits the stage) and these fields changed."""

    text: Any = None
    delay_seconds: float = 0.0
    changes: Mapping[str, Any] = field(default_factory=dict)


Step = str | Reply | Answer | Hold
StageOf = Callable[[Mapping[str, str], dict[str, Any]], str]


def answer(text: Any = None, *, delay_seconds: float = 0.0, **changes: Any) -> Answer:
    """A completion; `changes` replaces its fields, None takes one away: `answer(usage=None, choices=[])`."""
    return Answer(text, delay_seconds, changes)


def status(code: int, body: str = '{"error": {"message": "no"}}', **headers: str) -> Reply:
    """An error; `retry_after="3"` becomes the header retry-after."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(code, {"content-type": "application/json", **named}, body.encode())


def limited(retry_after_seconds: float | None = None) -> Reply:
    """A 429, with or without Retry-After."""
    return status(429) if retry_after_seconds is None else status(429, retry_after=f"{retry_after_seconds:g}")


def big(size: int) -> Reply:
    """A response of this many bytes without a Content-Length."""
    return Reply(200, {"content-type": "application/json", "x-size": str(size)})


_HTML = Reply(200, {"content-type": "text/html"}, b"<html><body>down for maintenance</body></html>")


def streamed(*pieces: str, is_whole: bool = True) -> Reply:
    """A completion in pieces, as `stream: true` asks for it; one that is incomplete is interrupted behind them."""
    events: list[Any] = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    if is_whole:
        events += [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 30}},
        ]
    lines = [f"data: {json.dumps(one)}\n\n" for one in events] + ["data: [DONE]\n\n"] * is_whole
    return Reply(200, {"content-type": "text/event-stream"}, "".join(lines).encode())


STEPS: Mapping[str, Step] = {
    "html": _HTML,
    "html_as_json": Reply(200, {"content-type": "application/json"}, _HTML.body),
    "half": Reply(
        200, {"content-type": "application/json"}, b'{"id": "x", "choices": [{"message": {"content": "The an'
    ),
    "empty": answer(""),
    "blank": answer(" \n\t"),
    "no_choices": answer(choices=[]),
    "nothing": Reply(200, {"content-type": "application/json"}),
    "429": limited(),
    "500": Reply(500, {"content-type": "text/plain"}, b"oops"),
    "503": status(503),
}
# And those that are no whole response: "good", "silent", "drip", "closed", "reset", "closed_inside", "cut".


class ScriptedLLM:
    """The service; start and stop it as a context manager."""

    def __init__(self, stage_of: StageOf | None = None) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, Callable[[Call], str]] = dict(_ANSWERS)
        self._stage_of = stage_of or stage_by_key_or_prompt
        self._lock = threading.Lock()
        self._scripts: dict[str | None, deque[Step]] = defaultdict(deque)
        self._always: dict[str | None, Step] = {}
        self._holds: list[Hold] = []
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        self.window_tokens: int | None = None  # what the model reads and writes at most; None: all

    def __enter__(self) -> Self:
        self._httpd = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.port = self._httpd.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop: no request is answered any more, and nothing waits. Its port refuses connections."""
        self._closing.set()
        self.release_all()
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    # -- the script --------------------------------------------------------------------------------------------------

    def script(self, stage: str | None, *steps: Step) -> None:
        """Set the failures of the next calls of a stage, in order; None: of any stage."""
        with self._lock:
            self._scripts[stage].extend(steps)

    def always(self, stage: str | None, step: Step | None) -> None:
        """Set the failure of every call without a script; None: it behaves again."""
        with self._lock:
            if step is None:
                self._always.pop(stage, None)
            else:
                self._always[stage] = step

    def hold(self, stage: str | None, then: Step = "good") -> Hold:
        """Script that the next call waits."""
        hold = Hold(then)
        with self._lock:
            self._holds.append(hold)
        self.script(stage, hold)
        return hold

    def release_all(self) -> None:
        """Release all waiting requests."""
        with self._lock:
            holds = list(self._holds)
        for hold in holds:
            hold.release.set()

    def clear(self) -> None:
        """Forget the calls and the script."""
        self.release_all()
        with self._lock:
            self.calls.clear()
            self._scripts.clear()
            self._always.clear()
        self.window_tokens = None

    # -- what it saw -------------------------------------------------------------------------------------------------

    def seen(self, stage: str | None = None) -> list[Call]:
        """The calls so far, of one stage or all."""
        with self._lock:
            return [call for call in self.calls if stage in (None, call.stage)]

    def by_key(self) -> Counter[str]:
        """How often each Idempotency-Key came."""
        return Counter(call.key for call in self.seen() if call.key is not None)

    def by_stage(self) -> Counter[str]:
        """How often each stage asked."""
        return Counter(call.stage for call in self.seen())

    # -- for the handler ---------------------------------------------------------------------------------------------

    def note(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> tuple[Call, Step]:
        """Remember a call and take its step."""
        stage = self._stage_of(headers, body)
        with self._lock:
            call = Call(
                len(self.calls) + 1, time.monotonic(), path, headers, body, headers.get("idempotency-key"), stage
            )
            self.calls.append(call)
            script = self._scripts[stage] or self._scripts[None]
            step = script.popleft() if script else self._always.get(stage, self._always.get(None, "good"))
        return call, step

    def refusal_of(self, call: Call) -> Reply | None:
        """The refusal of a call that is longer than `window_tokens`, in the words of vLLM."""
        size = sum(count_tokens(text) for text in (call.system, call.user))
        limit = int(call.body.get("max_completion_tokens") or call.body.get("max_tokens") or 0)
        if self.window_tokens is None or size + limit <= self.window_tokens:
            return None
        told = (
            f"This model's maximum context length is {self.window_tokens} tokens. However, you requested {size + limit}"
        )
        return status(400, json.dumps({"error": {"message": told, "code": 400}}))

    def wait(self, seconds: float = _SECONDS_MAX) -> None:
        """Do nothing, until it is closed."""
        self._closing.wait(seconds)

    def keep(self, connection: socket.socket) -> None:
        """A connection to be ended with the service."""
        with self._lock:
            self._connections.add(connection)

    def forget(self, connection: socket.socket) -> None:
        """It has ended."""
        with self._lock:
            self._connections.discard(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # a test asks with many at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnected is not an error."""


def _handler(server: ScriptedLLM) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            server.keep(self.request)
            super().setup()

        def finish(self) -> None:
            super().finish()
            server.forget(self.request)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            call, step = server.note(self.path, headers, body)
            with contextlib.suppress(ConnectionError):  # the client did not wait
                self._play(call, step)

        def _play(self, call: Call, step: Step) -> None:
            if isinstance(step, Hold):
                step.reached.set()
                step.release.wait(_SECONDS_MAX)
                step = step.then
            if isinstance(step, str):
                step = STEPS.get(step, step)
            if step == "good" and (refusal := server.refusal_of(call)) is not None:
                step = refusal
            if isinstance(step, Answer) or step == "good":
                step = _completion(call, step if isinstance(step, Answer) else Answer(), server.answers)
            if isinstance(step, Reply):
                server.wait(step.delay_seconds)
                self._send(step)
            elif isinstance(step, str):
                self._break(step, _completion(call, Answer(), server.answers).body)

        def _send(self, reply: Reply) -> None:
            headers = dict(reply.headers)
            size = headers.pop("x-size", None)
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            if size is None:
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
                return
            self.close_connection = True
            self.end_headers()
            for _ in range(int(size) // 65_536):
                self.wfile.write(b" " * 65_536)

        def _break(self, how: str, body: bytes) -> None:
            self.close_connection = True
            if how == "silent":
                server.wait()
            elif how == "drip":
                self._begin(len(body))
                for place in range(len(body)):
                    self.wfile.write(body[place : place + 1])
                    server.wait(0.05)
            elif how == "closed_inside":
                self._begin(len(body))
                self.wfile.write(body[: len(body) // 2])
            elif how == "cut":  # without a length: a cut answer looks complete
                self._begin(None)
                self.wfile.write(body[: len(body) // 2])
            elif how == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                assert how == "closed", how

        def _begin(self, length: int | None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return Handler


def _completion(call: Call, step: Answer, answers: Mapping[str, Callable[[Call], str]]) -> Reply:
    text = answers[call.stage.partition("-")[0]](call) if step.text is None else step.text
    found = {
        "id": f"call-{call.number}",
        "object": "chat.completion",
        "created": 1,
        "model": call.body.get("model"),
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        **step.changes,
    }
    kept = {name: value for name, value in found.items() if value is not None}
    return Reply(200, {"content-type": "application/json"}, json.dumps(kept).encode(), step.delay_seconds)


def stage_by_key_or_prompt(headers: Mapping[str, str], body: dict[str, Any]) -> str:
    """The stage whose name is in the key, else in the system prompt; the responder where none is."""
    if found := _STEP_OF_JOB.search(headers.get("idempotency-key", "")):
        return found[1]
    for text in (headers.get("idempotency-key", ""), str(body["messages"][0]["content"])):
        named = [(text.lower().index(stage), stage) for stage in STAGES if stage in text.lower()]
        if named:
            return min(named)[1]
    return "responder"


def _analysis(call: Call) -> str:
    found = {"needs_context": False, "context_type": "none", "time_scope": "none"}
    return json.dumps({**found, "search_keywords": ["plain"], "context_found": {}})


def _outline(call: Call) -> str:
    count = json.loads(call.user)["slides"]
    slides = [{"title": f"Part {number}", "points": [f"point {number}"]} for number in range(1, count + 1)]
    return json.dumps({"title": "A deck", "slides": slides})


def _slide(call: Call) -> str:
    asked = json.loads(call.user)
    return json.dumps({"title": asked["title"], "bullets": [f"bullet of call {call.number}"], "notes": "Say it."})


_ANSWERS: Mapping[str, Callable[[Call], str]] = {
    "analyzer": _analysis,
    "assembler": lambda call: f"<context>what matters of {len(call.user)} characters</context>",
    "responder": lambda call: f"This is answer {call.number}.",
    "outline": _outline,
    "slide": _slide,
    "archivist": lambda call: json.dumps({"tags": ["plain"], "text": "A question was asked and answered."}),
}

"""A scripted OpenAI-compatible server that misbehaves on order."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """Answers each call with the next step of its script; without one it behaves."""

    def __init__(self) -> None:
        self.script: deque[str] = deque()
        self.always: str | None = None
        self.calls: list[dict[str, Any]] = []
        self.release = threading.Event()
        self.release.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.calls.append(body)
                step = server.script.popleft() if server.script else server.always or "good"
                server.release.wait(20)
                self._answer(*server.answer(step, body))

            def _answer(self, status: int, kind: str, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name, value)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self._thread = threading.Thread(target=self._httpd.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}/v1"

    def answer(self, step: str, body: dict[str, Any]) -> tuple[int, str, dict[str, str], bytes]:
        """Status, type, headers and body of one step."""
        if step == "500":
            return 500, "text/plain", {}, b"oops"
        if step == "429":
            return 429, "application/json", {"Retry-After": "1"}, b'{"error": {"message": "slow down"}}'
        if step == "401":
            return 401, "application/json", {}, b'{"error": {"message": "who are you"}}'
        if step == "html":
            return 200, "text/html", {}, b"<html>maintenance</html>"
        if step == "broken":
            return 200, "application/json", {}, b'{"choices": ['
        asked = json.loads(body["messages"][1]["content"])["clusters"]
        items = [
            {
                "cluster_id": one["cluster_id"],
                "title": f"On {one['texts'][0].split()[0]}",
                "summary": f"{one['size']} things",
            }
            for one in asked
        ]
        content = json.dumps({"items": items})
        if step == "half":
            content = content[: len(content) // 2]
        if step == "missing":
            content = json.dumps({"items": items[:-1]})
        if step == "prose":
            content = "Here is your feed!"
        message = {"role": "assistant", "content": content}
        completion = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        return 200, "application/json", {}, json.dumps(completion).encode()

    def close(self) -> None:
        """Stop."""
        self.release.set()
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()

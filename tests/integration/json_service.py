"""A service of others on this machine that is asked in JSON and answers in JSON, over real HTTP."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any, Self


class JsonService:
    """Answers each POST with `answer(body)`, once `released`. `asked`: path, authorization and body of each call."""

    def __init__(self, base: str) -> None:
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.status = 200
        self.released = threading.Event()
        self.released.set()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append((self.path, self.headers.get("Authorization"), body))
                service.released.wait(30)
                answer = json.dumps(service.answer(body)).encode()
                self.send_response(service.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}{base}"

    def answer(self, body: dict[str, Any]) -> Any:
        """The document for a body."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""Google's token endpoint and Drive on a real socket, as far as exports use them; it misbehaves on order and remembers.

with ScriptedGoogle() as google:
google.script((503, {}))              # the failures of Drive's next requests; then it behaves
google.loses_answers = 1              # it does the request, and the connection ends before the answer
"""

from __future__ import annotations

import email
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from email.message import Message
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

ACCOUNT = "decks@project.iam.gserviceaccount.com"


@dataclass
class File:
    """A created file: its metadata, and its bytes."""

    id: str
    about: dict[str, Any]
    media_type: str
    content: bytes
    parameters: dict[str, str]


@dataclass
class ScriptedGoogle:
    """The service; start and stop it as a context manager."""

    files: list[File] = field(default_factory=list)
    grants: list[dict[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    steps: deque[tuple[int, Any]] = field(default_factory=deque)
    loses_answers: int = 0
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048))

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def script(self, *steps: tuple[int, Any]) -> None:
        """Set the failures of Drive's next requests."""
        self.steps.extend(steps)

    def service_account(self) -> dict[str, str]:
        """The file that Google gives for a service account."""
        private = self.key.as_pem(private=True).decode()
        return {
            "type": "service_account",
            "client_email": ACCOUNT,
            "private_key": private,
            "token_uri": f"{self.url}/token",
        }

    def claims(self) -> dict[str, Any]:
        """The claims of the last assertion, with a checked signature."""
        return dict(jwt.decode(self.grants[-1]["assertion"], self.key, algorithms=["RS256"]).claims)

    @property
    def token(self) -> str:
        """The token that is taken: each grant gives another one."""
        return f"token-{len(self.grants)}"

    def answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, Any]:
        """Return the answer to a request."""
        parts = urlsplit(path)
        parameters = dict(parse_qsl(parts.query))
        if parts.path == "/token":
            self.grants.append({name: values[0] for name, values in parse_qs(body.decode()).items()})
            return 200, {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}
        self.requests.append(f"{method} {parts.path}")
        if self.steps:
            return self.steps.popleft()
        if headers["Authorization"] != f"Bearer {self.token}":
            return 401, {"error": {"code": 401, "message": "Invalid Credentials", "errors": [{"reason": "authError"}]}}
        if method == "GET":
            found = [
                one for one in self.files if f"value='{one.about['appProperties']['highwater_job']}'" in parameters["q"]
            ]
            return 200, {"files": [self._shown(one) for one in found]}
        return 200, self._shown(self._made(headers, body, parameters))

    def _made(self, headers: Message, body: bytes, parameters: dict[str, str]) -> File:
        whole = email.message_from_bytes(
            f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + body, policy=HTTP
        )
        about, content = whole.iter_parts()  # type: ignore[attr-defined]
        raw = body.split(b"\r\n\r\n", 2)[2].rsplit(b"\r\n--", 1)[0]
        told = json.loads(about.get_payload())
        file = File(f"file-{len(self.files) + 1}", told, content.get_content_type(), raw, parameters)
        self.files.append(file)
        return file

    def _shown(self, file: File) -> dict[str, str]:
        return {"id": file.id, "webViewLink": f"https://docs.google.com/presentation/d/{file.id}/edit"}


def _handler(google: ScriptedGoogle) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, document = google.answer(self.command, self.path, self.headers, body)
            if google.loses_answers and self.command == "POST" and not self.path.startswith("/token"):
                google.loses_answers -= 1
                self.close_connection = True
                return
            raw = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _answer  # noqa: N815 (the names of the library)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return Handler

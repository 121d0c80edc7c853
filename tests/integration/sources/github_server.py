"""GitHub's REST API on a real socket, as far as an import asks: listings in pages, tags, limits, and trouble on order.

    with GitHubServer() as github:
        github.entries["issues"] = [issue(1), issue(2)]
        github.script("issues", limited(retry_after=1), "cut")   # its next two answers; then it behaves
        ...
        assert [asked.status for asked in github.asked] == [429, 0, 200]

Thread-safe: the test's thread scripts and looks while others are answered.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from highwater.streams.clock import to_ms

REPOSITORY = "ada/tool"
_ITEMS = {"issues": "number", "pulls": "number", "issues/comments": "id", "releases": "id", "commits": "sha"}


@dataclass(frozen=True)
class Asked:
    """A request, and the status it was answered with; 0 = the connection was cut."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # by lower-case name
    status: int


@dataclass(frozen=True)
class Reply:
    """An answer with these parts; with `cut` the connection ends before the body does."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    cut: bool = False


def refused(status: int, message: str = "no", **headers: str) -> Reply:
    """A refusal; `retry_after="3"` becomes the header retry-after."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, named, json.dumps({"message": message}).encode())


def used_up(seconds: int, status: int = 403) -> Reply:
    """The primary limit is used up, for this long."""
    reset = str(to_ms(parsedate_to_datetime(formatdate(usegmt=True))) // 1000 + seconds)
    return refused(status, "API rate limit exceeded", x_ratelimit_remaining="0", x_ratelimit_reset=reset)


CUT = Reply(200, {}, b'[{"number": 1, "title": "half an', cut=True)


def issue(number: int, title: str | None = None, body: str | None = "", **more: Any) -> dict[str, Any]:
    """An issue as the listing has it."""
    created = f"2024-01-{number % 28 + 1:02}T00:00:00Z"
    url = f"https://github.com/{REPOSITORY}/issues/{number}"
    told = {"number": number, "title": title or f"Issue {number}", "body": body, "created_at": created, "html_url": url}
    return {"id": 1_000 + number, "state": "open", **told, **more}


class GitHubServer:
    """Answers for one repository; an entry's page is its place in its list, a hundred on each."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Any]] = {}
        self.asked: list[Asked] = []
        self.links_when_same = True
        self._scripts: dict[str, deque[Reply]] = defaultdict(deque)
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = server.reply(parts.path, query, headers)
                with server._lock:
                    server.asked.append(Asked(parts.path, query, headers, 0 if reply.cut else reply.status))
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                if reply.status != 304:
                    self.send_header("Content-Length", str(len(reply.body) + (100 if reply.cut else 0)))
                self.end_headers()
                if reply.status != 304:
                    self.wfile.write(reply.body)
                self.close_connection = reply.cut

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(timestamp, usegmt=True)

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()

    def script(self, what: str, *replies: Reply) -> None:
        """The next answers of a listing."""
        with self._lock:
            self._scripts[what].extend(replies)

    def statuses(self) -> list[int]:
        """How the requests since the last look were answered."""
        with self._lock:
            statuses = [asked.status for asked in self.asked]
            self.asked.clear()
        return statuses

    def reply(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        """The answer to a request."""
        what = path.removeprefix(f"/repos/{REPOSITORY}/").removeprefix("/repositories/7/")
        with self._lock:
            if self._scripts[what]:
                return self._scripts[what].popleft()
        if what in self.entries:
            return self._page(what, query, headers)
        kind, _, name = what.rpartition("/")
        found = [entry for entry in self.entries.get(kind, ()) if str(entry.get(_ITEMS.get(kind, ""))) == name]
        return Reply(body=json.dumps(found[0]).encode()) if found else refused(404, "Not Found")

    def _page(self, what: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
        entries = self.entries[what][(page - 1) * size : page * size]
        body = json.dumps(entries).encode()
        told = {"ETag": f'W/"{hashlib.sha256(body).hexdigest()}"', "X-RateLimit-Remaining": "4999"}
        if page * size < len(self.entries[what]):
            # As GitHub does it: by the repository's number, and with other links before the one that counts.
            following = urlencode({**query, "page": page + 1})
            here = f"{self.url}/repositories/7/{what}"
            told["Link"] = (
                f'<{here}?page=1>; rel="first", <{here}?{following}>; rel="next", <{here}?page=9>; rel="last"'
            )
        if headers.get("if-none-match") == told["ETag"]:
            if not self.links_when_same:
                told.pop("Link", None)
            return Reply(304, told)
        return Reply(200, told, body)

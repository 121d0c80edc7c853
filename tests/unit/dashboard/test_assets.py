"""The library's files: compressed once, and nothing kept that may change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import brotli
import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from highwater.api.dashboard.assets import FILE_BYTES_MAX, Assets
from highwater.api.dashboard.library import own_component

FOR_EVER = {"cache-control": "public, max-age=31536000, immutable", "content-type": "text/javascript; charset=utf-8"}
TEXT = b"const answer = 42;\n" * 100


class Library:
    """Answers as the library does, and counts its requests."""

    def __init__(self, body: bytes = TEXT, headers: dict[str, str] = FOR_EVER, status: int = 200) -> None:
        self.asked: list[str | None] = []
        self._answer = body, status, headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        self.asked.append(Request(scope).headers.get("accept-encoding"))
        body, status, headers = self._answer
        await Response(body, status, dict(headers))(scope, receive, send)


async def get(application: Assets, path: str = "/_nicegui/3/static/vue.js", **headers: str) -> httpx2.Response:
    """A request of a browser."""
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://console") as http:
        return await http.get(path, headers={"accept-encoding": "gzip, br", **headers})


async def test_a_file_is_packed_once() -> None:
    """The library is asked once, for the plain bytes; browsers get them in the coding that they take, with its fields."""
    library = Library()
    application = Assets(library)
    for _ in range(3):
        answer = await get(application)
        assert (answer.headers["content-encoding"], answer.content) == ("br", TEXT)
        assert int(answer.headers["content-length"]) == len(brotli.compress(TEXT, quality=9))
        assert answer.headers["cache-control"] == FOR_EVER["cache-control"]
        assert answer.headers["vary"] == "Accept-Encoding"
    plain = await get(application, **{"accept-encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.content) == (False, TEXT)
    assert library.asked == [None]


async def test_a_font_is_kept_as_it_is() -> None:
    """It is packed already."""
    answer = await get(Assets(Library(headers={**FOR_EVER, "content-type": "font/woff2"})))
    assert ("content-encoding" in answer.headers, answer.content) == (False, TEXT)


@pytest.mark.parametrize(
    ("library", "path", "headers"),
    [
        (Library(headers={**FOR_EVER, "cache-control": "no-store"}), "/_nicegui/3/static/vue.js", {}),
        (Library(status=404), "/_nicegui/3/static/none.js", {}),
        (Library(body=b"x" * (FILE_BYTES_MAX + 1)), "/_nicegui/3/static/large.js", {}),
        (Library(), "/_nicegui/3/static/vue.js", {"if-none-match": '"1"'}),
        (Library(), "/_nicegui/3/static/vue.js", {"range": "bytes=0-9"}),
        (Library(), "/topics", {}),
    ],
)
async def test_what_may_change_is_the_librarys_to_answer(library: Library, path: str, headers: dict[str, str]) -> None:
    """Anything that is not an immutable file (too large, a part, a page) is requested each time, in the
    codings of the browser.
    """
    application = Assets(library)
    answers = [await get(application, path, **headers) for _ in range(2)]
    assert [one.status_code for one in answers] == [library._answer[1]] * 2
    assert library.asked.count("gzip, br") == 2


@pytest.mark.requirement("R4.26")
def test_the_address_of_a_script_is_of_its_content(tmp_path: Path) -> None:
    """Not of the time of its file: another content has another address, and the same content the same."""
    keys = set()
    for name, words, seconds in (("one.js", "1", 1), ("two.js", "1", 2), ("three.js", "2", 1)):
        script = tmp_path / name
        script.write_text(words, encoding="utf-8")
        os.utime(script, (seconds, seconds))
        keys.add(own_component(script).key.partition("/")[0])
    assert len(keys) == 2

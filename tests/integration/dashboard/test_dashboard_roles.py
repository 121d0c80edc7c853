"""The dashboard over HTTP and its socket, without a browser: who gets which page, and whom a page listens to."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from websockets.sync.client import ClientConnection, connect

from highwater.api.core.access import PUBLIC
from highwater.api.dashboard.mount import ACCESS, PAGES
from highwater.api.dashboard.sign_in import COOKIE
from tests.integration.api_server import Api, running_api

KEYS = {
    "admin": "root-key",
    "assistant": "judge-key",
    "editor": "edit-key",
    "viewer": "eye-key",
    "bound": "ann-key",
    "org": "org-key",
}
SETTING = (
    "admin:root-key,assistant:judge-key:ann,editor:edit-key,viewer:eye-key,viewer:ann-key:ann,editor:org-key::acme"
)
LETTERS = "/dead-letters?topic=feeds.insight-ingested"
# The first page loads the library: half a second where the machine is idle.
SECONDS = 60
# A page of one thing as an address names it.
SHOWN = [re.sub(r"\{\w+\}", "1", path) for path in PAGES if ACCESS[path] is not PUBLIC]


@pytest.fixture(scope="module")
def api(own_settings) -> Iterator[Api]:
    """An API with keys."""
    with running_api(own_settings(HIGHWATER_API_KEYS=SETTING)) as running:
        yield running


@contextlib.contextmanager
def signed_in(api: Api, who: str) -> Iterator[httpx2.Client]:
    """A browser that has signed in."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as client:
        answer = client.post("/login?next=/", data={"key": KEYS[who]})
        assert answer.status_code == 303, answer.text
        yield client


def page_id(html: str) -> str:
    """The id of a page as its script has it."""
    found = re.search(r"client_id['\"]?:\s*['\"]([0-9a-f-]{36})", html.replace("&quot;", '"').replace('\\"', '"'))
    assert found is not None, html[:2_000]
    return found[1]


class Socket:
    """A socket that says that it is of a page, as a script does that its author wrote by hand."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._next("0")
        self._connection.send("40")
        self.answer = self._next("4")

    def _next(self, kind: str) -> str:
        while True:
            found = str(self._connection.recv(timeout=SECONDS))
            if found.startswith(kind):
                return found

    @property
    def is_taken(self) -> bool:
        """Whether it was admitted."""
        return self.answer.startswith("40")

    def ask(self, event: str, message: Any) -> Any:
        """Send a message and wait for its answer."""
        self._connection.send(f"420{json.dumps([event, message])}")
        return json.loads(self._next("430")[3:])


@contextlib.contextmanager
def socket_of(api: Api, page: str, cookie: str | None) -> Iterator[Socket]:
    """A socket for a page, sent with a cookie."""
    query = (
        f"EIO=4&transport=websocket&client_id={page}&tab_id=t&document_id=d&next_message_id=0&implicit_handshake=true"
    )
    headers = {} if cookie is None else {"Cookie": f"{COOKIE}={cookie}"}
    address = f"{api.url.replace('http', 'ws', 1)}/_nicegui_ws/socket.io/?{query}"
    with connect(address, additional_headers=headers, proxy=None, open_timeout=SECONDS) as connection:
        yield Socket(connection)


@pytest.mark.parametrize("path", SHOWN)
def test_nobody_unknown_gets_a_page(api: Api, path: str) -> None:
    """A browser without a cookie, or with an invalid one, gets the sign-in form and returns afterwards; the address contains
    nothing else.
    """
    for cookies in ({}, {COOKIE: "made-up"}):
        answer = httpx2.get(f"{api.url}{path}", cookies=cookies, timeout=SECONDS)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={path.replace('/', '%2F')}")


def test_a_stranger_leaves_nothing_behind(api: Api) -> None:
    """What the library keeps of a browser ends with a connection: single requests, which need no sign-in, begin nothing."""
    with signed_in(api, "admin") as browser:
        browser.get("/")  # loads the library
    answer = httpx2.get(f"{api.url}/_nicegui_ws/socket.io/?EIO=4&transport=polling", timeout=SECONDS)
    assert (answer.status_code, "sid" in answer.text) == (400, False)


def test_a_key_stands_in_no_address_and_on_no_page(api: Api) -> None:
    """It travels in the body of one request; afterwards a cookie stands for it that scripts do not see."""
    with signed_in(api, "admin") as browser:
        told = [browser.get(path) for path in ("/", LETTERS, "/policies")]
        cookie = browser.cookies[COOKIE]
    for answer in told:
        assert answer.status_code == 200
        assert KEYS["admin"] not in f"{answer.text} {answer.headers} {answer.url}"
        assert cookie not in answer.text
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("who", "path", "says", "holds_back"),
    [
        ("bound", "/topics", "bound to one user", "Find a topic"),
        ("bound", "/browse", "bound to one user", "Where (CEL)"),
        ("bound", LETTERS, "bound to one user", "Send the selected again"),
        ("bound", "/user?id=bob", "bound to another user", "Explain"),
        ("bound", "/league?key=predictions:user:bob", "bound to another user", "Explain"),
        ("org", "/topics", "bound to one user", "Find a topic"),
        ("org", "/user?id=bob", "bound to another user", "Explain"),
        ("bound", "/policies", "requires the role admin", "Backtest"),
        ("viewer", LETTERS, "requires the role admin", "Send the selected again"),
        ("editor", LETTERS, "requires the role admin", "Drop up to"),
        ("viewer", "/policies", "requires the role admin", "Another policy"),
        ("editor", "/policies", "requires the role admin", "Another policy"),
        ("admin", LETTERS, "Send the selected again", "requires the role admin"),
        ("admin", "/policies", "Another policy", "requires the role admin"),
        ("viewer", "/user?id=bob", "Explain", "bound to another user"),
        ("viewer", "/jobs/1", "requires the role editor", "Restart from the last step"),
        ("bound", "/jobs/1", "requires the role editor", "Restart from the last step"),
        ("editor", "/jobs/1", "Restart from the last step", "requires the role editor"),
        ("org", "/jobs/1", "Restart from the last step", "requires the role editor"),
        ("viewer", "/queries/1", "requires the role editor", "Ask again"),
        ("bound", "/queries/1", "requires the role admin", "Restart from"),
        ("editor", "/queries/1", "Ask again", "Restart from"),
        ("admin", "/queries/1", "Restart from", "requires the role admin"),
        ("viewer", "/match?id=1", "needs the role admin or assistant", "Finalize"),
        ("assistant", "/match?id=1", "Finalize", "needs the role"),
        ("editor", "/user?id=bob", "Explain", "Rebuild now"),
        ("editor", "/user?id=bob", "Explain", "Erase the user"),
        ("admin", "/user?id=bob", "Erase the user", "bound to another user"),
        ("editor", "/insight?channel=c&id=1", "Retract", "bound"),
        ("org", "/insight?channel=c&id=1", "Loading the insight", "Retract"),
        ("viewer", "/insight?channel=c&id=1", "Loading the insight", "Retract"),
    ],
)
def test_a_page_holds_what_a_key_may_see(api: Api, who: str, path: str, says: str, holds_back: str) -> None:
    """A forbidden element is not hidden in the user's page: it is absent."""
    with signed_in(api, who) as browser:
        found = browser.get(path).text
    assert says in found
    assert holds_back not in found


def test_a_page_listens_to_the_browser_it_was_sent_to(api: Api) -> None:
    """The id of a page from a log is useless: it is refused without a cookie and with another user's cookie."""
    with signed_in(api, "admin") as admin, signed_in(api, "viewer") as viewer:
        page = page_id(admin.get(LETTERS).text)
        for cookie in (None, "made-up", viewer.cookies[COOKIE]):
            with socket_of(api, page, cookie) as socket:
                assert not socket.is_taken, socket.answer
        with socket_of(api, page, admin.cookies[COOKIE]) as own:
            assert own.is_taken, own.answer


def test_a_socket_gets_no_second_page(api: Api) -> None:
    """A socket that was admitted for its own page requests another's by its own message, and is refused."""
    with signed_in(api, "admin") as admin, signed_in(api, "viewer") as viewer:
        theirs, own = page_id(admin.get(LETTERS).text), page_id(viewer.get(LETTERS).text)
        asked = {"client_id": theirs, "tab_id": "t", "document_id": "d", "next_message_id": 0}
        with socket_of(api, own, viewer.cookies[COOKIE]) as socket:
            assert socket.is_taken
            assert socket.ask("handshake", asked) == [False]


def test_the_cookie_is_of_no_use_to_another_site(api: Api) -> None:
    """It is sent with requests that begin on our own pages only, and no script reads it."""
    answer = httpx2.post(f"{api.url}/login?next=/topics", data={"key": KEYS["admin"]}, timeout=SECONDS)
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert KEYS["admin"] not in f"{answer.headers} {answer.text}"

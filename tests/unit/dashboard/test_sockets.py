"""Sockets of browsers: a message counts for the page of the socket that it came by."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard.sign_in import COOKIE
from highwater.api.dashboard.sockets import _of_own_page, is_of_browser


class Server:
    """Rooms as the handshake leaves them."""

    def rooms(self, sid: str) -> list[str]:
        """A socket is in a room of its own and in that of its page."""
        return {"s1": ["s1", "page-1"], "s2": ["s2"]}.get(sid, [])


@pytest.mark.parametrize(
    ("sid", "page", "is_heard"),
    [
        ("s1", "page-1", True),
        ("s1", "page-2", False),
        ("s2", "page-1", False),
        ("s3", "page-1", False),
        ("s1", None, False),
    ],
)
async def test_a_message_counts_for_its_own_page_only(sid: str, page: str | None, is_heard: bool) -> None:
    """Also where its sender knows the id of another."""
    heard: list[Any] = []
    await _of_own_page(Server(), lambda sid, message: heard.append((sid, message)))(sid, {"client_id": page})
    assert bool(heard) == is_heard


@pytest.mark.parametrize("message", [5, None, [1], "page-1", {}, {"client_id": ["page-1"]}])
async def test_a_message_of_another_form_is_not_heard(message: Any) -> None:
    """It names no page, and writes no error of a program into the log."""
    heard: list[Any] = []
    await _of_own_page(Server(), lambda _, one: heard.append(one))("s1", message)
    assert heard == []


@pytest.mark.parametrize(
    ("of_page", "header", "is_same"),
    [
        ("t1", f"a=b; {COOKIE}=t1", True),
        ("t1", f'odd={{"json": 1}}; {COOKIE}=t1', True),
        ("t1", f"{COOKIE}=t2", False),
        ("t1", "", False),
        (None, "", True),
        (None, f"{COOKIE}=t2", False),
    ],
)
def test_a_browser_is_known_by_its_cookie(of_page: str | None, header: str, is_same: bool) -> None:
    """Other cookies and headers of the browser are ignored."""
    environment = {"HTTP_COOKIE": header} if header else {}
    assert is_of_browser(of_page, environment) == is_same

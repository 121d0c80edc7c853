"""What one open page receives: new versions once each, and everything where single ones are too many or unknown."""

from __future__ import annotations

import asyncio

import pytest

from highwater.api.pages.pushes import KEYS_MAX, Listener, Patch


async def sent_to(listener: Listener) -> list[Patch]:
    """What is sent now."""
    found: list[Patch] = []

    async def read() -> None:
        async for patch in listener.patches():
            found.append(patch)  # noqa: PERF401 - they do not end

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(), 0.05)
    return found


async def test_a_page_that_lags_behind_gets_each_name_once() -> None:
    """With its newest version; then the next ones."""
    listener = Listener(lambda key: key != "secret")
    for key, version in (("a", 1), ("b", 1), ("a", 2), ("secret", 9)):
        listener.note(key, version)
    assert await sent_to(listener) == [
        {"type": "patch", "key": "a", "version": 2},
        {"type": "patch", "key": "b", "version": 1},
    ]
    listener.note("a", 3)
    assert await sent_to(listener) == [{"type": "patch", "key": "a", "version": 3}]


async def test_too_many_names_are_everything() -> None:
    """As many as fit are named; one more, or an unknown past, is one message without a name."""
    listener = Listener(lambda _: True)
    for number in range(KEYS_MAX):
        listener.note(str(number), 1)
    assert len(await sent_to(listener)) == KEYS_MAX
    for number in range(KEYS_MAX + 2):
        listener.note(str(number), 2)
    assert await sent_to(listener) == [{"type": "patch"}]
    listener.note("a", 1)
    listener.note_everything()
    assert await sent_to(listener) == [{"type": "patch"}]


async def test_a_closed_page_gets_nothing_more() -> None:
    """The first code counts."""
    listener = Listener(lambda _: True)
    listener.note("a", 1)
    listener.close(4401, "over")
    listener.close(1001, "later")
    assert [patch async for patch in listener.patches()] == []
    assert listener.closed == (4401, "over")

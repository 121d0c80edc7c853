"""From when on the texts of a namespace are known."""

from __future__ import annotations

from highwater.streams.chunks.history import FORMER_MS, known_from_ms

NOW = 1_800_000_000_000


def test_texts_are_known_since_the_namespace_was_made():
    """Or since its former texts are kept, or for as long as they are kept: the latest of these."""
    assert known_from_ms("soft", NOW - 5, None, NOW) == NOW - 5
    assert known_from_ms("soft", NOW - 5, NOW - 3, NOW) == NOW - 3
    assert known_from_ms("soft", 0, None, NOW) == known_from_ms("soft", 0, 7, NOW) == NOW - FORMER_MS


def test_nothing_is_known_where_removals_are_hard():
    """A removed text must be erased there, and so must a replaced one."""
    assert known_from_ms("hard", NOW - 5, NOW - 3, NOW) is None

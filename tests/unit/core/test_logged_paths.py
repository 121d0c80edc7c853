"""Paths in logs and security records."""

from __future__ import annotations

import pytest

from highwater.api.core.errors import path_without_tokens


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/api/sessions/hws_abc-DEF", "/api/sessions/hws_…"),
        ("/read/shared/hwp_abc", "/read/shared/hwp_…"),
        ("/api/shared/hwp_a%2Fb", "/api/shared/hwp_…"),
        ("/api/users/ada/sessions", "/api/users/ada/sessions"),
    ],
)
def test_a_path_is_logged_without_tokens(path: str, logged: str):
    """A session and a public link work like a key."""
    assert path_without_tokens(path) == logged

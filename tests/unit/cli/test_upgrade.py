"""`highwater upgrade --check`: the report about migrations and about versions that run side by side."""

from __future__ import annotations

import pytest

from highwater.api.cli.upgrade import migrations_pending, versions_verdict

WANTED = {"0001_a": "1", "0002_b": "2"}


@pytest.mark.parametrize(
    ("applied", "state", "detail"),
    [
        (WANTED, "ok", "all 2 applied"),
        ({"0001_a": "1"}, "ok", "1 to apply: 0002_b"),
        ({}, "ok", "2 to apply: 0001_a, 0002_b"),
        ({**WANTED, "0003_c": "3"}, "bad", "of a newer version: 0003_c"),
        ({**WANTED, "0002_b": "x"}, "bad", "differ from the applied ones: 0002_b"),
    ],
)
def test_migrations_that_are_pending_prevent_nothing(applied: dict[str, str], state: str, detail: str) -> None:
    """Those of a newer version, and changed ones, do."""
    found = migrations_pending(WANTED, applied)
    assert (found.state, found.detail) == (state, detail)


@pytest.mark.parametrize(
    ("sessions", "state", "detail"),
    [
        ({}, "ok", "no role is connected to the database"),
        ({"highwater/2": 3}, "ok", "all of 2 (3 connections), this version"),
        ({"highwater/1": 3}, "ok", "all of 1 (3 connections)"),
        ({"highwater/1": 3, "highwater/2": 1}, "warning", "of several versions: 1 (3 connections), 2 (1 connection)"),
    ],
)
def test_roles_of_several_versions_are_told(sessions: dict[str, int], state: str, detail: str) -> None:
    """By the names of their sessions."""
    found = versions_verdict(sessions, "highwater/2")
    assert (found.state, found.detail) == (state, detail)

"""The console's list of users: what delays rebuilds comes first."""

from __future__ import annotations

from typing import Any

from highwater.api.dashboard.pages.user import _list

NOW = 1_794_484_800_000


def row(user_id: str, **more: Any) -> dict[str, Any]:
    """A user as the list reads it."""
    times = {"last_active_at": None, "last_clustered_at": None}
    return (
        {"user_id": user_id, "plan": "free", "cluster_version": 1, "in_flight": False, "delay_reason": None}
        | times
        | more
    )


def test_the_reason_of_a_delay_leads_the_list() -> None:
    """Escaped, with the number of users, and each of them is marked; without a delay there is no such line."""
    assert "delayed" not in _list([row("a"), row("b", in_flight=True)], NOW)
    page = _list(
        [row("a"), row("b", delay_reason="no <memory>"), row("c", in_flight=True, delay_reason="no <memory>")], NOW
    )
    assert page.startswith(
        '<div class="hw-card hw-bad">Rebuilds are delayed: no &lt;memory&gt; (2 users of this list)</div>'
    )
    assert (page.count("rebuild delayed"), page.count("rebuild in progress")) == (1, 1)

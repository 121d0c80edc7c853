"""How far a namespace is with another embedding model, as the page of chunks says it."""

from __future__ import annotations

from highwater.api.dashboard.pages.chunks import switch_html


def test_a_change_of_model_is_told_while_it_lasts() -> None:
    """With what searches compare by meanwhile, and when it is expected to end once that can be estimated."""
    switch = {"embedding_model": "minilm@384", "made": 1200, "due_at": None}
    told = {"ns": "docs", "chunks": 5000, "embedding_model": "<hash>@384", "switch": switch}
    shown = switch_html(told)
    assert "1,200 of 5,000 vectors of minilm@384 are made. Until then searches compare by &lt;hash&gt;@384." in shown
    later = switch_html({**told, "switch": {**switch, "due_at": "2026-11-26T04:00:00Z"}})
    assert "are made, expected end 2026-11-26 04:00" in later
    assert switch_html({**told, "switch": None}) == ""

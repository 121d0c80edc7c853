"""A step of an explanation as the dashboard shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from highwater.api.dashboard.explained import step_html
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import read_settings


def no_page(_: Mapping[str, Any]) -> None:
    """No step has a page."""


def test_a_step_links_to_its_trace() -> None:
    """Where the address of traces is set; as text that can hold no markup."""
    step = {"kind": "insight", "about": "a", "trace_id": "4b", "trace_url": 'https://traces.example.org/4b?a="b"'}
    assert 'href="https://traces.example.org/4b?a=&quot;b&quot;"' in step_html(step, 0, no_page)
    assert "<a" not in step_html({**step, "trace_url": None}, 0, no_page)


@pytest.mark.parametrize("address", ["https://traces.example.org/", "javascript:alert('{trace_id}')"])
def test_the_address_of_traces_is_one_of_http_with_a_place_for_the_id(address: str) -> None:
    """Another one is refused at the start."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_TRACE_URL"):
        read_settings({"HIGHWATER_TRACE_URL": address})

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


def test_a_step_names_the_page_that_it_leads_to() -> None:
    """Beside what opens and closes it, never within: a link within a summary is not reached by everybody."""
    cause = {"kind": "insight", "about": "b"}
    step = {"kind": "event", "about": "a", "position": "t/0/1", "causes": [cause]}
    shown = step_html(step, 0, lambda one: "/insight?id=1" if one is cause else "/browse?record=0/1")
    assert ">Open the record t/0/1</a>" in shown
    assert ">Open the insight</a>" in shown
    assert "<a" not in shown[shown.index("<summary>") : shown.index("</summary>")]


def test_the_way_to_an_event_stands_open() -> None:
    """Also where it does not go through the first cause, which nothing led to."""
    way: dict[str, Any] = {"kind": "insight", "about": "x"}
    for kind in ("advance", "dirty", "novelty"):
        way = {"kind": kind, "about": "x", "causes": [way]}
    step: dict[str, Any] = {"kind": "rebuild", "about": "x", "causes": [{"kind": "request", "about": "x"}, way, way]}
    shown = step_html(step, 9, no_page)
    assert (shown.count("<details open>"), shown.count("<details>")) == (4, 3)


@pytest.mark.parametrize("address", ["https://traces.example.org/", "javascript:alert('{trace_id}')"])
def test_the_address_of_traces_is_one_of_http_with_a_place_for_the_id(address: str) -> None:
    """Another one is refused at the start."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_TRACE_URL"):
        read_settings({"HIGHWATER_TRACE_URL": address})

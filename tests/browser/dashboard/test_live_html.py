"""The script that changes a part of a page in place: equal elements keep their focus, their place, and their open state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import ROOT

SCRIPT = (ROOT / "api" / "dashboard" / "live_html.js").read_text("utf-8").replace("export default", "globalThis.part =")
# The component without the library: its element, and what it does when it is first shown and when its content changes.
COMPONENT = """() => {
  const element = document.body.appendChild(document.createElement("div"));
  globalThis.shown = {...part.methods, $el: element, sanitize: false};
  globalThis.show = (html) => { shown.innerHTML = html; shown.show(); };
}"""


def rows(*names: str, more: str = "") -> str:
    """A table with a row of each name, a heading and something that opens."""
    lines = "".join(
        f'<tr data-key="{name}"><td><a href="#{name}" id="{name}">{name}</a>{more}</td></tr>' for name in names
    )
    return f"<h2>{len(names)}</h2><details><summary>s</summary>{more}</details><table><tbody>{lines}</tbody></table>"


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    """An empty page with the component."""
    found = chromium.new_page()
    found.add_script_tag(content=f"{{ {SCRIPT} }}")
    found.evaluate(COMPONENT)
    yield found
    found.close()


def test_what_is_the_same_stays(page: Any) -> None:
    """A link keeps the focus while rows come above it, others go, and figures change; opened elements stay open."""
    page.evaluate("show", rows("b", "c"))
    page.evaluate("document.querySelector('details').open = true")
    page.evaluate("globalThis.kept = document.getElementById('c'); kept.focus()")
    page.evaluate("show", rows("a", "c", more=" 7"))
    assert page.evaluate("document.activeElement === kept && kept.isConnected")
    assert page.evaluate("document.querySelector('details').open")
    assert page.evaluate("shown.$el.innerHTML.replace(' open=\"\"', '')") == rows("a", "c", more=" 7")


@pytest.mark.parametrize(
    "html",
    [
        rows("c", "a", "b"),  # another order
        rows(),
        '<svg viewBox="0 0 1 1"><polyline points="0,1 1,0"/></svg>'.replace("/>", "></polyline>"),
        "text <b>and</b> more",
        '<p class="x" title="t">one</p>text<p>two</p>',
        "<p>one</p><!-- c --><ul><li>two</li></ul>",
        rows("a", "a"),  # one key twice, which no page should have
        "",
    ],
)
def test_what_is_shown_is_what_a_fresh_page_would_have(page: Any, html: str) -> None:
    """From any content to any other, and back."""
    before = page.evaluate("shown.$el.innerHTML")
    page.evaluate("show", html)
    assert page.evaluate("shown.$el.innerHTML.replace(' open=\"\"', '')") == html
    page.evaluate("show", rows("x", "b"))
    assert page.evaluate("shown.$el.innerHTML.replace(' open=\"\"', '')") == rows("x", "b")
    assert before is not None

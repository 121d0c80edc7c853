"""A real browser before the real product; left out, with the reason, where there is no chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.product import Product

# Debian's; the build that playwright downloads itself cannot be had everywhere.
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


# A page takes a second on an idle machine; tests run where it is not.
TIMEOUT_MS = 90_000


class Browser:
    """A browser whose pages note what goes wrong in them and what they fetch from elsewhere."""

    def __init__(self, chromium: Any, base_url: str) -> None:
        self._chromium = chromium
        self._base_url = base_url
        self.problems: list[str] = []
        self.elsewhere: list[str] = []

    def page(
        self, path: str, *, width: int = 1360, height: int = 900, scheme: str = "light", context: Any = None
    ) -> Any:
        """A page that is built."""
        context = context or self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, base_url=self._base_url
        )
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: self._note(request.url))
        page.goto(path)
        page.wait_for_selector("h1")
        return page

    def _note(self, url: str) -> None:
        if not url.startswith((self._base_url, "data:", "blob:")):
            self.elsewhere.append(url)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium; `apt install chromium` has these tests run")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container there is no sandbox to be had, and the only site is ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Any, product: Product) -> Iterator[Browser]:
    """A browser before the product; nothing may have gone wrong in it by the end."""
    found = Browser(chromium, f"http://127.0.0.1:{product.port}")
    yield found
    for context in chromium.contexts:
        context.close()
    assert found.problems == []
    assert found.elsewhere == []

"""A real browser before the real product; left out, with the reason, where there is no chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from highwater.streams.access import trusts_nobody
from tests.product import Product

# Debian's; the build that playwright downloads itself cannot be had everywhere. The shell is the same engine without the
# windows of a browser: a new page costs 0.1 s of processor time instead of 0.85.
_PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _PROGRAMS)), None)
LEFT_OUT = "there is no chromium; `apt install chromium-headless-shell` has these tests run"
# A page takes a second on an idle machine; tests run where it is not.
TIMEOUT_MS = 60_000
KEYS = {
    "admin": "admin:root-key-0001",
    "editor": "editor:edit-key-0001",
    "assistant": "assistant:judge-key-0001:judge",
    "viewer": "viewer:eye-key-0001",
    "bound": "viewer:ann-key-0001:ann",
}


class Browser:
    """A browser whose pages note what goes wrong in them and what they fetch from elsewhere."""

    def __init__(self, chromium: Any, base_url: str) -> None:
        self._chromium = chromium
        self._base_url = base_url
        self.problems: list[str] = []
        self.elsewhere: list[str] = []

    def context(self, *, width: int = 1360, height: int = 900, scheme: str = "light", **more: Any) -> Any:
        """A window of its own, with its own cookies."""
        return self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, base_url=self._base_url, **more
        )

    def page(self, path: str, context: Any = None) -> Any:
        """A page that is connected and has shown what there is."""
        page = self.tab(path, context)
        page.goto(path)
        settled(page)
        return page

    def tab(self, path: str, context: Any = None) -> Any:
        """A tab that is watched, before it goes to its page."""
        page = (context or self.context()).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: self.problems.append(f"{path}: {error}"))
        page.on("console", lambda line: self.problems.append(f"{path}: {line.text}") if line.type == "error" else None)
        page.on("request", lambda request: self._note(request.url))
        return page

    def _note(self, url: str) -> None:
        if not url.startswith((self._base_url, self._base_url.replace("http", "ws", 1), "data:", "blob:")):
            self.elsewhere.append(url)


def settled(page: Any) -> None:
    """Wait until a page is connected and was filled once."""
    page.wait_for_function("window.did_handshake && !document.querySelector('[aria-busy=true]')")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser. Playwright's loop runs in this thread while it is open, and tests after it run loops of their own."""
    if CHROMIUM is None:
        pytest.skip(LEFT_OUT)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        # In a container there is no sandbox to be had, and the only site is ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def watched(chromium: Any, url: str) -> Iterator[Browser]:
    """A browser before an API; nothing may have gone wrong in it by the end."""
    found = Browser(chromium, url)
    yield found
    assert found.problems == []
    assert found.elsewhere == []


@pytest.fixture(scope="module")
def browser(chromium: Any, product: Product) -> Iterator[Browser]:
    """A browser before the open product; nothing may have gone wrong in it by the end of the module."""
    yield from watched(chromium, f"http://127.0.0.1:{product.port}")


@dataclass(frozen=True)
class Guarded:
    """An API with keys over the same parts, and a browser before it."""

    url: str
    browser: Browser

    def signed_in(self, who: str) -> Any:
        """A window that is signed in through the form."""
        context = self.browser.context()
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto("/topics?x=1")
        page.get_by_label("API key or session").fill(KEYS[who].split(":")[1])
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics?x=1")
        page.close()
        return context


@pytest.fixture(scope="module")
def guarded(chromium: Any, product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A second API process, which asks for keys."""
    log: Path = tmp_path_factory.mktemp("guarded") / "api.log"
    # All readers of a test have one address, so its limit of live pages is not that of one of them.
    more = {"HIGHWATER_API_KEYS": ",".join(KEYS.values()), "HIGHWATER_LIVE_REQUESTS_MAX": "1000000"}
    with api_process(product, log, **more) as url:
        yield from (Guarded(url, found) for found in watched(chromium, url))


@contextlib.contextmanager
def api_process(product: Product, log: Path, *, port: int = 0, **named: str) -> Iterator[str]:
    """Another API process over the parts of a product, with settings of its own; its address. `port` 0: a free one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = port or probe.getsockname()[1]
    with log.open("ab") as told:
        program = [str(Path(sys.executable).parent / "highwater"), "api"]
        environment = {**product.environment, "HIGHWATER_PORT": str(port), **named}
        child = subprocess.Popen(program, env=environment, stdout=told, stderr=told)
    url = f"http://127.0.0.1:{port}"
    try:
        product.until(
            lambda: httpx2.get(f"{url}/readyz", verify=trusts_nobody()).status_code == 200,
            f"the API is not ready: {log.read_text()}",
        )
        yield url
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20)
        child.kill()
        child.wait()

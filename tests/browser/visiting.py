"""The checks of a page in one visit: violations of axe-core, its weight, and the path of the keyboard."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from tests.browser.catalogue import is_of_console
from tests.browser.conftest import settled
from tests.browser.unlinked import unlinked

WIDE, NARROW = 1360, 360
# A dozen repeated elements are checked: hundreds of equal rows take axe-core half a minute.
_FIRST_OF_MANY = """(isScripted) => {
  const many = ":is(tbody>tr, details, li, .card, section, h2, h3, table):nth-of-type(n+13)";
  const sheet = new CSSStyleSheet();  // and colours change at once
  sheet.replaceSync(`${many}{display:none!important} *{transition:none!important;animation:none!important}`);
  document.adoptedStyleSheets = [sheet];
  if (!isScripted) document.querySelectorAll(many).forEach((one) => one.remove());
}"""
_ALL_RULES = "{}"
# Between two checks of a page only its colours have changed.
_COLOURS = '{runOnly: ["color-contrast", "link-in-text-block"]}'
# Without `preload`, which asks for every style once more by a request that the policy of a page forbids.
_AXE = """(more) => axe.run(document, {preload: false, resultTypes: ["violations"], ...more})
  .then((found) => found.violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 200)}`)))"""
_DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
_STRUCTURE = """() => ({
  lang: document.documentElement.lang,
  headings: [...document.querySelectorAll("h1")].filter((one) => one.checkVisibility()).map((one) => one.innerText),
  positive: [...document.querySelectorAll("[tabindex]")].filter((one) => one.tabIndex > 0).length,
  current: document.querySelector("nav a[aria-current=page]")?.getAttribute("href") ?? null,
  outermost: document.documentElement.scrollWidth,
})"""
# Where the focus is: in the header, in the navigation, in what the page is about, or nowhere; and whether that is seen.
_FOCUSED = """() => {
  const at = document.activeElement;
  if (at === document.body || at === document.documentElement) return ["nowhere", true, ""];
  const place = at.matches(".skip, .hw-skip") ? "skip" : at.closest("main") ? "page"
    : at.closest("footer") ? "footer" : at.closest("nav") ? "navigation" : at.closest("header") ? "header" : "elsewhere";
  const frame = at.closest(".q-field__control");  // a field of the library has a thicker frame instead
  const isSeen = getComputedStyle(at).outlineStyle !== "none" ||
    (frame !== null && parseFloat(getComputedStyle(frame, "::after").borderTopWidth) >= 2);
  return [place, isSeen, at.outerHTML.slice(0, 120)];
}"""


@dataclass
class Visit:
    """A page as it was seen."""

    address: str
    path: str
    violations: list[str] = field(default_factory=list)
    bytes_transferred: int = 0
    structure: dict[str, Any] = field(default_factory=dict)
    width_narrow: int = 0
    # Figures that lead nowhere, each with its name.
    unlinked: list[tuple[str, str]] = field(default_factory=list)
    # Where Tab led from the top of the page, and where the focus could not be seen.
    places: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


class Visitor:
    """A tab that goes from page to page, and weighs each as a first visit would: files kept by an earlier one count again."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._axe = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
        self._bytes = 0
        self._urls: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._packing: Any = None
        devtools = page.context.new_cdp_session(page)
        devtools.send("Network.enable")
        devtools.on("Network.requestWillBeSent", self._note_url)
        devtools.on("Network.loadingFinished", self._weigh_file)
        devtools.on("Network.webSocketHandshakeResponseReceived", self._open_socket)
        devtools.on("Network.webSocketFrameReceived", lambda told: self._weigh_message(told["response"]["payloadData"]))

    def _note_url(self, told: Any) -> None:
        self._urls[told["requestId"]] = told["request"]["url"]

    def _weigh_file(self, told: Any) -> None:
        """A file of the cache has no size: it weighs what it did when it was transferred."""
        url, size = self._urls.pop(told["requestId"], ""), int(told["encodedDataLength"])
        self._bytes += size or self._sizes.get(url, 0)
        if size:
            self._sizes[url] = size

    def _open_socket(self, told: Any) -> None:
        # The browser reports messages after unpacking: they are packed here as the socket packs them (RFC 7692).
        offered = {name.lower(): value for name, value in told["response"]["headers"].items()}
        is_packed = "permessage-deflate" in offered.get("sec-websocket-extensions", "")
        self._packing = zlib.compressobj(wbits=-zlib.MAX_WBITS) if is_packed else None

    def _weigh_message(self, text: str) -> None:
        message = text.encode()
        if self._packing is not None:
            message = self._packing.compress(message) + self._packing.flush(zlib.Z_SYNC_FLUSH)
        self._bytes += len(message)

    def visit(self, path: str, address: str) -> Visit:
        """Go to a page once and check it in four forms: wide and narrow, light and dark."""
        page, found = self._page, Visit(address, path)
        self._look_as(WIDE, "light")
        self._bytes = 0
        page.goto(address)
        if is_of_console(path):
            settled(page)
        page.wait_for_load_state("load" if is_of_console(path) else "networkidle")
        found.bytes_transferred = self._bytes
        found.structure = page.evaluate(_STRUCTURE)
        found.unlinked = unlinked(page.content()) if is_of_console(path) else []
        self._walk(found)
        page.evaluate(_FIRST_OF_MANY, is_of_console(path))
        page.evaluate(self._axe)
        looks = (
            (WIDE, "light", _ALL_RULES),
            (WIDE, "dark", _COLOURS),
            (NARROW, "dark", _ALL_RULES),
            (NARROW, "light", _COLOURS),
        )
        for width, scheme, rules in looks:
            self._look_as(width, scheme)
            if is_of_console(path):
                page.wait_for_selector(f"body.body--{scheme}", state="attached")
            page.evaluate(_DRAWN)
            told = page.evaluate(f"(() => {{ const run = {_AXE}; return run({rules}); }})()")
            found.violations += [f"{address} at {width} in {scheme}: {one}" for one in told]
        found.width_narrow = page.evaluate("document.documentElement.scrollWidth")
        return found

    def _look_as(self, width: int, scheme: str) -> None:
        self._page.set_viewport_size({"width": width, "height": 900})
        self._page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def _walk(self, found: Visit) -> None:
        """Tab from the top: return the first elements; then past the navigation by the skip link."""
        keyboard = self._page.keyboard
        for number in range(3):
            if number == 1 and found.places == ["skip"]:
                keyboard.press("Enter")
            keyboard.press("Tab")
            place, is_seen, element = self._page.evaluate(_FOCUSED)
            found.places.append(place)
            if not is_seen:
                found.unseen.append(element)

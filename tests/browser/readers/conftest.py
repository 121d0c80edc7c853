"""A season that is played while readers view it, and tabs of readers' pages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from highwater.streams.clock import ProductClock
from tests.browser.conftest import Browser, api_process, watched
from tests.browser.readers.reading import encoded

# Less than the time limit of a request.
_STEP_MS = 5_000
TEAMS = ("Home United", "Away City", "Third Rovers", "Fourth Town")
# Reports of a tab whether it is visible, as the browser would, and counts its requests at the moment of the request.
_WATCHED = """
const asked = {};
let open = 0;
const plain = window.fetch;
window.fetch = async (path, options) => {
  asked[path] = (asked[path] ?? 0) + 1;
  open += 1;
  try {
    const answer = await plain(path, options);
    await answer.clone().text();
    return answer;
  } finally { open -= 1; }
};
window.requestsOf = (path) => asked[path] ?? 0;
let heard = 0;
window.WebSocket = class extends WebSocket {
  constructor(url) { super(url); this.addEventListener("message", () => { heard += 1; }); }
};
window.isPushed = () => document.body.dataset.changes !== undefined;
window.hasHeard = () => heard > 0;
// A task of its own: timers of a page stand still while a test holds its clock.
const later = (call) => {
  const { port1, port2 } = new MessageChannel();
  port2.onmessage = () => { port1.close(); call(); };
  port1.postMessage(0);
};
window.until = (condition) => new Promise((done) => {
  const look = () => condition() ? done() : later(look);
  look();
});
window.allAnswered = () => until(() => open === 0 && Object.keys(asked).length > 0);
let shown = "visible";
Object.defineProperty(document, "visibilityState", {get: () => shown});
window.look = (state) => { shown = state; document.dispatchEvent(new Event("visibilitychange")); };
"""


@dataclass(frozen=True)
class Season:
    """A season of four matches: one that is over again and again, one to come, and a final of two legs."""

    product: Any
    url: str
    name: str

    @property
    def page(self) -> str:
        """Its page."""
        return f"/read/league/{self.name}"

    def part(self, tab: str = "table") -> str:
        """Where a tab requests it alone."""
        return f"{self.page}/{tab}?part=1&lang=en"

    def match(self, number: int) -> str:
        """The page of a match."""
        return f"/read/matches/{self.name}-{number}"

    def get(self, path: str, **headers: str) -> Any:
        """GET of the API that serves the pages."""
        return self.product.get(f"{self.url}{path}", **headers)

    def ends(self, home: int, away: int) -> None:
        """The first match ends so, and is stored."""
        path = f"/api/matches/{self.name}-1/finalize"
        answer = self.product.http.post(path, json={"home_goals": home, "away_goals": away})
        assert answer.status_code == 202, answer.text
        position = ",".join(answer.json()["positions"])
        seen = self.get(f"/api/league/{self.name}/table", X_Min_Position=position, X_Max_Wait_Ms="30000")
        assert seen.status_code == 200, seen.text

    def version(self) -> int:
        """The version of its table."""
        return int(self.get(f"/api/league/{self.name}/table").headers["x-resource-version"])


@pytest.fixture(scope="session")
def api_url(product: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An API of readers: all of them have one address here, so its limit of live pages is not that of one of them."""
    log = tmp_path_factory.mktemp("readers") / "api.log"
    with api_process(product, log, HIGHWATER_LIVE_REQUESTS_MAX="1000000") as url:
        yield url


@pytest.fixture(scope="module")
def browser(chromium: Any, api_url: str) -> Iterator[Browser]:
    """A browser before that API."""
    yield from watched(chromium, api_url)


@pytest.fixture(scope="module")
def season(product: Any, api_url: str) -> Season:
    """Scheduled; the first match has its result."""
    name, now_ms = f"read {uuid.uuid4().hex[:8]}/é", ProductClock()()
    home, away, third, fourth = TEAMS
    matches = [
        (1, "Matchday 1", now_ms - 86_400_000, home, away),
        (2, "Matchday 2", now_ms + 86_400_000, third, fourth),
        (3, "Final, 1st leg", now_ms + 2 * 86_400_000, home, third),
        (4, "Final, 2nd leg", now_ms + 3 * 86_400_000, third, home),
    ]
    product.publish(
        "league.match-scheduled",
        [
            {"match_id": f"{name}-{number}", "season": name, "round": played, "kickoff": kickoff, "home": one, "away": other,
             "time_unknown": False, "status": None}
            for number, played, kickoff, one, other in matches
        ],
    )  # fmt: skip
    found = Season(product, api_url, encoded(name))
    product.until(lambda: product.get(f"/api/league/{found.name}/table").status_code == 200, "the season is stored")
    found.ends(1, 0)
    return found


@dataclass
class Tab:
    """A reader's tab, and the requests that it has sent for parts of its page."""

    page: Any
    answers: list[Any] = field(default_factory=list)
    sockets: list[str] = field(default_factory=list)

    def asked(self, part: str) -> list[int]:
        """The statuses of the answers for a part."""
        return [answer.status for answer in self.answers if answer.url.endswith(part)]

    def requests(self, path: str) -> int:
        """How often the page has asked for a path; every answer has come by then."""
        self.page.evaluate("allAnswered()")
        return int(self.page.evaluate("(path) => requestsOf(path)", path))

    def until(self, condition: str) -> None:
        """Wait for a condition of JavaScript, also while the page's clock stands still."""
        self.page.evaluate(f"until(() => {condition})")

    def stop_clock(self) -> None:
        """From here on only the test has time pass; the clock must be its own (`own_clock`)."""
        self.page.clock.pause_at(ProductClock()() / 1_000 + 120)

    def passes(self, ms: int) -> None:
        """Have time pass on a stopped clock, by which requests have their time limit too; each has its answer then."""
        for _ in range(0, ms, _STEP_MS):
            self.page.clock.run_for(_STEP_MS)
            self.page.evaluate("allAnswered()")


@pytest.fixture
def tab(browser: Any) -> Any:
    """Opens tabs; their windows are closed afterwards."""
    opened: list[Any] = []

    def opens(
        path: str, context: Any = None, *, prepare: Callable[[Any], None] | None = None, before: Browser = browser
    ) -> Tab:
        page = before.tab(path, context)
        opened.append(page.context)
        found = Tab(page)
        page.on("response", lambda answer: found.answers.append(answer) if "part=" in answer.url else None)
        page.on("websocket", lambda socket: found.sockets.append(socket.url))
        page.add_init_script(_WATCHED)
        if prepare is not None:
            prepare(page)
        page.goto(path)
        # The first push has a page read everything; no timer does that.
        found.until("!isPushed() || hasHeard()")
        return found

    yield opens
    for context in opened:
        context.close()

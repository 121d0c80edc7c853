"""What eight hours add to a page that stays open: `python -m tests.bench.open_pages URL`, on a product with its sample.

Pages of the console: updates of the server are recorded while insights flow, and shown again as often as the page is refreshed in
eight hours. Readers' pages: their clock is moved on eight hours, and they ask the server as often as they would; now and then a
result changes. Both are measured after the browser has collected what nothing refers to.

The server: sockets without a browser keep pages open, and what its process holds is read as they come, stay and go.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import statistics
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import httpx2
import psutil
import socketio
from playwright.sync_api import sync_playwright

from highwater.api.cli.sample import READER, SEASON
from tests.bench.pages import flowing
from tests.browser.conftest import CHROMIUM, TIMEOUT_MS, settled
from tests.browser.growth import Held, OpenPage, held_by

HOUR_SECONDS = 3_600
HOURS = 8
# Pages of the console with the seconds between two of their refreshes.
CONSOLE = {"/": 2.0, "/topics": 2.0, "/browse?topic=feeds.insight-ingested": 0.5}
# Readers' pages with the step by which their clock is moved: less than the time limit of a request, which is of this clock too.
READERS = {f"/read/league/{SEASON}": 5, f"/read/feed?user={READER}": 5}
RECORDED, PARTS = 20, 4
# Once an hour a result changes.
CHANGED_EACH_SECONDS = 3_600
SOCKETS, SAMPLE_SECONDS = 40, 15.0
# Which requests of a page are not answered yet; its timers are those of the clock that is moved.
_COUNTED = """
const plain = window.fetch, later = window.setTimeout.bind(window);
let open = 0;
window.fetch = (...asked) => {
  open += 1;
  return plain(...asked).finally(() => { open -= 1; });
};
window.allAnswered = () => new Promise((done) => {
  const look = () => open === 0 ? done() : later(look, 5);
  look();
});
"""
_QUERY = re.compile(r"query: (\{.*?\}),\n")


class Growth(NamedTuple):
    """What a page held at the beginning, and at each quarter of the day."""

    page: str
    what: str
    held: Sequence[Held]

    def line(self) -> str:
        """As a line of the table."""
        first, last = self.held[0], self.held[-1]
        heaps = " ".join(f"{one.heap_bytes / 1e6:.1f}" for one in self.held)
        return (
            f"| `{self.page}` | {self.what} | {heaps} | {first.nodes:,} → {last.nodes:,} "
            f"| {first.listeners:,} → {last.listeners:,} |"
        )


def shown_again(page: Any, seconds: float, hours: float) -> Growth:
    """A page of the console whose updates are shown again."""
    settled(page)
    opened = OpenPage(page)
    recorded = opened.record(RECORDED)
    rounds = max(1, round(hours * HOUR_SECONDS / seconds / recorded / PARTS))
    opened.replay(1)  # what is made once
    held = [opened.replay(1)]
    held += [opened.replay(rounds) for _ in range(PARTS)]
    return Growth(page.url, f"{rounds * PARTS * recorded:,} updates", held)


def moved_on(page: Any, seconds: int, hours: float, change: Callable[[int], None]) -> Growth:
    """A readers' page whose clock is moved on."""
    devtools = page.context.new_cdp_session(page)
    requests: list[str] = []
    # To a browser, a request that is answered with 304 has not finished.
    page.on("response", lambda answer: requests.append(answer.url) if "part=" in answer.url else None)

    def move(steps: int) -> Held:
        for step in range(steps):
            if step * seconds % CHANGED_EACH_SECONDS == 0:
                change(step)
            page.clock.run_for(seconds * 1_000)
            page.evaluate("allAnswered()")
        return held_by(devtools)

    held = [move(4)]
    requests.clear()
    held += [move(max(1, round(hours * HOUR_SECONDS / seconds / PARTS))) for _ in range(PARTS)]
    return Growth(page.url, f"{len(requests):,} requests", held)


def changing(http: httpx2.Client) -> Callable[[int], None]:
    """Sets the result of a match of the season, and lets insights come."""
    schedule = http.get(f"/api/league/{SEASON}/schedule").raise_for_status().json()
    match = next(one["match_id"] for of_round in schedule["rounds"] for one in of_round["matches"])

    def change(number: int) -> None:
        goals = {"home_goals": number % 7, "away_goals": 0}
        http.post(f"/api/matches/{match}/finalize", json=goals).raise_for_status()

    return change


def browsed(url: str, hours: float, paths: Sequence[str]) -> Iterator[Growth]:
    """These pages in a browser, one after another."""
    with httpx2.Client(base_url=url, timeout=60) as http, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for path in paths:
            page = chromium.new_context(base_url=url, viewport={"width": 1_360, "height": 900}).new_page()
            page.set_default_timeout(TIMEOUT_MS)
            if path in READERS:
                page.add_init_script(_COUNTED)
                page.clock.install()
            page.goto(path)
            if path in READERS:
                found = moved_on(page, READERS[path], hours, changing(http))
            else:
                with flowing(url):
                    found = shown_again(page, CONSOLE[path], hours)
            yield found._replace(page=path)
            page.context.close()
        chromium.close()


# -- the server ---------------------------------------------------------------------------------------------------------------


def server_of(url: str) -> psutil.Process:
    """The process that listens there."""
    port = urlsplit(url).port
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None:
            return psutil.Process(one.pid)
    raise SystemExit(f"nothing of this machine listens at {url}")


async def opened(http: httpx2.AsyncClient, url: str, path: str) -> socketio.AsyncClient:
    """A page that is open without a browser: its socket takes updates and confirms them, as the library's script does."""
    found = _QUERY.search((await http.get(path)).text)
    assert found is not None, path
    query = {**ast.literal_eval(found[1]), "document_id": str(uuid.uuid4()), "tab_id": str(uuid.uuid4())}
    query["implicit_handshake"] = "true"
    client = socketio.AsyncClient()

    async def confirm(event: str, message: Any = None) -> None:
        number = message.get("_id") if isinstance(message, dict) else None
        if number is not None and number % 5 == 0:
            await client.emit("ack", {"client_id": query["client_id"], "next_message_id": number + 1})

    client.on("*", confirm)
    address = f"{url}/?{urlencode(query)}"
    await client.connect(address, socketio_path="/_nicegui_ws/socket.io", transports=["websocket"])
    return client


async def served(url: str, minutes: float) -> list[str]:
    """What the process of the server holds before pages are open, while they are, and after they were closed."""
    process = server_of(url)
    clients: list[socketio.AsyncClient] = []

    async def held(seconds: float) -> float:
        samples = []
        for _ in range(max(1, round(seconds / SAMPLE_SECONDS))):
            await asyncio.sleep(SAMPLE_SECONDS)
            samples.append(process.memory_full_info().pss / 1e6)
        return statistics.median(samples)

    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        clients.append(await opened(http, url, "/"))  # what the first one loads is not of the others
        told = [("one page", await held(30))]
        clients += [await opened(http, url, "/") for _ in range(SOCKETS)]
        told.append((f"{SOCKETS} more", await held(30)))
        for part in range(1, PARTS + 1):
            name = f"after {minutes * part / PARTS:g} min"
            told.append((name, await held(minutes * 60 / PARTS)))
    for client in clients[1:]:
        await client.disconnect()
    told.append(("closed again", await held(60)))
    await clients[0].disconnect()
    return [f"| {name} | {megabytes:.1f} |" for name, megabytes in told]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="Measures what eight hours add to a page that stays open.")
    parser.add_argument("url")
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--only", nargs="+", default=[], help="pages by their path; `server`: the process of the API")
    parser.add_argument("--minutes", type=float, default=12.0, help="how long the sockets stay open")
    asked = parser.parse_args()
    chosen = [path for path in (*CONSOLE, *READERS) if not asked.only or path.partition("?")[0] in asked.only]
    if chosen:
        print(
            "| page | in that time | heap, MB: at first and at each quarter | nodes | listeners |\n|---|---|---|---|---|"
        )
        for one in browsed(asked.url, asked.hours, chosen):
            print(one.line(), flush=True)
    if not asked.only or "server" in asked.only:
        print("\n| sockets of `/` | the API's process (PSS), MB |\n|---|---|")
        with flowing(asked.url):
            print("\n".join(asyncio.run(served(asked.url, asked.minutes))), flush=True)


if __name__ == "__main__":
    main()

"""The load runs of R4.42 with k6: a realistic match day and the worst case, each with the caches prewarmed and not.

`python -m tests.load.run [--k6 PATH] [NAME…]` starts the whole product on parts of its own and plays the last matchday of the
bundled season in it: the clock stands in the middle of ten matches, their scores come in as they would. Each scenario begins with
cold caches; k6's summaries go to `tests/load/results`. The limit of live pages is shown on a second API that has it as shipped.
"""

import argparse
import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from highwater.api.cli.sample import SEASON, SEASON_FILE
from highwater.connectors.sources.openfootball import parse_season
from highwater.schemas.envelope import ms_from_iso
from tests.bench.http_peers import child, free_port
from tests.bench.league_stack import league_product, load_season
from tests.product import Product

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TOKEN = "a-token-of-this-run"
# Half an hour into the ten matches that end the season: all at once, as a table is never asked for more.
MOMENT = "2019-05-12T15:30:00Z"
KICKOFF = "2019-05-12T15:00:00Z"
# Each of ten matches says its minute once a minute: an update in six seconds, one in twelve of them a goal.
UPDATE_SECONDS, GOAL_EVERY = 6.0, 12
UPDATES = 20
# A scenario ends within 40 s; what is beyond is k6 itself.
SCENARIO_SECONDS_MAX = 90

SCENARIOS: Mapping[str, tuple[str, bool]] = {
    "realistic-cold": ("realistic.js", False),
    "realistic-prewarmed": ("realistic.js", True),
    "worst-case-cold": ("worst_case.js", False),
    "worst-case-prewarmed": ("worst_case.js", True),
}
LIMIT = "live-limit"


def main() -> int:
    """Run the requested scenarios; 1 when a threshold was crossed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", choices=[*SCENARIOS, LIMIT, []], metavar="NAME", help="; ".join([*SCENARIOS, LIMIT])
    )
    parser.add_argument("--k6", default=shutil.which("k6"), help="the program; else the one on the PATH")
    given = parser.parse_args()
    if given.k6 is None or not Path(given.k6).exists():
        print("k6 is not installed: tests/load/README.md says how it is built", file=sys.stderr)
        return 1
    RESULTS.mkdir(exist_ok=True)
    passed = True
    with _match_day() as product:
        for name in given.names or [*SCENARIOS, LIMIT]:
            is_good = _limit(given.k6, product) if name == LIMIT else _scenario(given.k6, product, name)
            print(_line(name, is_good), flush=True)
            passed = passed and is_good
    return 0 if passed else 1


@contextlib.contextmanager
def _match_day() -> Iterator[Product]:
    """The product in the middle of the last matchday."""
    settings = {
        "CACHE_PREWARM_TOKEN": TOKEN,
        "HIGHWATER_LIVE_REQUESTS_MAX": "1000000",
        "HIGHWATER_LOG_LEVEL": "warning",
    }
    with league_product(keep=("HIGHWATER_CLOCK_FILE",), before=_set_clock, **settings) as product:
        load_season(product, "--as-of", MOMENT)
        yield product


def _set_clock(product: Product) -> None:
    offset_ms = ms_from_iso(MOMENT) - time.time_ns() // 1_000_000
    product.clock_file.write_text(str(offset_ms / 1000), encoding="ascii")


def _scenario(k6: str, product: Product, name: str) -> bool:
    script, is_prewarmed = SCENARIOS[name]
    _forget(product)
    with _scores_coming_in(product, UPDATES * is_prewarmed) if script == "realistic.js" else contextlib.nullcontext():
        more = {"PREWARM": "1" if is_prewarmed else "0", "CACHE_PREWARM_TOKEN": TOKEN, "SEASON": SEASON}
        return _k6(k6, name, script, str(product.http.base_url), more)


def _forget(product: Product) -> None:
    """Cold: no document is made, Redis is empty, and the API remembers nothing."""
    product.sql("DELETE FROM documents")
    product.empty_redis()
    product.kill("api")
    product.until_ready()


@contextlib.contextmanager
def _scores_coming_in(product: Product, first: int) -> Iterator[None]:
    """Updates of the matches in play, as a reporter would send them, from the `first` until the end of the context.

    A scenario continues where the one before it could have ended: repeated updates would change nothing.
    """
    command = [str(Path(sys.executable).parent / "highwater"), "publish", "league.match-updated", "-"]
    process = subprocess.Popen(
        [*command, "--rate", str(1 / UPDATE_SECONDS)],
        env=product.environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        process.stdin.writelines(json.dumps(update) + "\n" for update in _updates(first))
        process.stdin.close()
        yield
    finally:
        process.terminate()
        process.wait(30)


def _updates(first: int) -> Iterator[dict[str, Any]]:
    season = parse_season(gzip.decompress(SEASON_FILE.read_bytes()), SEASON)
    playing = [f.scheduled["match_id"] for f in season.fixtures if f.scheduled["kickoff"] == ms_from_iso(KICKOFF)]
    goals = dict.fromkeys(playing, 0)
    for number in range(first + UPDATES):
        match_id = playing[number % len(playing)]
        goals[match_id] += number % GOAL_EVERY == 0
        if number >= first:
            told = {"home_goals": goals[match_id], "away_goals": 0, "minute": 31 + number // len(playing)}
            yield {"match_id": match_id, "season": SEASON, **told}


def _limit(k6: str, product: Product) -> bool:
    """A second API with the limit as shipped, asked from an address of its own, since the scenarios used up another's."""
    port = free_port()
    env = {**product.environment, "HIGHWATER_PORT": str(port)}
    del env["HIGHWATER_LIVE_REQUESTS_MAX"]
    program = str(Path(sys.executable).parent / "highwater")
    with child([program, "api"], product.data_dir / "second-api.log", env):
        url = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            ready: bool = product.http.get(f"{url}/readyz").is_success
            return ready

        product.until(is_ready, "the second API is not ready")
        return _k6(k6, LIMIT, "live_limit.js", url, {"SEASON": SEASON}, "--local-ips", "127.0.0.2")


def _k6(k6: str, name: str, script: str, url: str, environment: Mapping[str, str], *more: str) -> bool:
    """Whether every threshold held; k6's own summary goes beside it as text."""
    command = [
        *(k6, "run", "--quiet", "--no-color", "--no-usage-report", "--address", f"127.0.0.1:{free_port()}"),
        *("--summary-export", str(RESULTS / f"{name}.json"), *more, str(HERE / script)),
    ]
    env = {**os.environ, "BASE_URL": url.rstrip("/"), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SCENARIO_SECONDS_MAX, check=False)
    if done.returncode:
        print(done.stderr.strip()[-2000:], file=sys.stderr)
    return done.returncode == 0


def _line(name: str, is_good: bool) -> str:
    """What a reader wants first."""
    metrics = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["metrics"]
    said = [f"{name:<22} {'held' if is_good else 'CROSSED'}"]
    for metric, field, unit in (
        ("http_reqs", "rate", "requests/s"), ("http_req_duration", "p(95)", "ms p95"), ("http_req_duration", "p(99)", "ms p99"),
        ("show_ms", "p(95)", "ms to show p95"), ("unchanged", "value", "unchanged"), ("pending", "count", "told to come again"),
        ("unavailable", "count", "unavailable"), ("http_req_failed", "value", "failed"),
    ):  # fmt: skip
        if field in metrics.get(metric, {}):
            said.append(f"{metrics[metric][field]:.4g} {unit}")
    return ", ".join(said)


if __name__ == "__main__":
    sys.exit(main())

"""Load by wrk: one conditional request over and over, its rate, its latencies, and whether every answer was a 304.

In a mix every tenth request names no version and is answered with the page.

wrk is a closed loop: each connection asks again when it was answered, so its latencies are those of a server at its limit and
leave out what open arrivals would have waited. They compare systems under the same load and promise nobody a response time.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

THREADS, CONNECTIONS = 2, 64
WARM_SECONDS, MEASURED_SECONDS = 1, 3
# Of a mix: a client that polls has most versions.
PAGE_EVERY = 10
INSTALL = "the load is made by wrk, which is not installed: apt-get install wrk"

# Counting statuses calls Lua for each answer and would take wrk's time from the server's cores, so only the warm-up counts.
_SCRIPT = """
local page_every, sent = %(page_every)d, 0
if page_every > 0 then
  function request()
    sent = sent + 1
    return sent %% page_every == 0 and page or known
  end
end
local threads = {}
local counting = %(counting)s
function setup(thread) table.insert(threads, thread) end
function init(args)
  unchanged, pages, others = 0, 0, 0
  wrk.headers["If-None-Match"] = nil
  page = wrk.format()
  wrk.headers["If-None-Match"] = %(etag)s
  known = wrk.format()
end
if counting then
  function response(status)
    if status == 304 then unchanged = unchanged + 1
    elseif status == 200 and page_every > 0 then pages = pages + 1
    else others = others + 1 end
  end
end
function done(summary, latency)
  local same, other, sent_pages = 0, 0, 0
  for _, thread in ipairs(threads) do
    same, other = same + thread:get("unchanged"), other + thread:get("others")
    sent_pages = sent_pages + thread:get("pages")
  end
  local errors = summary.errors
  io.write(string.format(
    '\\nMEASURED {"requests":%%d,"us":%%d,"p50_us":%%d,"p99_us":%%d,"same":%%d,"pages":%%d,"other":%%d,"errors":%%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), same, sent_pages, other,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


class LoadFailedError(Exception):
    """The load did not measure what it is meant to."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a run measured; `answered` counts the warm-up's requests too."""

    answered: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float


def is_installed() -> bool:
    """Whether wrk is there; `INSTALL` says what to do otherwise."""
    return shutil.which("wrk") is not None


def measure(urls: Sequence[str], etag: str, folder: Path, *, is_mixed: bool = False, is_warm: bool = False) -> Load:
    """A warm-up that counts statuses, unless it `is_warm`, then the measured run; the urls share connections and threads.

    Raises:
        LoadFailedError: an answer was none of those asked for, or a request failed.
    """
    answered = 0
    if not is_warm:
        warm = _run(urls, etag, folder, WARM_SECONDS, is_mixed=is_mixed, is_counting=True)
        if warm["errors"] or warm["other"] or not warm["same"] or is_mixed != bool(warm["pages"]):
            raise LoadFailedError(f"{urls}: {warm}")
        answered = warm["requests"]
    found = _run(urls, etag, folder, MEASURED_SECONDS, is_mixed=is_mixed, is_counting=False)
    if found["errors"]:
        raise LoadFailedError(f"{urls}: {found['errors']} requests failed")
    return Load(
        answered + found["requests"],
        found["requests"] / (found["us"] / 1_000_000),
        found["p50_us"] / 1000,
        found["p99_us"] / 1000,
    )


def _run(
    urls: Sequence[str], etag: str, folder: Path, seconds: int, *, is_mixed: bool, is_counting: bool
) -> dict[str, int]:
    """The numbers of all urls, loaded side by side: requests and errors as sums, times as the longest."""
    script = folder / "conditional.lua"
    values = {"etag": json.dumps(etag), "counting": json.dumps(is_counting), "page_every": PAGE_EVERY * is_mixed}
    script.write_text(_SCRIPT % values, encoding="utf-8")
    shared = (f"-t{THREADS // len(urls)}", f"-c{CONNECTIONS // len(urls)}", f"-d{seconds}s")
    running = [
        subprocess.Popen(
            ["wrk", *shared, "-s", str(script), url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for url in urls
    ]
    told = [_told(process.communicate(timeout=seconds + 30)[0]) for process in running]
    of_times = ("us", "p50_us", "p99_us")
    return {name: (max if name in of_times else sum)(one[name] for one in told) for name in told[0]}


def _told(output: str) -> dict[str, int]:
    for line in output.splitlines():
        if line.startswith("MEASURED "):
            found: dict[str, int] = json.loads(line.removeprefix("MEASURED "))
            return found
    raise LoadFailedError(f"wrk measured nothing: {output.strip()[-500:]}")

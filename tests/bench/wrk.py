"""Load by wrk: one conditional request over and over, its rate, its latencies, and whether every answer was a 304.

wrk is a closed loop: each connection asks again when it was answered, so its latencies are those of a server at its limit and
leave out what open arrivals would have waited. They compare systems under the same load and promise nobody a response time.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

THREADS, CONNECTIONS = 2, 64
WARM_SECONDS, MEASURED_SECONDS = 1, 5
INSTALL = "the load is made by wrk, which is not installed: apt-get install wrk"
# The answers to two equal requests differ in length by the digits of an age, if by anything; a body is far longer.
LENGTH_SHARE_MAX = 0.1

# Counting statuses calls Lua for each answer and would take wrk's time from the server's cores, so only the warm-up counts.
_SCRIPT = """
wrk.headers["If-None-Match"] = %(etag)s
local threads = {}
local counting = %(counting)s
function setup(thread) table.insert(threads, thread) end
function init(args) unchanged, others = 0, 0 end
if counting then
  function response(status)
    if status == 304 then unchanged = unchanged + 1 else others = others + 1 end
  end
end
function done(summary, latency)
  local same, other = 0, 0
  for _, thread in ipairs(threads) do
    same, other = same + thread:get("unchanged"), other + thread:get("others")
  end
  local errors = summary.errors
  io.write(string.format(
    '\\nMEASURED {"requests":%%d,"us":%%d,"bytes":%%d,"p50_us":%%d,"p99_us":%%d,"same":%%d,"other":%%d,"errors":%%d}\\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99), same, other,
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


def measure(url: str, etag: str, folder: Path) -> Load:
    """A warm-up that counts statuses, then the measured run.

    Raises:
        LoadFailedError: an answer was no 304, or a request failed.
    """
    warm = _wrk(url, etag, folder, WARM_SECONDS, counting=True)
    if warm["errors"] or warm["other"] or not warm["same"]:
        raise LoadFailedError(f"{url}: {warm['other']} answers were no 304 and {warm['errors']} requests failed")
    found = _wrk(url, etag, folder, MEASURED_SECONDS, counting=False)
    expected, length = warm["bytes"] / warm["requests"], found["bytes"] / found["requests"]
    if found["errors"] or abs(length - expected) > LENGTH_SHARE_MAX * expected:
        raise LoadFailedError(
            f"{url}: {found['errors']} failed; an answer has {length:.0f} bytes, a 304 {expected:.0f}"
        )
    seconds = found["us"] / 1_000_000
    return Load(
        warm["requests"] + found["requests"],
        found["requests"] / seconds,
        found["p50_us"] / 1000,
        found["p99_us"] / 1000,
    )


def _wrk(url: str, etag: str, folder: Path, seconds: int, *, counting: bool) -> dict[str, int]:
    script = folder / "conditional.lua"
    script.write_text(_SCRIPT % {"etag": json.dumps(etag), "counting": json.dumps(counting)}, encoding="utf-8")
    command = ["wrk", f"-t{THREADS}", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("MEASURED "):
            found: dict[str, int] = json.loads(line.removeprefix("MEASURED "))
            return found
    raise LoadFailedError(f"wrk measured nothing: {(done.stderr or done.stdout).strip()[-500:]}")

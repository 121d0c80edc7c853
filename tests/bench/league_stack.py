"""The product with the bundled season, as `highwater up` runs it, for what is measured over HTTP."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2

from highwater.api.cli.sample import SEASON, SEASON_FILE
from highwater.deploy.local.stack import LocalStack
from tests.product import Product

TABLE = f"/api/league/{SEASON}/table"
# Starting, importing 760 events and making a page takes seconds; two busy cores have needed longer.
STORED_SECONDS_MAX = 60.0
# Settings of tests that a measurement leaves at what is shipped.
_TESTS_OWN = ("HIGHWATER_POLICY", "HIGHWATER_CLOCK_FILE", "HIGHWATER_TICK_SECONDS", "HIGHWATER_WINDOW_DAYS")


@contextlib.contextmanager
def league_product(
    *, keep: tuple[str, ...] = (), before: Callable[[Product], None] | None = None, **environment: str
) -> Iterator[Product]:
    """Everything running and ready, with nothing loaded yet.

    Args:
        keep: names of `_TESTS_OWN` that stay set.
        before: called before anything is started.
        environment: settings.
    """
    with (
        tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder,
        LocalStack(Path(folder) / "parts") as parts,
    ):
        product = Product(Path(folder) / "data", parts)
        for name in _TESTS_OWN:
            if name not in keep:
                del product.environment[name]
        product.environment.update(environment)
        if before is not None:
            before(product)
        with product:
            yield product


def load_season(product: Product, *more: str, season: str = SEASON) -> list[str]:
    """Import the bundled season; returns the positions of its events once the sinks have stored them."""
    told = product.cli("import", "openfootball", str(SEASON_FILE), "--season", season, "--json", *more)
    positions: list[str] = json.loads(told.stdout)["positions"]
    headers = {"X-Min-Position": ",".join(positions), "X-Max-Wait-Ms": "5000"}

    def stored() -> bool:
        answer = product.http.get(f"/api/league/{season}/table", headers=headers)
        return answer.status_code == httpx2.codes.OK

    product.until(stored, f"the table of {season} does not account for {positions}", STORED_SECONDS_MAX)
    return positions


def steady(product: Product, path: str = TABLE) -> httpx2.Response:
    """An answer of a page in the identity encoding, once it has been given twice with the same tag."""
    deadline = time.monotonic() + STORED_SECONDS_MAX
    seen = ""
    while time.monotonic() < deadline:
        answer = product.http.get(path, headers={"Accept-Encoding": "identity"})
        if answer.status_code == httpx2.codes.OK and answer.headers["etag"] == seen:
            return answer
        seen = answer.headers.get("etag", "")
        time.sleep(0.2)  # the pause between two looks
    raise AssertionError(f"{path} does not come to rest")

"""Seconds and memory of clustering a window: from nothing, with 1 % new, and by the `hdbscan` package, on real commit subjects.

Each measurement is a process of its own: it makes the vectors, then times one clustering call. With HW_DATA naming a
folder that holds commits.jsonl.gz those are read (the latest lines), else the bundled sample, repeated with small
deterministic differences. Beside the seconds stands how much each calls noise: the package is given the raw vectors, as it
would be without what this project does before. Past 10,000 only ours is run. `cluster-quality` compares the results.

    python -m tests.bench.cluster [--json] [--runs N]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tests import ROOT
from tests.bench.data import vectors
from tests.bench.figures import Figure, figure

SIZES = (2_000, 5_000, 10_000, 20_000)
PEER_SIZE_MAX = 10_000
SYSTEMS = ("highwater", "highwater, 1 % new", "hdbscan")
OURS = SYSTEMS[:2]


class Measurement(TypedDict):
    """What one process reports."""

    seconds: float
    peak_mb: float
    noise: float


def run(runs: int = 3) -> list[Figure]:
    """All figures; ours and the peer's runs alternate."""
    figures: list[Figure] = []
    for n in SIZES:
        systems = SYSTEMS if n <= PEER_SIZE_MAX else OURS
        measured: dict[str, list[Measurement]] = {system: [] for system in systems}
        for _ in range(runs):
            for system in systems:
                measured[system].append(_measure(system, n))
        for system, found in measured.items():
            figures.append(figure(f"cluster {n:,} x 384", system, "s", [one["seconds"] for one in found]))
            figures.append(figure(f"cluster {n:,} x 384, peak", system, "MB", [one["peak_mb"] for one in found]))
            figures.append(figure(f"cluster {n:,} x 384, noise", system, "%", [100 * one["noise"] for one in found]))
    return figures


def _measure(system: str, n: int) -> Measurement:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.cluster", "--measure", system, str(n)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    measurement: Measurement = json.loads(done.stdout)
    return measurement


def _measure_here(system: str, n: int) -> Measurement:
    new = n // 100
    embedded = latest_vectors(n + new)
    window = embedded[new:]
    if system == "hdbscan":
        import hdbscan

        started = time.perf_counter()
        labels = hdbscan.HDBSCAN(min_cluster_size=10, core_dist_n_jobs=1).fit_predict(window)
    else:
        from highwater.streams.feeds.clustering import cluster_embeddings

        known = cluster_embeddings(embedded[:n]).kept if system in OURS[1:] else None
        started = time.perf_counter()
        labels = cluster_embeddings(window, known=known).labels
    seconds = time.perf_counter() - started
    # Not getrusage: it would count the memory of the parent, from which this process was forked, as its own.
    peak_mb = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    return {"seconds": seconds, "peak_mb": peak_mb, "noise": float((labels == -1).mean())}


def latest_vectors(n: int) -> NDArray[np.float32]:
    """The latest n; where there are fewer, repeated with small differences."""
    latest = vectors()[-n:]
    repeated = latest[np.arange(n) % len(latest)]
    noise = np.random.default_rng(0).normal(scale=0.02, size=(n - len(latest), latest.shape[1]))
    repeated[len(latest) :] += noise.astype(np.float32)
    return repeated


def main() -> None:
    """Print the figures, as lines or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--measure", nargs=2, metavar=("SYSTEM", "N"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        system, n = chosen.measure
        print(json.dumps(_measure_here(system, int(n))))
        return
    figures = run(chosen.runs)
    if chosen.json:
        print(json.dumps(figures))
        return
    for one in figures:
        print(f"{one['name']:36} {one['system']:20} {one['value']:10.3f} {one['unit']:8} ({one['min']}-{one['max']})")


if __name__ == "__main__":
    main()

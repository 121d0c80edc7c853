"""Seconds and memory of exact HDBSCAN, ours against the `hdbscan` package, on real commit subjects.

Each measurement is a process of its own: it makes the vectors, then times one clustering call. With HW_DATA naming a
folder that holds commits.jsonl.gz those are read (the latest lines), else the bundled sample, repeated with small
deterministic differences. The labels of both are compared in the same run; past 10,000 only ours is run.

    python -m tests.bench.cluster [--json] [--runs N]
"""

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

SAMPLE = Path(__file__).parents[2] / "api" / "sample" / "commits.jsonl.gz"
SIZES = (2_000, 5_000, 10_000, 20_000)
PEER_SIZE_MAX = 10_000
SYSTEMS = ("highwater", "hdbscan")


class Figure(TypedDict):
    """One figure: the median, least and greatest of its runs."""

    name: str
    system: str
    value: float
    unit: str
    runs: int
    min: float
    max: float


class Measurement(TypedDict):
    """What one process reports."""

    seconds: float
    peak_mb: float


def run(runs: int = 3) -> list[Figure]:
    """All figures; ours and the peer's runs alternate."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for n in SIZES:
            systems = SYSTEMS if n <= PEER_SIZE_MAX else SYSTEMS[:1]
            measured: dict[str, list[Measurement]] = {system: [] for system in systems}
            for _ in range(runs):
                for system in systems:
                    measured[system].append(_measure(system, n, Path(folder)))
            for system, found in measured.items():
                figures.append(_figure(f"cluster {n:,} x 384", system, "s", [one["seconds"] for one in found]))
                figures.append(_figure(f"cluster {n:,} x 384, peak", system, "MB", [one["peak_mb"] for one in found]))
            if len(systems) > 1:
                figures += _agreement(n, Path(folder))
    return figures


def _measure(system: str, n: int, folder: Path) -> Measurement:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.cluster", "--measure", system, str(n), str(folder)],
        cwd=Path(__file__).parents[2],
        check=True,
        stdout=subprocess.PIPE,
    )
    measurement: Measurement = json.loads(done.stdout)
    return measurement


def _measure_here(system: str, n: int, folder: Path) -> Measurement:
    vectors = _vectors(n)
    if system == "hdbscan":
        import hdbscan

        started = time.perf_counter()
        labels = hdbscan.HDBSCAN(min_cluster_size=10, core_dist_n_jobs=1).fit_predict(vectors)
    else:
        from streams.feeds.clustering import cluster_embeddings

        started = time.perf_counter()
        labels = cluster_embeddings(vectors, min_cluster_size=10).labels
    seconds = time.perf_counter() - started
    np.save(_labels_file(folder, system, n), labels)
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def _vectors(n: int) -> NDArray[np.float32]:
    from streams.feeds.embedding import HashedTextEmbedder, unit_rows

    source = os.environ.get("HW_DATA")
    with gzip.open(Path(source) / "commits.jsonl.gz" if source else SAMPLE, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines][-n:]
    vectors = HashedTextEmbedder().embed(texts)
    if len(texts) == n:
        return vectors
    repeated = vectors[np.arange(n) % len(texts)]
    repeated[len(texts) :] += (
        np.random.default_rng(0).normal(scale=0.02, size=(n - len(texts), vectors.shape[1])).astype(np.float32)
    )
    return unit_rows(repeated)


def _labels_file(folder: Path, system: str, n: int) -> Path:
    return folder / f"{system}-{n}.npy"


def _agreement(n: int, folder: Path) -> list[Figure]:
    from sklearn.metrics import adjusted_rand_score

    ours, theirs = (np.load(_labels_file(folder, system, n)) for system in SYSTEMS)
    return [
        _figure(f"cluster {n:,}, ARI with hdbscan", "highwater", "ARI", [float(adjusted_rand_score(theirs, ours))]),
        _figure(f"cluster {n:,}, identical labels", "highwater", "1 = yes", [float(np.array_equal(theirs, ours))]),
    ]


def _figure(name: str, system: str, unit: str, values: list[float]) -> Figure:
    return {
        "name": name,
        "system": system,
        "value": round(statistics.median(values), 4),
        "unit": unit,
        "runs": len(values),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def main() -> None:
    """Print the figures, as lines or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--measure", nargs=3, metavar=("SYSTEM", "N", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        system, n, folder = chosen.measure
        print(json.dumps(_measure_here(system, int(n), Path(folder))))
        return
    figures = run(chosen.runs)
    if chosen.json:
        print(json.dumps(figures))
        return
    for one in figures:
        print(f"{one['name']:36} {one['system']:10} {one['value']:10.3f} {one['unit']:8} ({one['min']}-{one['max']})")


if __name__ == "__main__":
    main()

"""Chunks: rows ingested a second, and searches with their latency and recall, each beside its peers in the same run.

The parts run alone too, the first with more chunks and runs: `python -m tests.bench.chunks_ingest`, `python -m
tests.bench.chunks_search`. HW_CHUNKS=100000,1000000 sets the numbers of chunks of the second.
"""

import argparse
import json
from typing import Any

from tests.bench import chunks_ingest, chunks_search
from tests.bench.figures import Figure

# What takes 45 s; 100,000 take five times as long, and say the same of the ratio.
INGESTED = 20_000


def run(runs: int = 3) -> list[Figure]:
    """All figures; ingest is measured once."""
    return [*chunks_ingest.figures(1, INGESTED), *chunks_search.figures(runs)]


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    chosen: Any = parser.parse_args()
    for found in run(chosen.runs):
        print(json.dumps(found))


if __name__ == "__main__":
    main()

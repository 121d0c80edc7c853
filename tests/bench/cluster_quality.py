"""Quality, seconds and memory of the clusters, ours against BERTopic's pipeline and plain `hdbscan` on the same vectors.

Data sets: the five windows of `tests.bench.cluster_labels` as far as the data has them (a user's last 60 days of five channels,
the latest 10,000 insights, ...) and scikit-learn's digits as they are (1,797 x 64, with classes). With HW_DATA naming a folder
that holds commits.jsonl.gz those are read, else the bundled sample of 3,000. With `--vectors local` their vectors are those of
the installed model, else of the fitted basis. `tests.bench.quality` says how each figure is defined.

One seed is one throw: of 793 insights BERTopic finds 15 clusters with seed 42 and 2 or 3 with each of four others, so its
unseeded runs are measured too, and what is compared is their median.

Words are scored twice: a system's *own*, and *by one procedure for all* (class-based TF-IDF over its members), which
separates clustering from labelling. Each measurement is a process of its own, and systems take turns. Its first call is the
cold one, from the start of the interpreter on, imports and compilation (as far as the peer keeps none on disk) included; a
second call is the warm one. Both are scored, so `runs` of quality are twice those of time. A run takes five to ten minutes on
two cores, nearly all of it the peers'.

    python -m tests.bench.cluster_quality [--json] [--runs N] [--vectors fitted|local] [--set NAME]
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import ROOT
from tests.bench.data import insights, model_vectors, vectors
from tests.bench.figures import Figure, figure
from tests.bench.quality import (
    NOISE,
    agreement,
    class_words,
    evaluate,
    members_of,
    softly_assigned,
    tokens_of,
    word_coverage,
)
from tests.bench.topic_peers import INSTALL, Topics, bertopic_pipeline, is_umap_installed, plain_hdbscan

WINDOW = timedelta(days=60)
CHANNELS = 5
LATEST = 10_000
# As many words as a reader of a feed sees, and as every system gives.
WORDS_SEEN = 5
# Words that are scored, as many as BERTopic gives.
WORDS = 10
# The slowest peer needs one minute for both its calls on two cores; ten mean that something hangs.
MEASUREMENT_SECONDS_MAX = 600

# With fewer there is nothing to cluster.
SET_MIN = 100
DIGITS = "digits"
FITTED, LOCAL = "fitted", "local"

OURS = "highwater"
PEER, PEER_UNSEEDED = "bertopic-pipeline", "bertopic unseeded"
# A window with this share of new insights, chosen by this many seeds.
NEW_SHARE, KEPT_SEEDS = 0.05, 3


@dataclass(frozen=True, slots=True)
class DataSet:
    """Points to cluster: float32 (n, d), their n texts and their n true classes where there are any."""

    name: str
    vectors: NDArray[np.float32]
    texts: list[str] | None = None
    truth: NDArray[np.intp] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one process found in its two calls."""

    cold_seconds: float
    warm_seconds: float
    peak_mb: float
    found: tuple[Topics, Topics]


def ours(vectors: NDArray[np.float32], texts: Sequence[str] | None) -> Topics:
    """The product's clusters and keywords, as a rebuild makes them."""
    from highwater.streams.feeds.clustering import cluster_embeddings
    from highwater.streams.feeds.division import divide
    from highwater.streams.feeds.labels import describe_clusters

    found = cluster_embeddings(vectors)
    found = found if texts is None else divide(found, texts)
    soft = np.where(found.labels == NOISE, found.leanings, found.labels)
    if texts is None:
        return Topics(found.labels, found.memberships, soft=soft)
    ids = [str(row) for row in range(len(texts))]
    described = describe_clusters(found.labels, found.memberships, vectors, texts, ids, keywords_max=WORDS)
    # A keyword of several words stands for each of them, or no text would hold it as one.
    words = {
        int(found.labels[int(one.insight_ids[0])]): list(
            dict.fromkeys(token for keyword in one.keywords for token in tokens_of(keyword))
        )[:WORDS]
        for one in described
    }
    return Topics(found.labels, found.memberships, words, soft)


SYSTEMS: dict[str, Callable[[NDArray[np.float32], Sequence[str] | None], Topics]] = {
    OURS: ours,
    PEER: bertopic_pipeline,
    PEER_UNSEEDED: partial(bertopic_pipeline, seed=None),
    "hdbscan": plain_hdbscan,
}


def data_sets(basis: str = FITTED, names: Sequence[str] | None = None) -> list[DataSet]:
    """The windows that have at least `SET_MIN` insights, and the digits; vectors made. `names`: these only."""
    from sklearn.datasets import load_digits

    from tests.bench.cluster_labels import WINDOWS

    rows = insights()
    sets = []
    for name, chosen in WINDOWS.items():
        window = chosen(rows) if names is None or name in names else []
        if len(window) >= SET_MIN:
            texts = [rows[row]["text"] for row in window]
            own = vectors()[window] if basis == FITTED else model_vectors(texts)
            sets.append(DataSet(f"{name}, n={len(window):,}", own, texts))
    if names is None or DIGITS in names:
        digits = load_digits()
        values, truth = digits.data.astype(np.float32), digits.target.astype(np.intp)
        sets.append(DataSet(f"{DIGITS}, n={len(values):,}", values, truth=truth))
    return sets


def run(runs: int = 3, basis: str = FITTED, names: Sequence[str] | None = None) -> list[Figure]:
    """All figures; the systems' runs alternate.

    Raises:
        CommandFailedError: a peer is not installed.
    """
    if not is_umap_installed():
        from highwater.api.command.command import CommandFailedError

        raise CommandFailedError(INSTALL)
    figures: list[Figure] = []
    for data in data_sets(basis, names):
        measured: dict[str, list[Measurement]] = {system: [] for system in SYSTEMS}
        with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder:
            np.save(Path(folder) / "vectors.npy", data.vectors)
            (Path(folder) / "texts.json").write_text(json.dumps(data.texts))
            for _ in range(runs):
                for system, found in measured.items():
                    found.append(_measure(system, Path(folder)))
        for system, found in measured.items():
            figures += _figures(data, system, found)
        figures += _ratios(data, measured)
        figures += _kept(data)
    return figures


def kept(vectors: NDArray[np.float32], texts: Sequence[str], seed: int) -> tuple[float, float]:
    """With one in twenty insights of a window new, the shares that are kept: ids, and insights under their id; 0..1.

    `seed` chooses the new ones.
    """
    from highwater.streams.feeds.recluster import recluster
    from highwater.streams.feeds.versions import LastVersion, Window

    def window(version: int, rows: NDArray[np.intp], last: LastVersion | None = None) -> Window:
        chosen = rows.tolist()
        return Window(version, vectors[rows], tuple(texts[i] for i in chosen), tuple(f"{i:06}" for i in chosen), last)

    rows = np.arange(len(texts))
    former = np.sort(np.random.default_rng(seed).permutation(rows)[: round((1 - NEW_SHARE) * len(rows))])
    first = recluster(window(1, former))
    second = recluster(window(2, rows, LastVersion(first.clusters, first.outside, first.neighbours)))
    were, are = (
        {insight_id: one.cluster_id for one in made.clusters for insight_id in one.insight_ids}
        for made in (first, second)
    )
    ids = {one.cluster_id for one in first.clusters}
    stayed = sum(are.get(insight_id) == cluster_id for insight_id, cluster_id in were.items())
    return len(ids & set(are.values())) / max(1, len(ids)), stayed / max(1, len(were))


def _kept(data: DataSet) -> list[Figure]:
    """The figures of `kept` over some seeds; none for points without texts."""
    if data.texts is None:
        return []
    ids, insights_kept = zip(*(kept(data.vectors, data.texts, seed) for seed in range(KEPT_SEEDS)), strict=True)
    return [
        _figure(data, f"{name} kept, 5 % new", OURS, "%", [100 * share for share in shares])
        for name, shares in (("ids", ids), ("insights", insights_kept))
    ]


def table(figures: Sequence[Figure]) -> str:
    """The figures for a reader: a block for each data set, a line for each measure, a column for each system.

    A value is the median of its runs, beside it the least and the greatest where they differ.
    """
    blocks: dict[str, dict[str, dict[str, Figure]]] = defaultdict(lambda: defaultdict(dict))
    for one in figures:
        data, measure = one["name"].split(": ")
        blocks[data][f"{measure} [{one['unit']}]"][one["system"]] = one
    lines = []
    for data, measures in blocks.items():
        rows = [["", *SYSTEMS]]
        for measure, by_system in measures.items():
            rows.append([measure, *(_cell(by_system[one]) if one in by_system else "" for one in SYSTEMS)])
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines.append(data)
        for measure, *cells in rows:
            filled = (cell.rjust(width) for cell, width in zip(cells, others, strict=True))
            lines.append("  ".join([f"  {measure:{first}}", *filled]).rstrip())
        lines.append("")
    return "\n".join(lines)


def user_window(rows: Sequence[dict[str, str]]) -> list[int]:
    """The last 60 days of the five channels that are busiest in them; a tie goes by the channel's name."""
    moments = [datetime.fromisoformat(row["ts"]) for row in rows]
    start = max(moments) - WINDOW
    recent = [place for place, moment in enumerate(moments) if moment >= start]
    counts = Counter(rows[place]["channel_id"] for place in recent)
    channels = sorted(counts, key=lambda channel: (-counts[channel], channel))[:CHANNELS]
    return [place for place in recent if rows[place]["channel_id"] in channels]


def _measure(system: str, folder: Path) -> Measurement:
    started = str(time.monotonic())  # one clock for all processes of a machine
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.cluster_quality", "--measure", system, str(folder), started],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=MEASUREMENT_SECONDS_MAX,
    )
    told = json.loads(done.stdout)
    first, second = (_from_json(one) for one in told["found"])
    return Measurement(told["cold_seconds"], told["warm_seconds"], told["peak_mb"], (first, second))


def _measure_here(system: str, folder: Path, started: float) -> dict[str, Any]:
    vectors = np.load(folder / "vectors.npy")
    texts = json.loads((folder / "texts.json").read_text())
    cold = SYSTEMS[system](vectors, texts)
    cold_seconds = time.monotonic() - started
    peak_mb = _peak_mb()
    again = time.monotonic()
    warm = SYSTEMS[system](vectors, texts)
    warm_seconds = time.monotonic() - again
    return {
        "cold_seconds": cold_seconds,
        "warm_seconds": warm_seconds,
        "peak_mb": peak_mb,
        "found": [_to_json(cold), _to_json(warm)],
    }


def _peak_mb() -> float:
    """The most memory this program had. `getrusage` would count its parent's, from which it was forked, as its own."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def _to_json(topics: Topics) -> dict[str, Any]:
    return {
        "labels": topics.labels.tolist(),
        "probabilities": topics.probabilities.tolist(),
        "words": list(topics.words.items()),  # as pairs: JSON would make the labels strings
        "soft": None if topics.soft is None else topics.soft.tolist(),
    }


def _from_json(told: dict[str, Any]) -> Topics:
    return Topics(
        np.array(told["labels"], dtype=np.intp),
        np.array(told["probabilities"], dtype=np.float64),
        dict(told["words"]),
        None if told["soft"] is None else np.array(told["soft"], dtype=np.intp),
    )


def _figures(data: DataSet, system: str, measured: Sequence[Measurement]) -> list[Figure]:
    found = [topics for one in measured for topics in one.found]
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for topics in found:
        for measure, value in _scores(data, topics).items():
            scores[measure].append(value)
    same = all(np.array_equal(found[0].labels, one.labels) for one in found)
    return [
        *(_figure(data, measure, system, unit, values) for (measure, unit), values in scores.items()),
        _figure(data, "same labels in all runs", system, "1=yes", [float(same)]),
        _figure(data, "warm", system, "s", [one.warm_seconds for one in measured]),
        _figure(data, "cold", system, "s", [one.cold_seconds for one in measured]),
        _figure(data, "peak", system, "MB", [one.peak_mb for one in measured]),
    ]


def _scores(data: DataSet, topics: Topics) -> dict[tuple[str, str], float]:
    """The quality of one result by (measure, unit); a measure that does not apply is left out."""
    labels, probabilities = topics.labels, topics.probabilities
    members = members_of(labels, probabilities)
    # Digits have no words: their clusters are still counted.
    texts: Sequence[str | None] = data.texts or [None] * len(labels)
    own = evaluate(labels, probabilities, texts, topics.words)
    seen = evaluate(labels, probabilities, texts, topics.words, top=WORDS_SEEN)
    words = class_words(members, texts)
    shared = evaluate(labels, probabilities, texts, words)
    found = {
        ("clusters", "count"): own["clusters"],
        ("noise, membership < 0.3", "%"): 100 * own["noise"],
        ("largest cluster", "%"): 100
        * np.bincount(members[members != NOISE], minlength=1).max()
        / max(1, len(members)),
        ("coverage at 0.3", "%"): 100 * own["coverage_30"],
        ("coverage at 0.5", "%"): 100 * own["coverage_50"],
        ("coverage at 0.7", "%"): 100 * own["coverage_70"],
    }
    if data.texts is not None:
        found |= {
            ("own words, mean per topic", "words"): own["words"],
            ("own words, in no text", "%"): 100 * own["words_unknown"],
            ("own words, diversity", "0..1"): own["diversity"],
            (f"own first {WORDS_SEEN}, diversity", "0..1"): seen["diversity"],
            ("one procedure, diversity", "0..1"): shared["diversity"],
            ("one procedure, word coverage", "0..1"): word_coverage(members, texts, words),
            **_label_scores(members, data),
        }
    if data.truth is not None:
        found |= {
            ("ARI, noise a label", "ARI"): agreement(data.truth, members),
            ("ARI, noise to nearest centroid", "ARI"): agreement(data.truth, softly_assigned(data.vectors, members)),
        }
        if topics.soft is not None:
            found["ARI, own soft assignment", "ARI"] = agreement(data.truth, topics.soft)
    return {measure: value for measure, value in found.items() if not math.isnan(value)}


def _label_scores(members: NDArray[np.intp], data: DataSet) -> dict[tuple[str, str], float]:
    """What the product's labels say of any system's clusters: members that say the label, and clusters without a subject."""
    from highwater.streams.feeds.label_words import is_mixed
    from highwater.streams.feeds.labels import describe_clusters
    from tests.bench.cluster_labels import coverage

    assert data.texts is not None
    ids = [str(row) for row in range(len(data.texts))]
    described = describe_clusters(members, np.ones(len(members)), data.vectors, data.texts, ids)
    told = [one for one in described if not is_mixed(one.label)]
    shares = [coverage(one.label, [data.texts[int(row)] for row in one.insight_ids]) for one in told]
    return {
        ("one rule of labels, coverage", "0..1"): statistics.fmean(shares) if shares else math.nan,
        ("one rule of labels, mixed", "%"): 100 * (1 - len(told) / len(described)) if described else math.nan,
    }


def _ratios(data: DataSet, measured: dict[str, list[Measurement]]) -> list[Figure]:
    """How many times as long the faster of BERTopic's two takes."""
    cold = {system: statistics.median(one.cold_seconds for one in found) for system, found in measured.items()}
    warm = {system: statistics.median(one.warm_seconds for one in found) for system, found in measured.items()}
    return [
        _figure(data, f"{PEER}'s time over ours, {name}", OURS, "x", [min(s[PEER], s[PEER_UNSEEDED]) / s[OURS]])
        for name, s in (("warm", warm), ("cold", cold))
    ]


def _figure(data: DataSet, measure: str, system: str, unit: str, values: Sequence[float]) -> Figure:
    return figure(f"{data.name}: {measure}", system, unit, values)


def _cell(one: Figure) -> str:
    value, least, greatest = (f"{number:,.4g}" for number in (one["value"], one["min"], one["max"]))
    return value if least == greatest else f"{value} ({least}..{greatest})"


def main() -> None:
    """Print the figures, as tables or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--vectors", choices=(FITTED, LOCAL), default=FITTED, help="of the texts (fitted)")
    parser.add_argument("--set", action="append", help="this one only; may be repeated")
    parser.add_argument("--measure", nargs=3, metavar=("SYSTEM", "FOLDER", "STARTED"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        system, folder, started = chosen.measure
        print(json.dumps(_measure_here(system, Path(folder), float(started))))
        return
    if not is_umap_installed():
        sys.exit(INSTALL)
    figures = run(chosen.runs, chosen.vectors, chosen.set)
    print(json.dumps(figures) if chosen.json else table(figures))


if __name__ == "__main__":
    main()

"""How long a cluster stays the same cluster: ten consecutive weeks of real commits, one version a week.

A user's window of 60 days moves by a week at a time. Every version is matched with the one before by the product's own rule,
also those of BERTopic's pipeline (where umap-learn is installed), so that the clusterings are compared and not the matching.
Reported are the share of ids that continue from one week to the next, how similar a cluster is to its former state (Jaccard
index over the insights of both weeks, median), and on how many of the ten weeks the median id is alive. Labels: the share of
clusters that continue under the same label. Map: how far what stays moves, in parts of the map's diameter.

With HW_DATA naming a folder that holds commits.jsonl.gz those are read, else the bundled sample.

    python -m tests.bench.cluster_identity [--log]

`--log` prints what happened to every cluster in every week, with the labels before and after.
"""

import argparse
import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.evolution import match_clusters
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.tracking import TrackedCluster
from highwater.streams.feeds.versions import LastVersion, NewVersion, Window
from tests.bench.data import insights, vectors
from tests.bench.figures import Figure, figure
from tests.bench.topic_peers import bertopic_pipeline, is_umap_installed

WINDOW = timedelta(days=60)
WEEK = timedelta(days=7)
WEEKS = 10
CHANNELS = 5
# The map's circle has the radius 1.
DIAMETER = 2.0


@dataclass(frozen=True, slots=True)
class Week:
    """A window: `rows` of the data, in its order."""

    end: datetime
    rows: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Step:
    """From one version to the next: of `count` clusters before, how many live on, and how alike those are."""

    count: int
    likeness: list[float]
    alive: set[str]


def run(runs: int = 1) -> list[Figure]:
    """All figures; `runs` is not needed, for the same weeks give the same clusters."""
    lines = insights()
    weeks = list(weeks_of(lines))
    versions = list(ours(lines, vectors(), weeks))
    steps = [step(before.clusters, after.clusters) for before, after in itertools.pairwise(versions)]
    figures = _figures("highwater", steps)
    figures.append(figure("weeks, ids that live on with the same label", "highwater", "%", _same_label(versions)))
    figures.append(figure("weeks, median move of what stays", "highwater", "% of the map", _moves(versions)))
    if is_umap_installed():
        figures += _figures("bertopic-pipeline", list(_peer_steps(lines, vectors(), weeks)))
    return figures


def weeks_of(lines: Sequence[dict[str, str]]) -> Iterator[Week]:
    """Eleven windows of the five channels that are busiest in the last, a week apart: ten steps."""
    times = np.array([datetime.fromisoformat(line["ts"]).replace(tzinfo=None) for line in lines], dtype="datetime64[s]")
    channels = np.array([line["channel_id"] for line in lines])
    newest = times.max().astype(datetime)
    busiest = [name for name, _ in Counter(channels[times > np.datetime64(newest - WINDOW)]).most_common(CHANNELS)]
    of_user = np.isin(channels, busiest)
    for week in range(WEEKS, -1, -1):
        end = newest - week * WEEK
        inside = (times <= np.datetime64(end)) & (times > np.datetime64(end - WINDOW))
        yield Week(end, np.flatnonzero(of_user & inside))


def ours(lines: Sequence[dict[str, str]], embedded: NDArray[np.float32], weeks: Sequence[Week]) -> Iterator[NewVersion]:
    """The product's versions, each made after the one before."""
    last: LastVersion | None = None
    for number, week in enumerate(weeks, start=1):
        texts = tuple(lines[row]["text"] for row in week.rows)
        ids = tuple(lines[row]["insight_id"] for row in week.rows)
        made = recluster(Window(number, embedded[week.rows], texts, ids, last))
        last = LastVersion(made.clusters, made.outside, made.neighbours)
        yield made


def step(before: Sequence[TrackedCluster], after: Sequence[TrackedCluster]) -> Step:
    """Compare two versions whose clusters carry ids; only insights of both windows count."""
    were = {one.cluster_id: set(one.insight_ids) for one in before}
    are = {one.cluster_id: set(one.insight_ids) for one in after}
    alive = were.keys() & are.keys()
    return Step(len(were), [len(were[one] & are[one]) / len(were[one] | are[one]) for one in sorted(alive)], alive)


def _peer_steps(
    lines: Sequence[dict[str, str]], embedded: NDArray[np.float32], weeks: Sequence[Week]
) -> Iterator[Step]:
    before: tuple[TrackedCluster, ...] = ()
    before_ids: list[str] = []
    for number, week in enumerate(weeks, start=1):
        labels = bertopic_pipeline(embedded[week.rows], None).labels
        ids = [lines[row]["insight_id"] for row in week.rows]
        groups = [[ids[i] for i in np.flatnonzero(labels == label)] for label in range(int(labels.max()) + 1)]
        after = match_clusters(before, before_ids, groups, ids, number).clusters
        if before_ids:
            yield step(before, after)
        before, before_ids = after, ids


def _figures(system: str, steps: Sequence[Step]) -> list[Figure]:
    lives = Counter(one for step_ in steps for one in step_.alive)
    return [
        figure("weeks, clusters", system, "", [float(one.count) for one in steps]),
        figure(
            "weeks, ids that live on", system, "%", [100 * len(one.alive) / one.count for one in steps if one.count]
        ),
        figure("weeks, likeness of those", system, "Jaccard", [x for one in steps for x in one.likeness]),
        figure("weeks lived on by an id", system, "weeks", [float(count) for count in lives.values()]),
    ]


def _same_label(versions: Sequence[NewVersion]) -> list[float]:
    shares = []
    for before, after in itertools.pairwise(versions):
        labels = {one.cluster_id: one.label for one in before.clusters}
        alive = [one for one in after.clusters if one.cluster_id in labels]
        if alive:
            shares.append(100 * sum(labels[one.cluster_id] == one.label for one in alive) / len(alive))
    return shares


def _moves(versions: Sequence[NewVersion]) -> list[float]:
    medians = []
    for before, after in itertools.pairwise(versions):
        were, are = (
            {
                (one.cluster_id, insight_id): place
                for one in version.clusters
                for insight_id, place in zip(one.insight_ids, one.positions, strict=True)
            }
            for version in (before, after)
        )
        both = sorted(were.keys() & are.keys())
        moves = [float(np.hypot(*np.subtract(were[key], are[key]))) / DIAMETER for key in both]
        medians.append(100 * statistics.median(moves))
    return medians


def log() -> Iterator[str]:
    """What happened to every cluster in every week, a line each."""
    lines = insights()
    weeks = list(weeks_of(lines))
    labels: dict[str, str] = {}
    versions = ours(lines, vectors(), weeks)
    for number, (week, made) in enumerate(zip(weeks, versions, strict=True), start=1):
        yield f"version {number}: {week.end:%Y-%m-%d}, {len(week.rows)} insights, {len(made.clusters)} clusters"
        now = {one.cluster_id: one.label for one in made.clusters}
        for one in made.changes:
            was, to = labels.get(one.cluster_id), now.get(one.cluster_id)
            related = ", ".join(f"{other} {(now | labels).get(other, '?')!r}" for other in one.related)
            yield (
                f"  {one.kind.value:7} {one.cluster_id} {was or to!r}{f' -> {to!r}' if was and to and was != to else ''}: "
                f"{one.previous_size} -> {one.size}, +{one.joined} ({one.arrived} arrived), -{one.left} ({one.expired} expired), "
                f"likeness {one.jaccard:.2f}{f'; {related}' if related else ''}"
            )
        labels |= now


def main() -> None:
    """Print the figures or the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", action="store_true", help="what happened to every cluster")
    if parser.parse_args().log:
        for line in log():
            print(line)
        return
    for one in run():
        print(f"{one['name']:45} {one['system']:18} {one['value']:10.3f} {one['unit']:14} ({one['min']}-{one['max']})")


if __name__ == "__main__":
    main()

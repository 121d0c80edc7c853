"""Labels to be read and judged: five windows of real insights, each cluster's label and theme with members and coverage.

A reader decides whether a label misleads; this prints what that takes, and what a program can say of it: the *coverage*
of a label, the share of members that say it. `docs/benchmarks/labels.md` keeps verdicts.

    HW_DATA=/folder/of/commits python -m tests.bench.cluster_labels [--top 20] [--texts 8] [--window NAME]
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from highwater.streams.feeds.clustering import cluster_embeddings
from highwater.streams.feeds.division import divide
from highwater.streams.feeds.label_words import without_examples, words_of_mixed
from highwater.streams.feeds.labels import ClusterDescription, describe_clusters
from highwater.streams.feeds.tokens import STOP_WORDS, clean, root_of, spelled_words_of, stem_of
from tests.bench import cluster_quality
from tests.bench.data import insights, vectors

# Members shown are evenly spread over a cluster in the order of its membership, so that its edge is seen too.
TEXTS_SHOWN = 8
CLUSTERS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Labelled:
    """A window's clusters as they are described, with all its texts by id and the CPU seconds that describing took."""

    clusters: Sequence[ClusterDescription]
    texts: Mapping[str, str]
    seconds: float


def _of_year(year: str, channels: Sequence[str]) -> Callable[[Sequence[dict[str, str]]], list[int]]:
    return lambda rows: [
        place for place, row in enumerate(rows) if row["channel_id"] in channels and row["ts"].startswith(year)
    ]


# A user's window, the largest that the bench clusters, one small project alone, and two users of other years.
WINDOWS: Mapping[str, Callable[[Sequence[dict[str, str]]], list[int]]] = {
    "user, 60 days": cluster_quality.user_window,
    "latest 10,000": lambda rows: list(range(len(rows)))[-cluster_quality.LATEST :],
    "arroyo, all": lambda rows: [place for place, row in enumerate(rows) if row["channel_id"] == "getsentry/arroyo"],
    "web in 2023": _of_year("2023", ("encode/httpx", "encode/starlette", "hynek/structlog", "simonw/datasette")),
    "kafka in 2021": _of_year("2021", ("apache/kafka", "Aiven-Open/karapace", "tchiotludo/akhq", "aio-libs/aiokafka")),
}


def labelled(name: str) -> Labelled:
    """The clusters of one of `WINDOWS`, described as a rebuild does without a version before."""
    rows = WINDOWS[name](insights())
    texts, ids = [insights()[row]["text"] for row in rows], [insights()[row]["insight_id"] for row in rows]
    own = vectors()[rows]
    found = divide(cluster_embeddings(own), texts)
    started = time.process_time()
    described = describe_clusters(found.labels, found.memberships, own, texts, ids)
    return Labelled(described, dict(zip(ids, texts, strict=True)), time.process_time() - started)


def coverage(label: str, texts: Sequence[str]) -> float:
    """The share of texts that say a label, 0..1: all of its words, of a mixed one any; examples are not counted.

    Words count by their roots. 1 for a label without words.
    """
    head, _ = without_examples(label)
    words = words_of_mixed(head)
    said = roots(words or head)
    held = [roots(text) for text in texts]
    return sum(not said.isdisjoint(own) if words else said <= own for own in held) / len(texts) if said else 1.0


def roots(text: str) -> frozenset[str]:
    """The roots of a text's words but function words."""
    cleaned = clean(text)
    words = (cleaned[first:last].lower() for first, last in spelled_words_of(cleaned))
    return frozenset(root_of(stem_of(word)) for word in words if word not in STOP_WORDS and len(word) > 1)


def shown(one: ClusterDescription, texts: Mapping[str, str], count: int) -> str:
    """A cluster for a reader: size, coverage, label, keywords, `count` members."""
    own = [texts[insight_id] for insight_id in one.insight_ids]
    places = np.unique(np.linspace(0, len(own) - 1, count).round().astype(int)).tolist()
    head = f"{one.size:5}  {coverage(one.label, own):4.0%}  {one.label}\n             [{', '.join(one.keywords)}]"
    return "\n".join([head, *(f"             - {own[place][:110]}" for place in places)])


def main() -> None:
    """Print the labels of the windows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=CLUSTERS_SHOWN, help="clusters of each window, the largest (20)")
    parser.add_argument("--texts", type=int, default=TEXTS_SHOWN, help="members shown of each (8)")
    parser.add_argument("--window", choices=WINDOWS, action="append", help="this one only; may be repeated")
    chosen = parser.parse_args()
    for name in chosen.window or WINDOWS:
        found = labelled(name)
        print(f"== {name}: {len(found.clusters)} clusters, described in {found.seconds:.2f} s of CPU")
        for one in found.clusters[: chosen.top]:
            print(shown(one, found.texts, chosen.texts))
        for theme in dict.fromkeys(one.theme for one in found.clusters):
            own = [one for one in found.clusters if one.theme == theme]
            texts = [found.texts[insight_id] for one in own for insight_id in one.insight_ids]
            print(
                f"theme {len(texts):5}  {coverage(theme, texts):4.0%}  {theme} = {' | '.join(one.label for one in own)}"
            )


if __name__ == "__main__":
    main()

"""The peers of `bench cluster-quality`: other systems that find topics, from the same vectors. Invariant: each is the
pipeline of its paper and documentation with its documented defaults, with the same input as ours.

BERTopic (Grootendorst 2022) is UMAP to five dimensions, HDBSCAN, class-based TF-IDF. Its defaults are UMAP's n_neighbors=15,
n_components=5, min_dist=0.0, metric=cosine, and HDBSCAN's min_cluster_size=10, euclidean, eom. It has no seed by default and
so gives other topics in each run; its documentation's way to repeatable ones is `random_state=42`, for which UMAP runs on one
core (10,000 commit subjects still gave different results). The bench runs both and compares time with the faster.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.bench.quality import class_words

SEED = 42
MIN_CLUSTER_SIZE = 10
INSTALL = "BERTopic's pipeline needs umap-learn: pip install 'highwater[bench]'"


@dataclass(frozen=True, slots=True)
class Topics:
    """What a system makes of n points.

    `labels` int (n,) with -1 for noise; `probabilities` float64 (n,) in 0..1; `words` by label, best first; `soft` int (n,),
    the labels with noise in the cluster that the system itself leans it to, None for a system that does not.
    """

    labels: NDArray[np.intp]
    probabilities: NDArray[np.float64]
    words: Mapping[int, Sequence[str]] = field(default_factory=dict)
    soft: NDArray[np.intp] | None = None


def is_umap_installed() -> bool:
    """Whether BERTopic's pipeline can run; `INSTALL` says what to do otherwise."""
    return importlib.util.find_spec("umap") is not None


def bertopic_pipeline(vectors: NDArray[np.float32], texts: Sequence[str] | None, *, seed: int | None = SEED) -> Topics:
    """UMAP, HDBSCAN, class-based TF-IDF. `vectors` float32 (n, d), `texts` n or None for points that have none."""
    import umap

    reduced = umap.UMAP(
        n_neighbors=15,
        n_components=5,
        min_dist=0.0,
        metric="cosine",
        random_state=seed,
        n_jobs=-1 if seed is None else 1,  # a seed takes one core anyway; said here, UMAP need not warn of it
    ).fit_transform(vectors)
    return _hdbscan(reduced, texts)


def plain_hdbscan(vectors: NDArray[np.float32], texts: Sequence[str] | None) -> Topics:
    """HDBSCAN on the vectors as they are, class-based TF-IDF."""
    return _hdbscan(vectors, texts)


def _hdbscan(points: NDArray[np.float32], texts: Sequence[str] | None) -> Topics:
    import hdbscan

    found = hdbscan.HDBSCAN(
        min_cluster_size=MIN_CLUSTER_SIZE,
        metric="euclidean",
        cluster_selection_method="eom",
        core_dist_n_jobs=1,  # helpers' memory would escape the measurement; four of them take as long within a tenth
    ).fit(points)
    labels = np.asarray(found.labels_, dtype=np.intp)
    words = {} if texts is None else class_words(labels, texts)
    return Topics(labels, np.asarray(found.probabilities_, dtype=np.float64), words)

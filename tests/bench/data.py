"""What the benchmarks read: real commit subjects as insights, oldest first, and the product's vectors of them."""

import gzip
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests import ROOT

SAMPLE = ROOT / "api" / "sample" / "commits.jsonl.gz"


@cache
def insights() -> tuple[dict[str, str], ...]:
    """Lines with `insight_id`, `channel_id`, `ts` and `text`.

    With HW_DATA naming a folder that holds commits.jsonl.gz those of it, else of the bundled sample (3,000).
    """
    folder = os.environ.get("HW_DATA")
    with gzip.open(Path(folder) / "commits.jsonl.gz" if folder else SAMPLE, "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)


@cache
def vectors() -> NDArray[np.float32]:
    """A vector for each of `insights()`, float32 (n, 384), in the basis that the product fits to all of them."""
    from highwater.streams.feeds.basis import fit_basis
    from highwater.streams.feeds.embedding import TextEmbedder

    # The ids are hashes: their order has nothing to do with what the texts say.
    basis = fit_basis(line["text"] for line in sorted(insights(), key=lambda line: line["insight_id"]))
    assert basis is not None
    return TextEmbedder(basis).embed([line["text"] for line in insights()])


def model_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of these texts by the local model that `highwater up` installs, float32 (n, 384); 260 a CPU second."""
    from highwater.connectors.models.local_model import LocalEmbedder
    from highwater.streams.settings import read_settings

    return LocalEmbedder(read_settings({}).model_dir).embed_now(texts)

"""The bundled sample of real commit subjects, and its vectors: what the tests of this folder read."""

import gzip
import json
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.embedding import TextEmbedder
from tests import ROOT

SAMPLE = ROOT / "api" / "sample" / "commits.jsonl.gz"


@cache
def insights() -> tuple[dict[str, Any], ...]:
    """All lines of the sample, oldest first."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)


@cache
def texts() -> tuple[str, ...]:
    """Their texts."""
    return tuple(insight["text"] for insight in insights())


@cache
def vectors() -> NDArray[np.float32]:
    """Their vectors by the built-in embedder, float32 (3000, 384)."""
    return TextEmbedder().embed(texts())

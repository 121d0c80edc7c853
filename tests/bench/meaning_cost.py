"""What vectors cost: CPU seconds for 1,000 texts, built in and of the local model, and the memory of each process of a stack.

Texts are the first 1,000 commit subjects of the bundled sample, and 1,000 chunks of the documentation in `docs/` as the product
cuts it, repeated from its beginning where there are fewer. The built-in embedder meets their words for the first time; the
model is loaded. A stack is `highwater up` with its sample, once by each embedder, measured when nothing waits for a vector any
more and the first version is built, and again when the model and the process of rebuilds have been given back.

    python -m tests.bench.meaning_cost [--runs N] [--texts-only]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import httpx2

from highwater.connectors.documents.formats import text_blocks
from highwater.connectors.models.local_model import LocalEmbedder, release_idle
from highwater.streams.documents.chunking import cut
from highwater.streams.feeds.basis import fit_basis
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.models.tokens import count_tokens
from highwater.streams.settings import read_settings
from tests import ROOT
from tests.bench.data import insights
from tests.bench.figures import Figure, figure
from tests.bench.idle import used_by
from tests.bench.installed import Installed, installed

TEXTS = 1_000
AT_REST_SECONDS = 90.0
COST, MEMORY = "CPU seconds per 1,000 texts", "memory (PSS)"


def subjects() -> list[str]:
    """Commit subjects."""
    return [line["text"] for line in insights()[:TEXTS]]


def chunks() -> list[str]:
    """Chunks of documentation."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found = [
        chunk.content
        for page in pages
        for chunk in cut(text_blocks(page.read_text(encoding="utf-8"), "text/markdown"), count_tokens)
    ]
    return list(islice(cycle(found), TEXTS))


def texts_cost(runs: int) -> list[Figure]:
    """CPU seconds of each embedder for each kind of text."""
    basis = fit_basis(line["text"] for line in sorted(insights(), key=lambda line: line["insight_id"]))
    assert basis is not None
    local = LocalEmbedder(read_settings({}).model_dir)
    local.embed_now(["a text, so that the model is loaded"])
    embedders: dict[str, Callable[[Sequence[str]], Any]] = {
        "builtin, hashed": lambda texts: TextEmbedder().embed(texts),
        "builtin, fitted": lambda texts: TextEmbedder(basis).embed(texts),
        "local": local.embed_now,
    }
    figures = []
    for kind, texts in (("commit subjects", subjects()), ("chunks", chunks())):
        letters = sum(map(len, texts)) / len(texts)
        for system, embed in embedders.items():
            spent = [_cpu_seconds(embed, texts) for _ in range(runs)]
            figures.append(figure(f"{COST}: {kind} of {letters:.0f} letters", system, "CPU s", spent))
    release_idle(0.0)
    return figures


def _cpu_seconds(embed: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> float:
    began = time.process_time()
    embed(texts)
    return time.process_time() - began


def stack_cost(embedder: str) -> list[Figure]:
    """Memory and processor time of each process of a stack after its sample, and at rest."""
    with installed(HIGHWATER_EMBEDDER=embedder) as stack:
        _all_embedded(stack)
        then = used_by(stack.processes())
        time.sleep(AT_REST_SECONDS)
        later = used_by(stack.processes())
    figures = []
    for name, one in then.items():
        system = f"{embedder}: {name}"
        figures.append(figure(f"{MEMORY}, after the sample", system, "MB", [one.pss_mb]))
        figures.append(figure(f"{MEMORY}, at rest", system, "MB", [later[name].pss_mb]))
        figures.append(figure("processor, until the sample was embedded", system, "CPU s", [one.cpu_seconds]))
    return figures


def _all_embedded(stack: Installed) -> None:
    """Wait until nothing waits for a vector and the first version of the sample's reader is built."""
    while True:
        checks = json.loads(stack.run("doctor", "--json", check=False).stdout)
        (told,) = (one["detail"] for one in checks if one["name"] == "embedder")
        built = httpx2.get(f"{stack.state()['api']}/api/users/ada/clusters").json()["cluster_version"]
        if built and "; 0 insights and 0 chunks" in told:
            return
        time.sleep(2)


def run(runs: int = 3) -> list[Figure]:
    """All figures."""
    return [*texts_cost(runs), *stack_cost("builtin"), *stack_cost("local")]


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--texts-only", action="store_true")
    chosen: Any = parser.parse_args()
    for found in texts_cost(chosen.runs) if chosen.texts_only else run(chosen.runs):
        print(json.dumps(found))


if __name__ == "__main__":
    main()

"""The peer of `bench rebuild`: what an analyst would write to see the topics of the same rows, from SELECT to a stored answer.

The newest rows of the channel, their vectors by PCA to 50 numbers (HDBSCAN of 384 takes minutes and calls nearly all noise), the
`hdbscan` package, class-based TF-IDF with scikit-learn's vectorizer for six words a cluster, PCA to 2 for the map, one JSON
document back into a table. It keeps nothing from one time to the next, has no identity of clusters, no phrases and no summaries.
Libraries are loaded and used once before the clock starts.

    python -m tests.bench.rebuild_peer DATABASE_URL CHANNEL HEAD ROWS TIMES
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any

import asyncpg
import hdbscan
import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

CLUSTER_SIZE_MIN = 10
WORDS_MAX = 6
COORDINATES = 50
SELECT = """
SELECT insight_id, text, embedding FROM insights WHERE channel_id = $1 AND seq <= $2 ORDER BY ts DESC, insight_id LIMIT $3
"""
MAKE = "CREATE TABLE IF NOT EXISTS analysed (id bigint GENERATED ALWAYS AS IDENTITY, answer jsonb NOT NULL)"


def analysed(ids: list[str], texts: list[str], vectors: NDArray[np.float32]) -> list[dict[str, Any]]:
    """Clusters with their words, members and places."""
    reduced = PCA(min(COORDINATES, *vectors.shape), random_state=0).fit_transform(vectors)
    found = hdbscan.HDBSCAN(min_cluster_size=CLUSTER_SIZE_MIN).fit(reduced)
    numbers = sorted({int(label) for label in found.labels_} - {-1})
    documents = [" ".join(texts[row] for row in np.flatnonzero(found.labels_ == number)) for number in numbers]
    if not documents:
        return []
    counting = CountVectorizer(stop_words="english", ngram_range=(1, 2))
    weighed = TfidfTransformer().fit_transform(counting.fit_transform(documents)).tocsr()
    names = counting.get_feature_names_out()
    places = np.round(reduced[:, :2], 4)
    answer = []
    for place, number in enumerate(numbers):
        rows = np.flatnonzero(found.labels_ == number)
        row = weighed[place]
        words = [str(names[term]) for term in row.indices[np.argsort(-row.data)[:WORDS_MAX]]]
        answer.append(
            {
                "label": ", ".join(words[:3]),
                "keywords": words,
                "insight_ids": [ids[row] for row in rows],
                "confidences": np.round(found.probabilities_[rows], 3).tolist(),
                "positions": places[rows].tolist(),
            }
        )
    return answer


async def once(connection: Any, channel: str, head: int, rows: int) -> None:
    """Read, analyse, store."""
    found = await connection.fetch(SELECT, channel, head, rows)
    vectors = np.frombuffer(b"".join(row["embedding"] for row in found), dtype="<f4").reshape(len(found), -1)
    answer = analysed([row["insight_id"] for row in found], [row["text"] or "" for row in found], vectors)
    await connection.execute("INSERT INTO analysed (answer) VALUES ($1)", json.dumps(answer))


async def _main(url: str, channel: str, head: int, rows: int, times: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(MAKE)
    await once(connection, channel, head, 100)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    for _ in range(times):
        await once(connection, channel, head, rows)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    await connection.close()
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds / times, "cpu_seconds": cpu_seconds / times}))


if __name__ == "__main__":
    address, channel_id, *given = sys.argv[1:]
    asyncio.run(_main(address, channel_id, *map(int, given)))

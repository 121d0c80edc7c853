"""Questions are embedded for the vectors that a namespace has, also by the former version of an embedder."""

from __future__ import annotations

import pytest

from highwater.connectors.models.embeddings import BuiltInEmbedder
from highwater.connectors.models.local_model import MINILM, LocalEmbedder
from highwater.connectors.models.opening import open_question_embedders
from highwater.streams.feeds.basis import MARKED, UNFITTED, UNFITTED_ID
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.settings import read_settings

SERVICE = {"EMBEDDINGS_BASE_URL": "http://127.0.0.1:9", "EMBEDDINGS_MODEL": "m", "HIGHWATER_EMBEDDING_DIMENSIONS": "2"}


@pytest.mark.parametrize(
    ("environment", "before"),
    [({"HIGHWATER_EMBEDDER": "builtin"}, []), ({"HIGHWATER_EMBEDDER": "service", **SERVICE}, ["m@2"])],
)
def test_each_embedder_is_followed_by_its_former_versions(environment: dict[str, str], before: list[str]):
    """The built-in one by that of words without their marks, the last; a service has none."""
    opened = open_question_embedders(read_settings(environment))
    assert [one.basis_id for one in opened] == [*before, MARKED.basis_id, UNFITTED_ID]


async def test_the_former_built_in_version_makes_its_vectors():
    """This includes a Hindi word, which the version of this release reads as a whole; there is no version before it."""
    latest = BuiltInEmbedder()
    (former,) = latest.former()
    assert isinstance(former, BuiltInEmbedder)
    text = "\u0915\u093f\u0924\u093e\u092c"
    assert await former.embed([text]) == [TextEmbedder(UNFITTED).embed([text]).astype("<f4").tobytes()]
    assert await former.embed([text]) != await latest.embed([text])
    assert former.former() == []


def test_the_former_local_model_is_its_last_version(tmp_path):
    """It is of the same files; nothing is loaded for its name."""
    latest = LocalEmbedder(tmp_path)
    (former,) = latest.former()
    assert isinstance(former, LocalEmbedder)
    assert (latest.basis_id, former.basis_id, former.former()) == (MINILM.basis_id, MINILM.former_basis_id, [])

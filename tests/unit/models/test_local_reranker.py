"""The cross-encoder on this machine, run by onnxruntime: here one that is written down in this file."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from highwater.connectors.models import local_reranker
from highwater.connectors.models.local_reranker import CrossEncoder, LocalReranker, open_local_reranker
from highwater.connectors.models.opening import open_reranker
from highwater.connectors.models.reranker import RerankError, probability
from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.wordpiece import read_vocabulary
from highwater.streams.settings import read_settings

# The lower the number of a token, the better the text is.
NUMBERS = {"good": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "bad": 9, "what": 8}
VOCABULARY = orjson.dumps(
    {
        "model": {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": NUMBERS},
        "normalizer": {"lowercase": True},
    }
)
INT64, FLOAT, INT, INTS = 7, 1, 2, 7


def field(number: int, value: int | str | bytes) -> bytes:
    """A field of a protobuf message; numbers stay below 128."""
    if isinstance(value, int):
        return (
            bytes([number << 3 & 127 | (128 if number > 15 else 0)]) + (b"\1" if number > 15 else b"") + bytes([value])
        )
    content = value.encode() if isinstance(value, str) else value
    length, written = len(content), b""
    while length > 127:
        written += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + written + bytes([length]) + content


def node(kind: str, given: tuple[str, ...], made: str, attribute: bytes = b"") -> bytes:
    """One operation of a graph."""
    return field(1, b"".join(field(1, one) for one in given) + field(2, made) + field(4, kind) + attribute)


def tensor(name: str, kind: int) -> bytes:
    """A matrix that goes into a graph or comes out of it."""
    shape = b"".join(field(1, field(2, dimension)) for dimension in (f"{name}_rows", f"{name}_columns"))
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def onnx_model() -> bytes:
    """`logits = -sum(input_ids * token_type_ids)`: minus the numbers of the second text's tokens."""
    nodes = (
        node("Mul", ("input_ids", "token_type_ids"), "second"),
        node("Cast", ("second",), "numbers", field(5, field(1, "to") + field(3, FLOAT) + field(20, INT))),
        node("ReduceSum", ("numbers",), "sum", field(5, field(1, "axes") + field(8, 1) + field(20, INTS))),
        node("Neg", ("sum",), "logits"),
    )
    inputs = (field(11, tensor(one, INT64)) for one in ("input_ids", "attention_mask", "token_type_ids"))
    graph = b"".join(nodes) + field(2, "g") + b"".join(inputs) + field(12, tensor("logits", FLOAT))
    return field(1, 7) + field(7, graph) + field(8, field(2, 11))


@pytest.fixture
def model(tmp_path: Path) -> CrossEncoder:
    """The files of a model in a folder."""
    (tmp_path / "model.onnx").write_bytes(onnx_model())
    (tmp_path / "tokenizer.json").write_bytes(VOCABULARY)
    hashes = (hashlib.sha256(content).hexdigest() for content in (onnx_model(), VOCABULARY))
    return CrossEncoder("small", ".", *hashes)


async def test_a_question_is_read_together_with_each_text(tmp_path: Path, model: CrossEncoder):
    """Scores are probabilities, in the order of the texts; what the model does not read scores 0."""
    reranker = LocalReranker(tmp_path, model)
    texts = ["bad", "good", "bad good", "不好"]
    end, bad = NUMBERS["[SEP]"], NUMBERS["bad"]
    expected = [probability(-end - bad), probability(-end), probability(-end - bad), 0.0]
    assert await reranker.scores("what good", texts) == pytest.approx(expected)
    assert await reranker.scores("不好", texts) == [0.0] * 4
    await reranker.close()


def test_a_pair_is_cut_in_its_text():
    """The question and all marks stay; each token says which of both it is of."""
    pieces = read_vocabulary(VOCABULARY)
    assert pieces.pair([8], [9, 9, 0], tokens_max=5) == ([2, 8, 3, 9, 3], [0, 0, 0, 1, 1])
    assert pieces.pair([8], [], tokens_max=2) == ([2, 8, 3, 3], [0, 0, 0, 1])


async def test_what_takes_too_long_has_no_scores(tmp_path: Path, model: CrossEncoder, monkeypatch: pytest.MonkeyPatch):
    """The caller does not wait, and the thread ends after its current pair."""
    read: list[str] = []
    is_released = threading.Event()

    def slow(_session: Any, _pieces: Any, _asked: Any, text: str) -> float:
        read.append(text)
        is_released.wait()
        return 0.5

    monkeypatch.setattr(local_reranker, "_score", slow)
    monkeypatch.setattr(local_reranker, "CALL_SECONDS_MAX", 0.05)
    reranker = LocalReranker(tmp_path, model)
    with pytest.raises(RerankError, match="no scores within"):
        await reranker.scores("what", ["good"] * 100)
    is_released.set()
    monkeypatch.setattr(local_reranker, "CALL_SECONDS_MAX", 60.0)
    assert await reranker.scores("what", ["bad"]) == [0.5]
    assert read.count("good") <= 1
    assert read[-1] == "bad"
    await reranker.close()


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
async def test_another_file_is_not_loaded(tmp_path: Path, model: CrossEncoder, name: str):
    """A search says that there are no scores, and why."""
    (tmp_path / name).write_bytes(b"other")
    with pytest.raises(RerankError, match=f"{name} is not the file that is locked"):
        await LocalReranker(tmp_path, model).scores("what", ["good"])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with the files of a model in its folder."""
    (tmp_path / "a_small_reranker.py").write_text(
        "raise AssertionError('nothing of it is imported')\n", encoding="ascii"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(local_reranker, "PACKAGE", "a_small_reranker")
    return "a_small_reranker"


async def test_the_files_of_the_package_are_used(package: str, model: CrossEncoder, tmp_path: Path):
    """Its code is not; a package that is missing or another version is refused at the start, with the remedy."""
    assert await open_local_reranker(model).scores("what", ["good"]) == [pytest.approx(probability(-NUMBERS["[SEP]"]))]
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(ConfigurationError, match=r"model\.onnx cannot be read"):
        open_local_reranker(model)
    with pytest.raises(ConfigurationError, match="pip install"):
        open_reranker(read_settings({"HIGHWATER_RERANKER": "local"}))


def test_which_reranker_is_used(monkeypatch: pytest.MonkeyPatch):
    """None unless one is configured; a service needs its address."""
    monkeypatch.setattr(local_reranker, "PACKAGE", "no_such_package")
    assert open_reranker(read_settings({})) is None
    service = open_reranker(read_settings({"HIGHWATER_RERANK_BASE_URL": "http://reranker:8080"}))
    assert service is not None
    assert service.name.startswith("http://reranker:8080/rerank")
    with pytest.raises(ConfigurationError, match="needs HIGHWATER_RERANK_BASE_URL"):
        open_reranker(read_settings({"HIGHWATER_RERANKER": "service"}))
    with pytest.raises(ConfigurationError, match="no_such_package is not installed; run `pip install"):
        open_reranker(read_settings({"HIGHWATER_RERANKER": "local"}))
    with pytest.raises(ConfigurationError, match="HIGHWATER_RERANKER"):
        read_settings({"HIGHWATER_RERANKER": "none"})

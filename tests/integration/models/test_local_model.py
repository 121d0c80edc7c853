"""The installed model: the same bytes for the same text, in any batch; texts of every kind; damage."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from highwater.connectors.jobs.semantic_cache import COSINE_MIN
from highwater.connectors.models import local_model, opening
from highwater.connectors.models.embeddings import BuiltInEmbedder
from highwater.connectors.models.local_model import (
    BACKGROUND_NICE,
    DIMENSIONS,
    LEAD_SHARE,
    MINILM,
    LocalEmbedder,
    ModelDamagedError,
    is_local_basis,
    release_idle,
)
from highwater.schemas.errors import ConfigurationError
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.jobs.questions import may_share_answer
from highwater.streams.settings import read_settings
from tests import ROOT
from tests.unit.jobs.test_questions import pairs

MODELS = read_settings({}).model_dir
RUSSIAN, JAPANESE = (
    "\u041a\u0442\u043e \u043f\u043e\u0447\u0438\u043d\u0438\u043b \u0442\u0435\u0441\u0442\u044b",
    "\u8ab0\u304c\u30c6\u30b9\u30c8\u3092",
)
TEXTS = [
    "who fixed the tests",
    "the suite was repaired by Anna",
    "apples and pears",
    RUSSIAN,
    JAPANESE,
    "\u0645\u0646 \u0623\u0635\u0644\u062d broken \u05d4\u05d9\u05d0 tests",  # mixed directions
    "\u0915\u093f\u0938\u0928\u0947 \u1e00\u1e01 \uac00\ub098 \u03b1\u03b2",  # six scripts with the two above
    "word " * 1_000,
    "x " * (1 << 19),  # 1 MiB
    "a" * (1 << 20),
    "v1.2.3 -> 1.2.4",
    "",
    " \n",
]


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    """The one that is installed."""
    return LocalEmbedder(MODELS, threads=2)


def test_vectors_are_of_unit_length_or_zero(embedder: LocalEmbedder):
    """Every text has one; only those with nothing to read are zero."""
    rows = embedder.embed_now(TEXTS)
    assert (rows.shape, rows.dtype) == ((len(TEXTS), DIMENSIONS), np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(lengths, [1.0] * (len(TEXTS) - 2) + [0.0, 0.0], atol=1e-5)


def test_near_opposites_share_no_deck_and_some_paraphrases_do(embedder: LocalEmbedder):
    """The semantic cache with this model: of 130 near opposites 15 have a cosine of 0.95 and none shares an answer; a deck is
    reused for 13 of 100 paraphrases, of which 35 have that cosine. Other processors round otherwise: a few more or fewer.
    """
    hits: dict[str, int] = {}
    near: dict[str, int] = {}
    for verdict in ("different", "same"):
        found = pairs(verdict)
        vectors = embedder.embed_now([question for pair in found for question in pair])
        are_near = (vectors[0::2] * vectors[1::2]).sum(axis=1) >= COSINE_MIN
        near[verdict] = int(are_near.sum())
        hits[verdict] = sum(is_near and may_share_answer(*pair) for pair, is_near in zip(found, are_near, strict=True))
    assert near["different"] >= 12  # vectors alone would give each of these the answer to its opposite
    assert hits["different"] == 0
    assert hits["same"] >= 10


def test_texts_of_one_meaning_are_near(embedder: LocalEmbedder):
    """Without a word in common, which the built-in embedder does not see."""
    rows = embedder.embed_now(TEXTS[:3])
    assert rows[0] @ rows[1] > 0.3
    assert rows[0] @ rows[2] < 0.2


def test_a_text_below_a_title_is_near_its_lead(embedder: LocalEmbedder):
    """Its vector is that of the whole and of its last title with its first sentence; without a title it is that of the whole."""
    sentence, rest = (
        "Tests whether a path is a symbolic link.",
        "Packages of six ports are listed with their licences. " * 9,
    )
    titled, plain = f"os > islink\n\n{sentence} {rest}", f"os > islink {sentence} {rest}"
    vector, whole, lead = embedder.embed_now([titled, plain, f"islink: {sentence}"]).astype(float)
    mixed = (1 - LEAD_SHARE) * whole + LEAD_SHARE * lead
    np.testing.assert_allclose(vector, mixed / np.linalg.norm(mixed), atol=1e-6)
    question = embedder.embed_now(["does this path point to a symbolic link"])[0]
    assert question @ vector > question @ whole + 0.05


def test_namespaces_of_releases_before_leads_are_searched_by_their_vectors(embedder: LocalEmbedder):
    """A question has the same vector in both releases; a text below a title has that of the whole in the older one."""
    latest, older, builtin, _ = opening.open_question_embedders(read_settings({"HIGHWATER_EMBEDDER": "local"}))
    assert isinstance(older, LocalEmbedder)
    assert (latest.basis_id, builtin.basis_id) == (embedder.basis_id, BuiltInEmbedder().basis_id)
    assert is_local_basis(older.basis_id)
    assert older.basis_id != latest.basis_id
    question, text = "who fixed the tests?", "Tests\n\nThe suite was repaired by Anna. " + "Apples and pears. " * 9
    ours, theirs = embedder.embed_now([question, text]), older.embed_now([question, text])
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(theirs[1], embedder.embed_now([text.replace("\n\n", "\n")])[0])
    assert np.abs(ours[1] - theirs[1]).max() > 0.01


def test_what_is_not_read_has_its_built_in_vector(embedder: LocalEmbedder):
    """A text of another script, of numbers and signs: compared with similar texts as before, and hardly at all with readable
    ones.
    """
    unread = [RUSSIAN, JAPANESE, f"{RUSSIAN} tests", "v1.2.3 -> 1.2.4"]
    rows = embedder.embed_now([*unread, "who fixed the tests"])
    np.testing.assert_array_equal(rows[:-1], TextEmbedder().embed(unread))
    assert np.abs(rows[:-1] @ rows[-1]).max() < 0.2


async def test_the_same_text_has_the_same_bytes(embedder: LocalEmbedder):
    """In any order, beside any others, in several threads at a time, and in another process."""
    texts = TEXTS[:7]
    expected = await embedder.embed(texts)
    assert await embedder.embed(texts[::-1]) == expected[::-1]
    assert [(await embedder.embed([text]))[0] for text in texts] == expected
    assert all(made == expected for made in await asyncio.gather(*(embedder.embed(texts) for _ in range(6))))
    program = (
        "import sys, orjson; from highwater.connectors.models.local_model import LocalEmbedder as E;"
        "from highwater.streams.settings import read_settings as s;"
        "sys.stdout.buffer.write(E(s({}).model_dir).embed_now(orjson.loads(sys.stdin.buffer.read())).astype('<f4').tobytes())"
    )
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    import orjson

    made, _ = await other.communicate(orjson.dumps(texts))
    assert made == b"".join(expected)


async def test_the_name_says_what_vectors_are_made_of(embedder: LocalEmbedder):
    """Another file, another vocabulary, another name; and it is known for a local model's."""
    assert embedder.basis_id == MINILM.basis_id
    assert is_local_basis(MINILM.basis_id)
    assert not is_local_basis(BuiltInEmbedder().basis_id)
    others = [MINILM._replace(sha256="0" * 64), MINILM._replace(vocabulary_sha256="0" * 64)]
    assert len({MINILM.basis_id, *(one.basis_id for one in others)}) == 3


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, number: int):
    """A bit of either file; and one that is gone."""
    shutil.copytree(MODELS, tmp_path / "models")
    path = MINILM.files(tmp_path / "models")[number]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    damaged = LocalEmbedder(tmp_path / "models")
    for _ in range(2):
        with pytest.raises(ModelDamagedError, match=path.name):
            damaged.embed_now(["a text"])
    path.unlink()
    with pytest.raises(ModelDamagedError, match="cannot be read"):
        damaged.embed_now(["a text"])


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, "local"),
        ({"HIGHWATER_EMBEDDER": "builtin"}, "builtin"),
        ({"HIGHWATER_EMBEDDER": "local"}, "local"),
        ({"EMBEDDINGS_BASE_URL": "http://localhost:1/v1"}, "service"),
        ({"EMBEDDINGS_BASE_URL": "http://localhost:1/v1", "HIGHWATER_EMBEDDER": "local"}, "local"),
        ({"HIGHWATER_MODEL_DIR": "/nowhere"}, "builtin"),
        ({"HIGHWATER_MODEL_DIR": "/nowhere", "HIGHWATER_EMBEDDER": "local"}, "local"),
        ({"HIGHWATER_MODEL_DIR": "/nowhere", "EMBEDDINGS_BASE_URL": "http://localhost:1/v1"}, "service"),
    ],
)
def test_which_embedder_is_chosen(given: dict[str, str], chosen: str):
    """The requested one, even if its files are missing; else a service, else the installed model, else the one without
    files.
    """
    assert opening.chosen_embedder(read_settings(given)) == chosen


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"HIGHWATER_EMBEDDER": "service"}, "EMBEDDINGS_BASE_URL"),
        ({"HIGHWATER_EMBEDDER": "best"}, "builtin, local, service"),
    ],
)
def test_what_is_asked_for_and_not_there_is_refused(given: dict[str, str], says: str):
    """One line names the missing file."""
    with pytest.raises(ConfigurationError, match=says):
        opening.open_embedder(read_settings(given))


def test_without_its_library_no_model_is_chosen(monkeypatch: pytest.MonkeyPatch):
    """It is refused on request."""
    monkeypatch.setattr(local_model, "find_spec", lambda _name: None)
    assert opening.chosen_embedder(read_settings({})) == "builtin"
    with pytest.raises(ConfigurationError, match="make install"):
        opening.chosen_embedder(read_settings({"HIGHWATER_EMBEDDER": "local"}))


def test_a_model_at_rest_is_given_back(embedder: LocalEmbedder):
    """Not while it is used; then the next text loads it again, with the same vectors."""
    before = embedder.embed_now(TEXTS[:2])
    assert not release_idle(600.0)
    assert release_idle(0.0)
    assert not release_idle(0.0)
    np.testing.assert_array_equal(embedder.embed_now(TEXTS[:2]), before)


def test_nothing_is_loaded_before_the_first_text():
    """A process that opens the embedder and never embeds has neither the library nor the model."""
    program = (
        "import sys; from highwater.connectors.models.opening import open_embedder as o, chosen_embedder as c;"
        "from highwater.streams.settings import read_settings as s; e = o(s({})); assert c(s({})) == 'local';"
        "print('onnxruntime' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False"


async def test_background_work_yields(monkeypatch: pytest.MonkeyPatch):
    """Its threads have the lowest claim, and no other thread of the process has."""
    seen: list[int] = []
    background = LocalEmbedder(MODELS, in_background=True)
    made = background.embed_now

    def noted(texts):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return made(texts)

    monkeypatch.setattr(background, "embed_now", noted)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    await background.embed(["a text"])
    assert seen == [BACKGROUND_NICE]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before

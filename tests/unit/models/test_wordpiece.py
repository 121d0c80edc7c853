"""Tokens of the local model: equal to those of the library that made its vocabulary, for any text; and its input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.models.local_model import MINILM
from highwater.streams.models import wordpiece
from highwater.streams.models.wordpiece import WordPieces, is_read, read_vocabulary, words_of
from highwater.streams.settings import read_settings

# The tokens of `tokenizers` 0.23 for the installed vocabulary, without the marks of both ends.
GOLDEN = [
    (
        "Fix the rebalance of KafkaConsumer (#1234): don't lose offsets!",
        [
            8081,
            1996,
            2128,
            26657,
            1997,
            10556,
            24316,
            22684,
            3619,
            17897,
            2099,
            1006,
            1001,
            13138,
            2549,
            1007,
            1024,
            2123,
            1005,
            1056,
            4558,
            16396,
            2015,
            999,
        ],
    ),
    ("na\xefve \xc4rger caf\xe9", [15743, 12098, 4590, 7668]),
    (
        "\xdcberpr\xfcfung\tder\xa0Gro\xdf-/Kleinschreibung",
        [19169, 18098, 16093, 5575, 4315, 24665, 2080, 19310, 1011, 1013, 12555, 11624, 2890, 12322, 5575],
    ),
    (
        "\u041a\u0442\u043e \u043f\u043e\u0447\u0438\u043d\u0438\u043b \u0442\u0435\u0441\u0442\u044b",
        [1189, 22919, 14150, 1194, 14150, 29752, 10325, 18947, 10325, 29436, 1197, 15290, 29747, 22919, 29113],
    ),
    (
        "\u8ab0\u304c\u30c6\u30b9\u30c8\u3092\u76f4\u3057\u305f\u304b",
        [100, 1651, 30239, 30233, 30240, 30216, 100, 1657, 30187, 30177],
    ),
    (
        "\u0645\u0646 \u0623\u0635\u0644\u062d \u0627\u0644\u0627\u062e\u062a\u0628\u0627\u0631\u0627\u062a",
        [1295, 15915, 1270, 29826, 23673, 29820, 1270, 23673, 25573, 29821, 29817, 29816, 25573, 17149, 25573, 29817],
    ),
    (
        "\u05d4\u05d9\u05d0 \u05e9\u05dc\u05d7\u05d4 3 emails",
        [1245, 29796, 29788, 1266, 29799, 29794, 29128, 1017, 22028],
    ),
    (
        "\u0915\u093f\u0938\u0928\u0947 \u092a\u0930\u0940\u0915\u094d\u0937\u0923 \u0920\u0940\u0915 \u0915\u093f\u090f",
        [1315, 29877, 29874, 29863, 1328, 29869, 29878, 29851, 29873, 29858, 100, 1315, 29877, 29850],
    ),
    ("a\u200bb\x00c\x07d e\u0301", [5925, 2094, 1041]),
    (
        "\u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3 \u0130stanbul",
        [1169, 29722, 29735, 29733, 29733, 29723, 29735, 29733, 9960],
    ),
    ("$9.99 <tag> snake_case camelCase", [1002, 1023, 1012, 5585, 1026, 6415, 1028, 7488, 1035, 2553, 19130, 18382]),
    ("\U0001f642 ok \U0001f469\u200d\U0001f680", [100, 7929, 100]),
    ("x" * 101, [100]),
    ("", []),
    ("  \n ", []),
]


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    """The vocabulary that is installed."""
    return read_vocabulary(MINILM.files(read_settings({}).model_dir)[1].read_bytes())


@pytest.mark.parametrize(("text", "tokens"), GOLDEN)
def test_tokens_are_those_of_the_library(pieces: WordPieces, text: str, tokens: list[int]):
    """Accents, scripts, controls, ideographs, signs, emoji, words without pieces or too long."""
    assert pieces.tokens(text) == tokens
    assert pieces.tokens(text) == tokens  # the remembered tokens are the same


@given(st.text(max_size=60))
def test_every_text_has_tokens(text: str):
    """This holds for any text: words contain no space and no control character, and ASCII text is handled like other text."""
    words = words_of(text)
    assert not any(set(word) & set(" \t\n\r\0") for word in words)
    if text.isascii():  # the short way and the long way are one
        assert words == "".join(map(wordpiece._split, text)).split()


def test_a_long_text_is_cut_into_windows(pieces: WordPieces):
    """Windows have marked ends, no token is lost or duplicated up to the last, and the rest is left out."""
    tokens = pieces.tokens("word " * 1_000)
    windows = pieces.windows("word " * 1_000, tokens_max=256, windows_max=3)
    assert [len(window) for window in windows] == [256, 256, 256]
    assert {(window[0], window[-1]) for window in windows} == {(101, 102)}
    assert [token for window in windows for token in window[1:-1]] == tokens[: 3 * 254]
    assert pieces.windows("", tokens_max=256, windows_max=3) == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Who fixed the tests?", True),
        ("KIP-848", True),
        ("\u00dcberpr\u00fcfung der Gr\u00f6\u00dfe", True),  # another language, but letters that it was shown
        ("\u041a\u0442\u043e \u043f\u043e\u0447\u0438\u043d\u0438\u043b \u0442\u0435\u0441\u0442\u044b", False),
        ("Kafka: \u043a\u0442\u043e \u043f\u043e\u0447\u0438\u043d\u0438\u043b", False),  # mostly not Latin
        ("\u8ab0\u304c\u30c6\u30b9\u30c8\u3092\u76f4\u3057\u305f\u304b", False),
        ("v1.2.3 -> 1.2.4 (#4688)", False),
        ("{[(=>;;)]}; x+=1;", False),
        ("", False),
        (" \n", False),
    ],
)
def test_which_texts_are_read(text: str, is_one: bool):
    """Latin letters must be most of its letters and a third of its visible characters."""
    assert is_read(text) is is_one


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"model": {"type": "BPE"}}', b"\xff", b'{"model": 1, "normalizer": 2}']
)
def test_another_vocabulary_is_refused(content: bytes):
    """A file that is not a WordPiece vocabulary of lower-cased words is refused."""
    with pytest.raises(ValueError, match=r"vocabulary|another kind"):
        read_vocabulary(content)

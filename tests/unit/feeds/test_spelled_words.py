"""How texts of other scripts become words that a reader sees: a mark stays with its letter."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from highwater.streams.feeds.labels import describe_clusters
from highwater.streams.feeds.tokens import clean, spelled_words_of

# One sentence each: "Who fixed the tests yesterday evening", and a word that the others do not have.
SCRIPTS = {
    "Devanagari": "किसने कल ब्रोकर के परीक्षण ठीक किए",
    "Tamil": "நேற்று சோதனைகளை சரிசெய்தது யார்",
    "Bengali": "গতকাল ব্রোকারের পরীক্ষা কে ঠিক করেছে",
    "Hebrew with points": "מִי תִּקֵּן אֶת הַבְּדִיקוֹת",
    "Arabic with points": "مَن أَصْلَحَ اخْتِبَارَات الوَسِيط",
    "Persian": "آزمون‌ها را دیروز می‌نویسیم",  # noqa: RUF001 Persian is meant
    "Cyrillic": "кто починил тесты брокера",
}
THAI = "ใครแก้การทดสอบเมื่อวานนี้"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_word_of_any_script_is_one_word(script: str):
    """Vowels that are marks, points and joiners take no word apart."""
    cleaned = clean(SCRIPTS[script])
    assert [cleaned[first:last] for first, last in spelled_words_of(cleaned)] == cleaned.split()


def test_a_script_without_spaces_is_cut_between_letters():
    """Thai: no piece begins with a mark or ends with a vowel that stands before its consonant."""
    cleaned = clean(THAI)
    pieces = [cleaned[first:last] for first, last in spelled_words_of(cleaned)]
    assert "".join(pieces) == cleaned
    assert not [one for one in pieces if unicodedata.category(one[0]).startswith("M") or one[-1] in "เแโใไ"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_label_and_keywords_are_made_of_whole_words(script: str):
    """The words of eight texts of one script beside others are complete for its readers."""
    own = [f"{SCRIPTS[script]} {number}" for number in range(8)]
    texts = [*own, *(f"update dependency {name} to v{name}" for name in "abcdefgh")]
    labels = np.repeat([0, 1], 8).astype(np.intp)
    vectors = np.zeros((16, 4), dtype=np.float32)
    vectors[np.arange(16), labels] = 1
    found = describe_clusters(labels, np.ones(16), vectors, texts, [str(number) for number in range(16)])
    shown = next(one for one in found if "0" in one.insight_ids)
    words = set(unicodedata.normalize("NFKC", SCRIPTS[script]).casefold().split())
    assert set(shown.label.casefold().replace(",", "").split()) <= words
    assert {part for keyword in shown.keywords for part in keyword.casefold().split()} <= words


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("ReST", ["ReST"]),
        ("PyPI", ["PyPI"]),
        ("iOS", ["iOS"]),
        ("ACLs", ["ACLs"]),
        ("topicId", ["topic", "Id"]),
        ("HTTPServer", ["HTTP", "Server"]),
        ("getId", ["get", "Id"]),
    ],
)
def test_a_name_of_short_pieces_is_one_word(written: str, words: list[str]):
    """An identifier is cut where its case changes, unless no piece has three letters."""
    assert [written[first:last] for first, last in spelled_words_of(written)] == words

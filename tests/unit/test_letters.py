"""How words of other scripts are cut to be compared: between letters, never within one."""

from __future__ import annotations

import unicodedata

import pytest

from highwater.streams.feeds.basis import MARKED, UNFITTED
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.tokens import clean
from highwater.streams.feeds.tokens import words_of as vector_words
from highwater.streams.letters import cut_to, is_within_letter, width_of
from highwater.streams.queries.words import query_words, stem_of
from highwater.streams.queries.words import words_of as asked_words
from highwater.streams.texts import Quotations

# "Who fixed the tests yesterday".
SPACED = {
    "Devanagari": "किसने कल परीक्षण ठीक किए",
    "Bengali": "গতকাল পরীক্ষা কে ঠিক করেছে",
    "Tamil": "நேற்று சோதனைகளை சரிசெய்தது யார்",
    "Telugu": "నిన్న పరీక్షలను ఎవరు సరిచేశారు",
    "Sinhala": "ඊයේ පරීක්ෂණ නිවැරදි කළේ කවුද",
    "Persian": "آزمون‌ها را دیروز می‌نویسیم",  # noqa: RUF001 Persian is meant
}
UNSPACED = {
    "Thai": "ใครแก้การทดสอบเมื่อวานนี้",
    "Khmer": "អ្នកណាជួសជុលការសាកល្បង",
    "Lao": "ໃຜແກ້ການທົດສອບ",
    "Myanmar": "စမ်းသပ်မှုကိုပြင်",
}
POINTED = {
    "Arabic": ("مَن أَصْلَحَ الاختِبارات", "من أصلح الاختبارات"),
    "Hebrew": ("מִי תִּקֵּן אֶת הַבְּדִיקוֹת", "מי תקן את הבדיקות"),
}


@pytest.mark.parametrize("script", SPACED)
def test_a_word_keeps_its_marks(script: str):
    """For vectors, for the words of a question, and for the comparison with results, which leaves out endings alone."""
    whole = clean(SPACED[script]).split()
    assert vector_words(clean(SPACED[script]), keeps_marks=True) == whole
    assert query_words(clean(SPACED[script])) == whole
    assert asked_words(SPACED[script]) == frozenset(map(stem_of, SPACED[script].split()))


@pytest.mark.parametrize("script", UNSPACED)
def test_a_script_without_spaces_becomes_pairs_of_letters(script: str):
    """They overlap, and none begins with a mark; a text in which they stand in another order shares fewer of them."""
    pairs = vector_words(clean(UNSPACED[script]), keeps_marks=True)
    assert not [one for one in pairs if unicodedata.category(one[0]).startswith("M")]
    assert len(pairs) >= len(UNSPACED[script]) // 3
    assert pairs[0][-1] in pairs[1]
    assert asked_words(UNSPACED[script]) == frozenset(asked_words(" ".join(pairs))) | frozenset(pairs)


@pytest.mark.parametrize("script", POINTED)
def test_points_that_most_writers_leave_out_change_nothing(script: str):
    """A word with its vowel points is the word without them."""
    pointed, plain = POINTED[script]
    assert vector_words(clean(pointed), keeps_marks=True) == vector_words(clean(plain), keeps_marks=True)
    assert asked_words(pointed) == asked_words(plain)


def test_words_of_other_vowels_are_others():
    """Hindi "book" and "dog" share two consonants: vectors of cut words took them for near, those of whole words do not."""
    book, dog = "किताब कुर्सी", "कुत्ता बकरी"
    cosines = []
    for basis in (UNFITTED, MARKED):
        first, second = TextEmbedder(basis).embed([book, dog])
        cosines.append(float(first @ second))
    assert cosines[1] < 0.2 < cosines[0]


def test_what_has_no_marks_is_as_before():
    """For such texts both unfitted bases give the same bits."""
    texts = ["Fix KAFKA-17415: avoid overflow", "日本語のテキスト", "кто починил тесты", "naïve café", ""]
    assert TextEmbedder(MARKED).embed(texts).tobytes() == TextEmbedder(UNFITTED).embed(texts).tobytes()


def test_a_quotation_is_words_in_a_row_not_pieces_of_one():
    """One Hindi word, which a pattern would cut into four, is not a quotation of a text that has it."""
    quoted = Quotations(["परीक्षण सर्वर किताब कुर्सी ब्रोकर"])
    assert "नया परीक्षण सर्वर किताब कुर्सी यहाँ" in quoted
    assert "केवल परीक्षण सर्वर यहाँ" not in quoted


@pytest.mark.parametrize("most", [4, 5, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("script", UNSPACED)
def test_a_line_without_spaces_is_cut_between_letters(script: str, most: int):
    """The shown part ends with a whole letter, and is at most of the given length."""
    line = UNSPACED[script]
    shown = cut_to(line, most).removesuffix("\u2026")
    assert line.startswith(shown)
    assert 0 < len(shown) < most
    assert not is_within_letter(line, len(shown))


def test_a_line_with_spaces_is_cut_between_words():
    """As far as whole words go."""
    assert [cut_to("one two three", most) for most in (13, 12, 8, 7)] == [
        "one two three",
        *["one two\u2026"] * 2,
        "one\u2026",
    ]


def test_a_chinese_letter_says_as_much_as_two():
    """And the vowel signs of a Hindi word make it no longer."""
    assert [width_of(text) for text in ("昨天谁修复了测试。", "किताब", "book")] == [18, 3, 4]

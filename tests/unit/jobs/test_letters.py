"""Text in every script: single letters, line breaks, and direction."""

from __future__ import annotations

import io

import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.jobs import fonts
from highwater.connectors.jobs.fonts import Fonts, installed_fonts, language_of
from highwater.connectors.jobs.pdf_file import write_pdf
from highwater.connectors.jobs.pptx_file import write_pptx
from highwater.streams.jobs.bidi import base_level, levels_of, shown_runs
from highwater.streams.jobs.layout import Deck, MissingFontError, Slide, wide_measure, wrap
from highwater.streams.jobs.letters import letters_of, pieces_of

TEXTS = st.text(st.sampled_from("ab אب1٣ (.,「。日\u0301\u200dक्ष👍🏽🇩🇪กำ\u064b"), max_size=24)
SCRIPTS = {
    "Greek": "Το σύστημα αποθηκεύει μηνύματα",  # noqa: RUF001 - Greek
    "Cyrillic": "Система хранит сообщения, їжак",
    "Armenian": "Համակարգը պահում է",
    "Georgian": "სისტემა ინახავს",
    "Ethiopic": "ስርዓቱ መልዕክቶችን",
    "Hebrew": "המערכת שומרת",
    "Arabic": "تعالج المنصة الرسائل",
    "Devanagari": "क्षत्रिय विद्यार्थी",
    "Bengali": "ক্ষুদ্র বাংলা",
    "Tamil": "செய்திகளைச் சேமிக்கிறது",
    "Telugu": "వ్యవస్థ సందేశాలను",
    "Thai": "ที่นี่มีน้ำ กำหนด",
    "Khmer": "ខ្ញុំស្រឡាញ់",
    "Burmese": "မြန်မာဘာသာ",
    "Japanese": "概要「メッセージ」を保存。",
    "Chinese": "该系统按顺序存储消息。",
    "Korean": "메시지를 저장합니다",
    "emoji": "✅ 🚀 👨‍👩‍👧 🇩🇪 👍🏽 1️⃣ ❤️",
    "signs": "→ x ≤ y • … “a” €",
}


@given(TEXTS)
def test_pieces_are_the_text(text: str):
    """Letters and pieces put together are the text, and none is empty."""
    letters, pieces = list(letters_of(text)), pieces_of(text.lstrip())
    assert ("".join(letters), "".join(pieces)) == (text, text.lstrip())
    assert all(letters)
    assert all(pieces)


def test_what_is_one_letter_stays_whole():
    """Marks, syllables of Indic scripts, joined emoji, flags."""
    assert list(letters_of("e\u0301क्षि👨‍👩‍👧🇩🇪🇫🇷👍🏽กำ")) == ["e\u0301", "क्षि", "👨‍👩‍👧", "🇩🇪", "🇫🇷", "👍🏽", "กำ"]


def test_chinese_and_japanese_lines_break_between_letters():
    """No line begins with a closing mark or ends with an opening one; a long word continues on the line where it began."""
    assert pieces_of("日本「語」です。 a b") == ["日", "本", "「語」", "で", "す。 ", "a ", "b"]
    assert wrap("ab " + "ก" * 30, 10, 100, wide_measure)[0] == "ab " + "ก" * 14


@pytest.mark.parametrize(
    ("text", "base", "shown"),
    [
        ("abc אבג def", 0, "abc גבא def"),
        ("אב abc גד", 1, "דג abc בא"),
        ("אב 123 גד", 1, "דג 123 בא"),
        ("اب 1,234.5 ت", 1, "ت 1,234.5 با"),
        ("אב (abc) ג", 1, "ג )abc( בא"),  # HarfBuzz turns brackets round
        ("a (אב) b", 0, "a (בא) b"),
        ("אב 5% ג", 1, "ג 5% בא"),
        ("אב, ", 1, " ,בא"),
        ("abc אב!", 0, "abc בא!"),
        ("א\u202eab\u202c", 1, "\u202cab\u202eא"),  # marks of embedding change nothing
    ],
)
def test_which_way_letters_run(text: str, base: int, shown: str):
    """As UAX 9 has it; 60,000 random texts had the order that an implementation of it in use gives."""
    assert base_level(text) == base
    runs = shown_runs(text, levels_of(text, base), base)
    assert "".join(text[start:end][:: -1 if level % 2 else 1] for start, end, level in runs) == shown


@given(TEXTS, st.integers(0, 1))
def test_each_letter_is_shown_once(text: str, base: int):
    """This holds for any text, in either direction."""
    runs = shown_runs(text, levels_of(text, base), base)
    assert sorted(place for start, end, _ in runs for place in range(start, end)) == list(range(len(text)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_has_letters(script: str):
    """Every letter has a shape, and what the shapes stand for is the text."""
    text = SCRIPTS[script]
    runs = Fonts(language_of([text])).runs(text, is_rtl=base_level(text) == 1)
    assert sorted("".join(part.text for run in runs for part in run.parts)) == sorted(text)
    assert all(shape.glyph for run in runs for part in run.parts for shape in part.shapes)


def test_a_file_holds_every_script():
    """All its fonts are in the file with what their glyphs stand for, so that its text can be read out of it."""
    content = write_pdf(Deck("Σ д 日", tuple(Slide(name, (text,)) for name, text in SCRIPTS.items()))).content
    reader = pypdf.PdfReader(io.BytesIO(content))
    for page in reader.pages:
        for name in page["/Resources"]["/Font"].values():  # type: ignore[index]
            font = name.get_object()
            (inner,) = font["/DescendantFonts"]
            descriptor = inner.get_object()["/FontDescriptor"]
            assert ("/ToUnicode" in font, any(f"/FontFile{kind}" in descriptor for kind in (2, 3))) == (True, True)
    told = "".join("".join(page.extract_text().split()) for page in reader.pages)
    for script in ("Greek", "Cyrillic", "Armenian", "Georgian", "Ethiopic", "Japanese", "Chinese", "Korean", "signs"):
        assert "".join(SCRIPTS[script].split()) in told
    assert len(content) < 300_000


def test_chinese_characters_are_those_of_the_language():
    """Japanese beside kana, Korean beside Hangul, else Chinese."""
    assert [language_of([text]) for text in ("日本", "日本の", "日本 한", "abc")] == ["zh", "ja", "ko", "zh"]


@pytest.mark.parametrize(
    ("text", "told"), [("say བོད་ཡིག now", "Tibetan.*བོད་ཡིག"), ("ᠮᠣᠩᠭᠣᠯ", "Mongolian"), ("ހިވަ", "Thaana")]
)
def test_a_script_without_a_font_is_refused(text: str, told: str):
    """The error has its name and the text; PPTX leaves letters to its reader."""
    for deck in (Deck(text, ()), Deck("d", (Slide("t", (text,)),)), Deck("d", (Slide("t", ("p",), "", (text,)),))):
        with pytest.raises(MissingFontError, match=told):
            write_pdf(deck)
        assert write_pptx(deck)


def test_fonts_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch):
    """The others are used as before."""
    monkeypatch.setattr(fonts, "_CJK_PACKAGE", "no_such_package")
    installed_fonts.cache_clear()
    try:
        assert write_pdf(Deck("Система", ()))
        with pytest.raises(MissingFontError, match=r"Cjk.*manimgx-fonts-cjk"):
            write_pdf(Deck("日本", ()))
    finally:
        installed_fonts.cache_clear()


def test_letters_without_meaning_are_left_out():
    """Fonts fill the private places as they like: a text from a PDF may have icons there."""
    assert pypdf.PdfReader(io.BytesIO(write_pdf(Deck("a \ue000 b", ())).content)).pages[0].extract_text().split() == [
        "a",
        "b",
    ]


def test_symbols_without_a_font_are_left_out():
    """The omission is reported; digits and letters of a script without a font are still refused."""
    written = write_pdf(Deck("a \U0001d300 b", (Slide("t", ("\U000113e1x", "p \U0001d300")),)))
    assert written.left_out == {"\U0001d300", "\U000113e1"}
    assert pypdf.PdfReader(io.BytesIO(written.content)).pages[0].extract_text().split() == ["a", "b"]
    with pytest.raises(MissingFontError, match="Tibetan"):
        write_pdf(Deck("\u0f21", ()))

"""Messages in several languages: their plurals, numbers and dates, and languages that are added as files."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import pytest

from highwater.streams.messages import Catalogue, catalogue, messages_for

ENGLISH, RUSSIAN = (catalogue().messages(language) for language in ("en", "ru"))
ESPERANTO = """
msgid ""
msgstr ""
"Language: eo\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

msgid "{names} and {last}"
msgstr "{names} kaj {last}"
"""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 пространств имён"),
        (1, "1 пространство имён"),
        (2, "2 пространства имён"),
        (5, "5 пространств имён"),
        (11, "11 пространств имён"),
        (12, "12 пространств имён"),
        (21, "21 пространство имён"),
        (22, "22 пространства имён"),
        (111, "111 пространств имён"),
        (1_104, "1\u00a0104 пространства имён"),
    ],
)
def test_russian_words_agree_with_numbers(number: int, words: str):
    """With the last digits, not with the size."""
    assert RUSSIAN.ngettext("{number} namespace", "{number} namespaces", number) == words


def test_numbers_dates_and_lists():
    """As a reader of the language writes them."""
    at = datetime(2026, 5, 3, 9, 5)  # noqa: DTZ001 - a time of day as it is shown
    for messages, expected in (
        (ENGLISH, ["2026-05-03", "2026-05-03 09:05", "Sun 3 May 2026", "1,234,567", "2.50", "a, b and c", "a"]),
        (
            RUSSIAN,
            [
                *("3 мая 2026 года", "3 мая 2026 года в 09:05", "вс, 3 мая 2026"),
                *("1\u00a0234\u00a0567", "2,50", "a, b и c", "a"),
            ],
        ),
    ):
        assert [
            messages.day(at), messages.day_and_time(at), messages.full_date(at), messages.number(1_234_567),
            messages.decimal(2.5, 2), messages.listed(["a", "b", "c"]), messages.listed(["a"]),
        ] == expected  # fmt: skip


@pytest.mark.parametrize("language", catalogue().languages)
def test_each_language_has_all_months_and_days(language: str):
    """Twelve and seven different names; in a sentence a date has no comma, which separates the parts of a citation."""
    messages = catalogue().messages(language)
    assert "," not in messages.day_and_time(datetime(2026, 5, 3, 9, 5))  # noqa: DTZ001 - a time of day as it is shown
    assert len({messages.full_date(date(2026, month, 1)).split()[-2] for month in range(1, 13)}) == 12
    assert len({messages.full_date(date(2026, 6, day)).split()[0] for day in range(1, 8)}) == 7


def test_values_are_not_messages():
    """Braces in a value stay as they are."""
    assert ENGLISH.gettext("No source names {names}.", names="{last}") == "No source names {last}."
    assert RUSSIAN.listed(["{x}", "{y}"]) == "{x} и {y}"


def test_a_language_is_added_by_a_file_alone(tmp_path: Path):
    """What the file lacks is in English, as is everything in a language without a file."""
    (tmp_path / "eo.po").write_text(ESPERANTO, encoding="utf-8")
    added = Catalogue(tmp_path)
    assert added.languages == ("en", "eo")
    assert added.messages("eo").listed(["a", "b"]) == "a kaj b"
    assert added.messages("eo").gettext("Nothing was asked before this.") == "Nothing was asked before this."
    for unknown in ("ru", "xx", "../eo", None):
        assert added.messages(unknown).language == "en"
        assert added.messages(unknown).listed(["a", "b"]) == "a and b"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Когда и почему контроллер был переписан?", "ru"),
        ("When was the controller rewritten?", "en"),
        ("Wann wurde der Controller neu geschrieben?", "en"),  # no file
        ("Контроллер", "ru"),
        ("RocksDB", "en"),
        ("", "en"),
    ],
)
def test_a_text_chooses_its_language(text: str, language: str):
    """English where a text does not show its language, and where that has no messages."""
    assert messages_for(text).language == language

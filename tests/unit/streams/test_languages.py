"""The language of a text, by its function words and its script."""

from __future__ import annotations

import pytest

from highwater.streams.languages import (
    FUNCTION_WORDS,
    STEMMED,
    function_words_in,
    language_of,
    languages_asked,
    text_language,
)

SENTENCES = {
    "en": "the broker could not find the topic that was asked for",
    "de": "der broker konnte das thema nicht finden und wartet auf die antwort",
    "fr": "le serveur ne peut pas lire les données de ce sujet",
    "es": "el servidor no puede leer los datos de este tema",
    "it": "il server non può leggere i dati di questo argomento",
    "pt": "o servidor não pode ler os dados deste tema",
    "nl": "de server kan het onderwerp niet lezen omdat er geen ruimte is",
    "pl": "serwer nie może odczytać danych, ponieważ nie ma go na dysku",
    "ru": "сервер не может прочитать данные из этой темы",
    "ro": "serverul nu poate citi datele din acest subiect",
    "sv": "servern kan inte läsa data från det här ämnet",
    "tr": "sunucu bu konunun verilerini okuyamıyor çünkü disk dolu",  # noqa: RUF001 - Turkish
    "el": "ο διακομιστής δεν μπορεί να διαβάσει τα δεδομένα",  # noqa: RUF001 - Greek
    "ar": "لا يمكن للخادم قراءة البيانات من هذا الموضوع",
    "uk": "сервер не може прочитати дані із цієї теми",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_shows_its_language(language: str):
    """Also beside names and words of programs."""
    words = SENTENCES[language].replace(",", "").split()
    assert language_of(words) == language
    assert language_of(["kafka", "kraft", *words]) == language


@pytest.mark.parametrize("text", ["", "update dependencies", "processes die on", "kafka 4.0", "де die"])
def test_few_words_show_nothing(text: str):
    """No word of grammar, one, or as many of one language as of another."""
    assert language_of(text.split()) is None


def test_words_of_two_meanings_count_in_their_language_alone():
    """`die` is an English verb, `font` a thing, `pod` a unit of Kubernetes; `nicht` and `для` are nothing else."""
    for language, words in {"de": ("die", "war", "mit"), "fr": ("font", "par"), "pl": ("pod",), "es": ("con",)}.items():
        assert function_words_in(language).issuperset(words)
        assert function_words_in("en").isdisjoint(words)
        assert function_words_in(None).isdisjoint(words)
    for language in (None, *FUNCTION_WORDS):
        assert function_words_in(language).issuperset(("nicht", "для", "pour" if language == "fr" else "avec"))
    assert all(word == word.lower() for words in FUNCTION_WORDS.values() for word in words)


@pytest.mark.parametrize("language", SENTENCES)
def test_a_text_is_stemmed_in_its_language(language: str):
    """If a stemmer of it is known; English is none of the others."""
    expected = language if language in STEMMED else None
    assert text_language(SENTENCES[language].capitalize() + ".") == expected
    assert languages_asked(text_language(SENTENCES[language])) == ([expected] if expected else list(STEMMED))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Исправлена ошибка", "ru"),
        ("fix: исправлена ошибка в parser.py", "ru"),
        ("Додано підтримку", None),  # Ukrainian, by its letters
        ("\u0421lone topic", None),  # one letter of another script, by mistake
        ("Add the translation for Иван and the others", None),
        ("सर्वर डेटा", "hi"),
        ("سرور نمی‌تواند", None),  # Persian
        ("Fix Python 2.6 tests in CI", None),
        ("Make ALL_BROKERS_DOWN a non fatal error", None),
        ("don't call len() in I/O, o.a.k.c, et al.", None),
        ("", None),
    ],
)
def test_few_words_are_of_their_script(text: str, language: str | None):
    """Names and one stray letter show nothing, nor do English words that others have too."""
    assert text_language(text) == language

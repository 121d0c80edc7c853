"""The catalogue of messages: every language says what the code says, with the same values, and nothing else."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from typing import NamedTuple

import polib
import pytest

from highwater.streams.messages import DATE_CONTEXT, DATE_FIELDS, FOLDER, Catalogue
from tests import ROOT

# A language in which each message must be there; others may lack some, which are then in English.
COMPLETE = ("ru",)
CATALOGUE = Catalogue(FOLDER)
FILES = {language: polib.pofile((FOLDER / f"{language}.po").read_text("utf-8")) for language in CATALOGUE.languages[1:]}
_PROGRAMS = ("api", "connectors", "deploy", "streams")
# How many texts a call names, by its function: those that xgettext knows.
_TEXTS = {"gettext": 1, "gettext_noop": 1, "ngettext": 2, "pgettext": 2}


class Message(NamedTuple):
    """A message as the code names it."""

    context: str | None
    text: str
    plural: str | None = None


def messages_in(code: str) -> Iterator[Message]:
    """The messages that code names."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        count = _TEXTS.get(name, 0)
        texts = [one.value for one in node.args[:count] if isinstance(one, ast.Constant)]
        if not count or len(texts) < count:  # a variable: its value is marked where it is written
            continue
        context, text = texts if name == "pgettext" else (None, texts[0])
        yield Message(context, text, texts[1] if name == "ngettext" else None)


IN_CODE = frozenset(
    message
    for place in _PROGRAMS
    for path in sorted((ROOT / place).rglob("*.py"))
    for message in messages_in(path.read_text(encoding="utf-8"))
)


def fields(text: str) -> frozenset[str]:
    """The names of the values in a text."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def texts_of(entry: polib.POEntry) -> list[str]:
    """A translation in all its forms."""
    return list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]


def key_of(entry: polib.POEntry) -> Message:
    """The message that an entry translates."""
    return Message(entry.msgctxt, entry.msgid, entry.msgid_plural or None)


def test_messages_are_found_in_code():
    """By the functions of gettext; a variable is not found, and its constant is marked."""
    code = """
a.gettext("one", x=1); gettext_noop("two " "words"); a.pgettext("where", "three"); a.ngettext("four", "fours", n); a.gettext(b)
"""
    found = [
        Message(None, "one"),
        Message(None, "two words"),
        Message("where", "three"),
        Message(None, "four", "fours"),
    ]
    assert sorted(messages_in(code), key=str) == sorted(found, key=str)
    assert len(IN_CODE) > 40


@pytest.mark.parametrize("language", COMPLETE)
def test_a_language_is_complete(language: str):
    """Each message of the code is translated."""
    translated = {key_of(entry) for entry in FILES[language] if entry.translated()}
    assert IN_CODE - translated == set()


@pytest.mark.parametrize("language", FILES)
def test_a_language_says_nothing_else(language: str):
    """No entry is left over, doubtful or there twice."""
    found = [key_of(entry) for entry in FILES[language]]
    assert set(found) - IN_CODE == set()
    assert len(found) == len(set(found))
    assert [entry.msgid for entry in FILES[language] if entry.obsolete or "fuzzy" in entry.flags] == []


@pytest.mark.parametrize("language", FILES)
def test_values_agree(language: str):
    """A translation puts in what the English text does; one of a date may choose other parts of it."""
    for entry in FILES[language]:
        expected = fields(entry.msgid) | fields(entry.msgid_plural)
        for text in texts_of(entry):
            if entry.msgctxt == DATE_CONTEXT:
                assert fields(text) <= DATE_FIELDS, text
            else:
                assert fields(text) == expected, text


@pytest.mark.parametrize("language", FILES)
def test_a_translation_is_text(language: str):
    """Pages put messages into HTML, also into attributes: a character of markup is there only if the English text has it."""
    for entry in FILES[language]:
        for character in '<>&"':
            assert character in entry.msgid or not any(character in text for text in texts_of(entry)), entry.msgid
    assert [one.text for one in IN_CODE if set("<>&") & set(one.text)] == []


@pytest.mark.parametrize("language", FILES)
def test_plural_forms_are_there(language: str):
    """As many as the file declares, none empty; and it names its language and its charset."""
    metadata = FILES[language].metadata
    count = int(metadata["Plural-Forms"].partition("nplurals=")[2].partition(";")[0])
    assert metadata["Language"] == language
    assert metadata["Content-Type"] == "text/plain; charset=UTF-8"
    for entry in FILES[language]:
        if entry.msgid_plural:
            assert sorted(entry.msgstr_plural) == list(range(count)), entry.msgid
            assert all(entry.msgstr_plural.values()), entry.msgid

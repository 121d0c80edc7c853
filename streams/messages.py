"""The product's sentences for readers in their languages, by GNU gettext.

Invariants. An English text in the code is the key of its message, and the message in English. A language is one file,
`locales/NAME.po` (ISO 639-1); what it does not translate is in English. The files do not change while a process runs,
so the same call always gives the same text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

import polib

from highwater.streams.languages import ENGLISH, text_language

FOLDER = Path(__file__).parent / "locales"
# Messages of this context are dates; a translation may have any of these parts.
DATE_CONTEXT = "date"
DATE_FIELDS = frozenset(("year", "month", "month_number", "day", "day_number", "weekday"))


def gettext_noop(text: str) -> str:
    """Mark a constant as a message; `Messages.gettext` translates it where it is shown."""
    return text


class Messages:
    """The messages in one language. Values are put into the `{name}` of a message after its translation."""

    def __init__(self, language: str, translations: NullTranslations) -> None:
        self.language = language
        self._translations = translations

    def gettext(self, text: str, /, **values: object) -> str:
        """Return a message."""
        return self.template(text).format(**values)

    def template(self, text: str) -> str:
        """Return a message with the names of its values."""
        return self._translations.gettext(text)

    def known(self, word: str, words: Collection[str]) -> str:
        """Return a word of data; one that is not among these marked words as it is."""
        return self.template(word) if word in words else word

    def pgettext(self, context: str, text: str, /, **values: object) -> str:
        """Return a message whose meaning is shown by a context, which is not part of it."""
        return self._translations.pgettext(context, text).format(**values)

    def ngettext(self, one: str, many: str, number: int, /, **values: object) -> str:
        """Return a message that agrees with a number, its `{number}`."""
        return self._translations.ngettext(one, many, number).format(number=self.number(number), **values)

    def number(self, value: int) -> str:
        """Return a number with its thousands separated."""
        return f"{value:,}".replace(",", self.pgettext("thousands separator", ","))

    def decimal(self, value: float, digits: int) -> str:
        """Return a number with this many digits after the decimal point."""
        return f"{value:.{digits}f}".replace(".", self.pgettext("decimal separator", "."))

    def day(self, at: date) -> str:
        """Return a date in a sentence."""
        return self.pgettext("date", "{year}-{month_number}-{day_number}", **self._fields(at))

    def day_and_time(self, at: datetime) -> str:
        """Return a date in a sentence with its time of day."""
        return self.pgettext("date with time", "{date} {time}", date=self.day(at), time=f"{at:%H:%M}")

    def full_date(self, at: date) -> str:
        """Return a date with its day of the week."""
        return self.pgettext("date", "{weekday} {day} {month} {year}", **self._fields(at))

    def listed(self, names: Sequence[str]) -> str:
        """Return names as a sentence lists them; there is at least one."""
        *others, last = names
        return self.gettext("{names} and {last}", names=", ".join(others), last=last) if others else last

    def _fields(self, at: date) -> Mapping[str, str]:
        months = self.pgettext("months in a date", "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec").split()
        weekdays = self.pgettext("days of the week, Monday first", "Mon Tue Wed Thu Fri Sat Sun").split()
        return {
            "year": f"{at.year:04}",
            "month": months[at.month - 1],
            "month_number": f"{at.month:02}",
            "day": str(at.day),
            "day_number": f"{at.day:02}",
            "weekday": weekdays[at.weekday()],
        }


class Catalogue:
    """The messages in every language that has a file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("*.po"))}
        self._messages = {ENGLISH: Messages(ENGLISH, NullTranslations())}

    @property
    def languages(self) -> tuple[str, ...]:
        """Return all languages, English first."""
        return (ENGLISH, *self._paths)

    def messages(self, language: str | None) -> Messages:
        """Return the messages in a language, in English if it is unknown or has no file."""
        if language not in self._messages and language in self._paths:
            compiled = polib.pofile(self._paths[language].read_text(encoding="utf-8")).to_binary()
            self._messages[language] = Messages(language, GNUTranslations(BytesIO(compiled)))
        return self._messages.get(language or ENGLISH, self._messages[ENGLISH])

    def every(self, text: str) -> tuple[str, ...]:
        """Return a message without values in every language."""
        return tuple(self.messages(language).gettext(text) for language in self.languages)


@cache
def catalogue() -> Catalogue:
    """Return the product's own catalogue."""
    return Catalogue(FOLDER)


def messages_for(text: str) -> Messages:
    """Return the messages in the language of a text; in English if the text does not show its language."""
    return catalogue().messages(text_language(text))

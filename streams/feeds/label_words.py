"""The words that labels add to words of the texts, in the language of the texts: made, and found again in labels.

Invariant: a stored label is read in every language, since it may be older than the release, and its texts may change.
"""

from __future__ import annotations

import re
from functools import cache

from highwater.streams.messages import Messages, catalogue, gettext_noop

_MIXED = gettext_noop("Mixed")
_MIXED_WORDS = gettext_noop("Mixed: {words}")
_EXAMPLES = gettext_noop("{subject}, e.g. {examples}")
_MORE = gettext_noop("{subjects} and {number} more")
_OTHER = gettext_noop("Other")
_FIELD = re.compile(r"\\\{(\w+)\\\}")
# Distinguishes two labels that are else the same.
NUMBERED = re.compile(r" \(\d+\)$")


def mixed(words: str, messages: Messages) -> str:
    """Return the label of a cluster without a subject; `words` that together cover most of it, or none."""
    return messages.gettext(_MIXED_WORDS, words=words) if words else messages.gettext(_MIXED)


def words_of_mixed(label: str) -> str | None:
    """Return the words of the label of a cluster without a subject; None: it has one."""
    if label in _every(_MIXED):
        return ""
    found = _found(_MIXED_WORDS, label)
    return None if found is None else found["words"]


def is_mixed(label: str) -> bool:
    """Return whether a label says that its cluster has no subject."""
    return words_of_mixed(label) is not None


def with_examples(subject: str, examples: str, messages: Messages) -> str:
    """Return the label of a subject and its examples, of which there may be none."""
    return messages.gettext(_EXAMPLES, subject=subject, examples=examples) if examples else subject


def without_examples(label: str) -> tuple[str, str]:
    """Return the subject of a label, and its examples."""
    found = _found(_EXAMPLES, label)
    return (label, "") if found is None else (found["subject"], found["examples"])


def with_more(subjects: str, number: int, messages: Messages) -> str:
    """Return the name of a theme that lists subjects of its clusters, and how many more clusters it has."""
    return messages.gettext(_MORE, subjects=subjects, number=number)


def other(messages: Messages) -> str:
    """Return the name of the theme of clusters that no other theme has."""
    return messages.gettext(_OTHER)


def is_other(name: str) -> bool:
    """Return whether a theme is that of what is left over; the others are subjects."""
    return name in _every(_OTHER)


def without_more(name: str) -> str:
    """Return the name of a theme without the number of clusters that it does not list."""
    numbered = NUMBERED.search(name)
    mark = "" if numbered is None else numbered.group()
    found = _found(_MORE, name.removesuffix(mark))
    return name if found is None else f"{found['subjects']}{mark}"


def language_of_label(label: str) -> str | None:
    """Return the language of the words that a label adds to those of its texts; None: it adds none."""
    plain = NUMBERED.sub("", label)
    every = catalogue()
    for language in every.languages:
        if plain in map(every.messages(language).gettext, (_MIXED, _OTHER)):
            return language
        if any(_pattern(text, language).fullmatch(plain) for text in (_MIXED_WORDS, _EXAMPLES, _MORE)):
            return language
    return None


def _found(text: str, label: str) -> re.Match[str] | None:
    found = (_pattern(text, language).fullmatch(label) for language in catalogue().languages)
    return next(filter(None, found), None)


def _every(text: str) -> tuple[str, ...]:
    return catalogue().every(text)


@cache
def _pattern(text: str, language: str) -> re.Pattern[str]:
    """Return what a message matches: the first place where its words stand, and any values around them."""
    template = re.escape(catalogue().messages(language).template(text))
    return re.compile(_FIELD.sub(lambda field: rf"(?P<{field[1]}>{_VALUES.get(field[1], '.*?')})", template), re.DOTALL)


_VALUES = {"number": r"\d+"}

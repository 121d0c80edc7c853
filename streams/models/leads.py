"""The lead of a text: the last of its titles with its first sentence, which give a reader the subject of the text.

Invariant: a pure function of the text; the sentence has at most `LEAD_CHARACTERS_MAX`. Only a text below a title has a
lead: one without may be cut from the middle of something. A text that does not begin with a sentence (code, a list, a
table) has none.
"""

from __future__ import annotations

import re

# A longer first sentence contains more than the subject.
LEAD_CHARACTERS_MAX = 300
# A title is one line; a longer one is a paragraph.
_TITLE_CHARACTERS_MAX = 200
# "No argument." does not name the subject, and "e.g." ends no sentence.
_WORDS_MIN, _CHARACTERS_MIN = 3, 12
# The title of a chunk is the path of its headings; the last names its subject.
_PATH = " > "
_PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE = re.compile(rf".{{{_CHARACTERS_MIN},{LEAD_CHARACTERS_MAX}}}?[.!?](?=\s|$)")
_RULE = re.compile(r"^[ \t]*[-=~^\"#*+.`|]{3,}[ \t]*$", re.MULTILINE)
# A heading may be a question. What ends with a colon introduces something.
_NOT_OF_TITLES = (".", ":")
_NO_PROSE = (">>>", "..", ":", "@", "|", "#", "`", "- ", "* ", "+ ")


def lead_of(text: str) -> str:
    """Return the title and the first sentence of a text; empty if it lacks one of them."""
    title, *rest = _PARAGRAPHS.split(text.strip(), maxsplit=2)
    if not rest or not _is_title(title.strip()):
        return ""
    sentence = _first_sentence(rest[0])
    last = title.strip().rpartition(_PATH)[2]
    return f"{last}{' ' if last.endswith(('?', '!')) else ': '}{sentence}" if sentence else ""


def _is_title(paragraph: str) -> bool:
    """One line that is not a sentence."""
    return len(paragraph) <= _TITLE_CHARACTERS_MAX and "\n" not in paragraph and not paragraph.endswith(_NOT_OF_TITLES)


def _first_sentence(paragraph: str) -> str:
    """Return the first sentence of prose; empty if there is none."""
    if _RULE.search(paragraph) or paragraph.startswith(_NO_PROSE):
        return ""
    line = " ".join(paragraph.split())
    found = _SENTENCE.match(line)
    is_whole = len(line) <= LEAD_CHARACTERS_MAX and not line.endswith(":")
    sentence = found.group() if found else line if is_whole else ""
    return sentence if len(sentence.split()) >= _WORDS_MIN else ""

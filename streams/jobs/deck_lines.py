"""Which lines of a document say something on a slide of the built-in model, and how they are shortened to fit it.

Invariant: a line is judged by itself, and is shown as it is written or up to the end of a clause.
"""

from __future__ import annotations

import re

from highwater.streams.documents.prose import Table, row_text
from highwater.streams.letters import cut_to, is_mark, runs_in, width_of, without_ending

# Bullets that fill a slide.
BULLETS = 5
SENTENCE_CHARACTERS_MIN, SENTENCE_CHARACTERS_MAX = 20, 240
_WORD = re.compile(r"[^\W\d_][\w-]*")
# Where a sentence could have ended.
_STOP = re.compile(r"[;:](?=\s)")
_CLAUSE_CHARACTERS_MIN = 60
# What ends a sentence, and what may follow it.
_SENTENCE_MARKS, _CLOSING = frozenset(".!?;\u2026\u3002\uff01\uff1f\u0964\u061f\u06d4"), ")]\"'\u201d\u2019\u00bb\u300d"
# The form of a change note: such a line begins with a small letter and is complete.
_FILED = re.compile(r"\w+(?:\([^)]*\))?!?:\s")
# A shorter word names little: `the`, `and`, `not`.
_WORD_CHARACTERS_MIN = 4
# A sentence that begins like this depends on the one before and says less alone; one that ends like this, on the one
# after.
_LEANING = re.compile(
    r"\(|(?:this(?! (?:book|document|guide|manual|page|paper|project|report)\b)"
    r"|that|these|those|it|its|they|them|he|she|but|and|so|or|then|thus|hence|however|therefore|also|instead|otherwise"
    r"|second|third|next|finally|here|both|neither|either|note|let.s|you can see|such|similarly|likewise|furthermore"
    r"|moreover|conversely|in particular|in addition|in other words|for (?:example|instance|this|that)|as (?:an? exception|above"
    r"|before|a result|such)|on the other hand|one other thing|other)\b",
    re.IGNORECASE,
)
# A subject that the sentence before it has named.
_PRONOUN = re.compile(r"(?:it|its|they|their|he|she|this|these)\b", re.IGNORECASE)
_LEANING_ON = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|like this|like that|as follows|for example|for instance)|:)\W*\Z", re.IGNORECASE
)
_SUBORDINATE = re.compile(
    r"(?:although|after|as|at|because|before|by|during|for|from|if|in|of|on|once|since|to|unless|until|when|where|while|with)\b",
    re.IGNORECASE,
)
# Addresses, which are useless on a slide; `name at host.org` hides one from robots.
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+|[\w.+-]{1,64}(?:@|\sat\s)(?:[\w-]{1,64}\.){1,8}\w{2,20}")
# More than this share of a line says where a thing is rather than what it is.
_ADDRESS_SHARE_MAX = 0.33
_EMPTY_BRACKETS = re.compile(r"\(\s*\)|\[\s*\]")
# A line of a list of references, and a sentence that only refers elsewhere.
_REFERENCE = re.compile(r"\[\w{1,20}\]\s")
_POINTER = re.compile(r"(?:see|refer to|for more|for details|more details)\b.{0,100}", re.IGNORECASE)
# Sections about a document rather than its subject, by their headings.
_APPARATUS = frozenset(
    (
        *("contents", "table of contents", "index", "list of figures", "list of tables", "references", "bibliography"),
        *("works cited", "copyright", "copyright notice", "license", "licence", "legal notice", "acknowledgements"),
        *("acknowledgments", "inhalt", "inhaltsverzeichnis", "literatur", "literaturverzeichnis", "sommaire"),
        *("table des matières", "références", "bibliographie", "índice", "referencias", "bibliografía"),
        *("содержание", "оглавление", "литература", "список литературы", "目录", "目次", "参考文献"),
        *("copying", "copying information", "how to apply these terms", "contents of this page", "navigation"),
        *("agenda", "thank you", "thanks", "questions", "any questions", "q&a", "vielen dank", "fragen", "merci"),
    )
)
# The name of a licence as a heading: "GNU Free Documentation License", "The MIT License (MIT)".
_LICENCE = re.compile(r"(?:[\w.()-]+ ){1,5}licen[cs]e(?: [\w.()]+){0,2}", re.IGNORECASE)
# Sections that say what a document is about, by their headings.
_INTRODUCTIONS = frozenset(
    (
        *("introduction", "overview", "about", "abstract", "summary", "description", "einleitung", "einführung"),
        *(
            "überblick",
            "zusammenfassung",
            "beschreibung",
            "présentation",
            "résumé",
            "introducción",
            "resumen",
            "introduzione",
        ),
        *("introdução", "введение", "обзор", "简介", "概述", "引言", "はじめに", "概要", "序論", "소개", "개요"),
    )
)
# Lines about the rights to a document.
_LEGAL = re.compile(
    r"copyright (?:©|\(c\)|(?:19|20)\d\d)|© ?(?:19|20)\d\d|all rights reserved|without (?:any |even the implied )?warrant"
    r"|copy of the licen[cs]e"
    r"|in no event shall|liable for any|merchantab|provided .{0,40}[\"\u201c]as is|to endorse or promote|patented algorithm"
    r"|you (?:can|may) redistribute|permission (?:is|to) .{0,60}\b(?:granted|copy|distribute)|you should have received a copy",
    re.IGNORECASE,
)
# Letters that stand apart, as in programs and formulas of a PDF: this share of its words.
_SPACED_SHARE_MAX = 0.4
# A mark of a list of references, after a word.
_CITED = re.compile(r"(?<=\w)\[[A-Z][\w.-]{1,20}\]")
# Words in most sentences that name no subject of a section.
_COMMON = frozenset(
    "about does from have into more some than that their them then they this what when where which with".split()  # noqa: SIM905
)
# Kinds of changes (conventionalcommits.org) and of remarks, which are no subject.
_CHANGE = re.compile(
    r"(?:build|bump|chore|ci|deps|docs?|feat|fix|minor|perf|refactor|release|revert|style|tests?"
    r"|caution|example|help|important|note|tip|todo|warning)\b",
    re.IGNORECASE,
)
# A definition or a paragraph with its subject before it.
_TERM = re.compile(r"([^\s:.][^:]{0,38}):\s")
# What a formula begins with that is cut at the end of a line.
_OF_FORMULA = "=+*|)]},;:\u00b7&^~<>\u2264\u2265"
# Marks of programs, and their share of the characters of a line that is one; an empty call in prose has two.
_CODE_MARK, _CODE_SHARE_MAX = re.compile(r"[{};=<>$\\]|\((?!\w)|\[\W|::|->|//|#!?\["), 0.06
_PROMPT = re.compile(r"(?:[$%#]|>>>|C:\\\S*>)\s\S")
_PROTOTYPE = re.compile(r"\w \*{0,2}\w{1,80} ?\([^)]{0,200}\b(?:char|const|int|size_t|struct|unsigned|void)\b")
# A line of fewer words is a name or a call, not a statement.
_WORDS_MIN = 4
# A line of fewer letters is a number, a mark or a name.
_LETTERS_MIN, _LETTERS_SHARE_MIN = 10, 0.4
# Numbers before headings: `1.`, `2.3`, `IV.`
_HEADING_NUMBER = re.compile(
    r"^(?:(?:chapter|section|part)\s+(?:\d+|[IVXA-H]+)[.:]|appendix\s+(?:\d+|[IVXA-H]+)[.:]?|[A-H](?:\.\d+)+[.)]?"
    r"|\d+(?:\.\d+)*[.)]?|[IVX]+\.)\s+(?=\S)",
    re.IGNORECASE,
)


def says_something(text: str) -> bool:
    """Return whether a line is meaningful alone: no address, page number, reference, or mere pointer to another place."""
    bare, addresses = _ADDRESS.subn("", text)
    letters = sum(letter.isalpha() or is_mark(letter) for letter in bare)
    return (
        (len(text) if text.isascii() else width_of(text)) >= SENTENCE_CHARACTERS_MIN
        and addresses < 2
        and len(text) - len(bare) < _ADDRESS_SHARE_MAX * len(text)
        and letters >= max(_LETTERS_MIN, _LETTERS_SHARE_MIN * len(bare.replace(" ", "")))
        and not _REFERENCE.match(text)
        and not _POINTER.fullmatch(text)
        and not _LEGAL.search(text)
        and not _is_spaced(text)
        and not _is_code(text)
        and text[-1] not in ":\uff1a"  # the list that it introduces is not on the slide
    )


def _is_spaced(text: str) -> bool:
    """Return whether most words are single letters."""
    words = text.split()
    return text.isascii() and sum(len(word) == 1 for word in words) > _SPACED_SHARE_MAX * len(words)


def _is_code(text: str) -> bool:
    """Return whether a line has the marks of a program, begins as a command in a terminal does, or declares a function."""
    is_code = _PROMPT.match(text) is not None or _PROTOTYPE.search(text) is not None
    return is_code or len(_CODE_MARK.findall(text)) > _CODE_SHARE_MAX * len(text)


def depends(text: str) -> bool:
    """Return whether a line says little without the one before or after it."""
    return _LEANING.match(text) is not None or _LEANING_ON.search(text) is not None


def continues(text: str) -> bool:
    """Return whether a line is clear behind the one before it, whose subject it has as a pronoun."""
    return _PRONOUN.match(text) is not None and _LEANING_ON.search(text) is None


def is_subordinate(text: str) -> bool:
    """Return whether a text begins like a clause that needs another one."""
    return _SUBORDINATE.match(text) is not None


def stands_alone(text: str) -> bool:
    """Return whether a line is a statement that is clear by itself."""
    is_said = len(text.split()) >= _WORDS_MIN or not text.isascii()
    is_within = text[0].islower() and _FILED.match(text) is None and _TERM.match(text) is None
    is_cut = is_within or text[0] in _OF_FORMULA
    return is_said and not is_cut and not depends(text) and text.rstrip(_CLOSING)[-1:] not in ("?", "!", "\u2026")


def term_of(text: str) -> str | None:
    """Return what a line defines or is about, if it stands before it."""
    found = _TERM.match(text)
    return None if found is None or _CHANGE.match(text) else found[1]


def is_apparatus(heading: str) -> bool:
    """Return whether a section is about the document rather than its subject, by its heading."""
    bare = heading_of(heading, SENTENCE_CHARACTERS_MAX)
    return bare.rstrip("!?").casefold() in _APPARATUS or _LICENCE.fullmatch(bare) is not None


def is_introduction(heading: str) -> bool:
    """Return whether a section says what its document is about, by its heading."""
    return heading_of(heading, SENTENCE_CHARACTERS_MAX).casefold() in _INTRODUCTIONS


def rows_of(table: Table) -> list[str]:
    """Return the first rows of a table as lines, each cell after its header; none of a table with a row too long for a
    line.
    """
    lines = [row_text(table.header, row) for row in table.rows[:BULLETS]]
    return lines if all(len(line) <= SENTENCE_CHARACTERS_MAX for line in lines) else []


def heading_of(text: str, characters_max: int) -> str:
    """Return a heading without its number and addresses."""
    bare = _EMPTY_BRACKETS.sub("", _ADDRESS.sub("", _HEADING_NUMBER.sub("", text)))
    return cut_line(bare.rstrip(" .:\u3002"), characters_max) or cut_line(text, characters_max)


def is_marked(text: str) -> bool:
    """Return whether it ends as a sentence does."""
    return text.rstrip(_CLOSING)[-1:] in _SENTENCE_MARKS


def words_in(text: str) -> list[str]:
    """Return the words that name a subject, in small letters, without endings."""
    found = (_WORD.findall if text.isascii() else runs_in)(text.casefold())
    return [without_ending(word) for word in found if len(word) >= _WORD_CHARACTERS_MIN and word not in _COMMON]


def clause(sentence: str) -> str:
    """Return a sentence that fits a bullet, without marks of references: all of it, or up to the end of a clause."""
    line = " ".join(_CITED.sub("", sentence).split())
    if len(line) <= SENTENCE_CHARACTERS_MAX:
        return line
    parts = [line[: found.start()] for found in _STOP.finditer(line, 0, SENTENCE_CHARACTERS_MAX)]
    whole = [part for part in parts if len(part) >= _CLAUSE_CHARACTERS_MIN and part.count("(") == part.count(")")]
    return f"{whole[-1]}." if whole else cut_line(line, SENTENCE_CHARACTERS_MAX)


def cut_line(text: str, characters_max: int) -> str:
    """Return a text as one line within a limit."""
    return cut_to(" ".join(text.split()), characters_max)

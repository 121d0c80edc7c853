"""Reads a window's texts, each once, for the terms that can be keywords and the phrases that can be labels.

Invariant: the result uses the texts' own spelling, and depends on the set of texts alone, not on their order.

A *word* is the text between spaces, without punctuation: `KafkaConsumer`, `@types/node`. Its *parts* are the words in
it, split as in `tokens`. A *term* is a part, two parts in a row, or all parts of a word: `topicId`, `topic_id` and
`topic id` contain the same three. Counting uses stems; what is shown is the window's most common spelling.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.sparse import sparse_rows
from highwater.streams.feeds.tokens import (
    FAINT_WORDS,
    HOLLOW_ELSEWHERE,
    HOLLOW_WORDS,
    STOP_WORDS,
    clean,
    is_word,
    spelled_words_of,
    stem_of,
)
from highwater.streams.languages import ENGLISH, function_words_in, language_of, script_language

# Words read of one text: its beginning shows its subject. A headline has a dozen, a paragraph a hundred.
TEXT_WORDS_MAX = 100
# Characters read for them, at ten per word with its space.
TEXT_CHARACTERS_READ_MAX = 1_000
# A few sentences show the language.
LANGUAGE_CHARACTERS_READ_MAX = 400
# A word of more parts than this is a path or an expression: its parts and pairs are shorter.
WORD_PARTS_MAX = 5

# Texts and words that a process remembers: two windows of the largest size, about 100 MB with all their data.
LEXICON_WORDS_MAX = 100_000
LEXICON_CHARACTERS_MAX = 8_000_000

# Occurrences of a term that decide its spelling, evenly spread: enough to find the most common one.
PLACES_SEEN_MAX = 100
# A word of so few letters that a tenth of its occurrences have in capitals is an abbreviation (UI, CI, DLQ).
CAPITALS_MAX = 4
CAPITALS_SHARE_MIN = 0.1

# "feat(api)!: ...", "MINOR: ...", "[ci] ...": the filing prefix of a change note, not its content.
_FILED = r"build|chore|ci|docs?|feat|feature|fix|hotfix|minor|misc|perf|refactor|revert|style|tests?|trivial|wip"
_FILING = re.compile(
    rf"^\W*(?:(?P<kind>{_FILED})(?:\((?P<scope>[^)]*)\))?!?\s*:|\[(?P<tag>{_FILED})\]:?)\s*", re.IGNORECASE
)
# The kinds among them that name the subject of a note. A scope always does: fix(ui), chore(deps).
_SUBJECT_KINDS = frozenset(("build", "ci", "doc", "docs", "perf", "revert", "test", "tests"))
# "...; reviewed by A and B": the signature, not the content.
_SIGNED = re.compile(
    r"(?<![\s;,.(-])[\s;,.(-]*+\b(?:(?:patch(?:ed)?|reviewed|authored|co-authored|signed-off)[ -]by\b|reviewers?:|author:)",
    re.IGNORECASE,
)
_EDGES = "()[]{}<>\"'`\u201c\u201d\u2018\u2019.,;:!?*#~=|\u2026-_/\\"
_BREAK = re.compile(r"[;:,.!?)\]}\u2014\u2013]$")
_OPENING = ("(", "[", "{")
# What joins the parts of one word; anything else separates two words.
_JOINTS = frozenset(("", "-", "_", ".", "/", "::", "'", "\u2019"))

STOP, FAINT, TELLING = 0, 1, 2
# Numbers that are not words: the break between two words that are not adjacent, and the end of a filing prefix.
BREAK, FILED = 0, 1
Stems = tuple[str, ...]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


def kind_of(stem: str) -> int:
    """Return whether a stem is a function word (`STOP`), says how and not what (`FAINT`), or says something (`TELLING`)."""
    if stem in STOP_WORDS or stem in HOLLOW_ELSEWHERE or stem[:1] in _NO_STEM:
        return STOP
    return FAINT if stem in _FAINT_STEMS else TELLING


# The stem of a function word of another language than English begins with it.
FOREIGN = "\1"
_NO_STEM = ("", FOREIGN)
_FAINT_STEMS = frozenset(chain.from_iterable((word, stem_of(word)) for word in FAINT_WORDS | HOLLOW_WORDS))


def unfiled(text: str) -> str:
    """Return a text without its filing prefix and signature, unless nothing else is in it."""
    told = _FILING.sub("", text)
    signed = _SIGNED.search(told)
    told = told[: signed.start()] if signed else told
    return told if any(map(str.isalpha, told)) else text


def filed_as(text: str) -> str:
    """Return what a text's filing prefix says about its subject: "ui" of `fix(ui): …`, "docs" of `docs: …`, "" of `chore: …`."""
    found = _FILING.match(text)
    if found is None:
        return ""
    kind = (found["kind"] or found["tag"] or "").lower()
    return f"{kind if kind in _SUBJECT_KINDS else ''} {found['scope'] or ''}".strip()


def stems_in(written: str) -> list[str]:
    """Return the telling stems of a label, in order, without single letters (the K of KRaft)."""
    stems = (stem_of(written[first:last].lower()) for first, last in spelled_words_of(written))
    return [stem for stem in stems if len(stem) > 1 and kind_of(stem) == TELLING]


@dataclass(frozen=True, slots=True)
class _Word:
    """A word as `written`, the places of its parts, and their stems."""

    written: str
    spans: tuple[tuple[int, int], ...]
    stems: Stems

    def shown(self, first: int, last: int) -> str:
        """Return parts `first` to `last` (included) as written; a capital that only begins a word becomes lower case."""
        written = self.written[self.spans[first][0] if first else 0 : self.spans[last][1]]
        return written if written[1:] != written[1:].lower() else written.lower()


_NO_WORD = _Word("", ((0, 0),), ("",))
_END_OF_FILING = _Word("\0", ((0, 0),), ("",))


class _Lexicon:
    """Everything read before, in any window: words by number, and the numbers of a text's words. It saves time and
    affects no result.

    A window has on average one new text in a hundred, and users share channels.
    """

    def __init__(self) -> None:
        self.words = [_NO_WORD, _END_OF_FILING]
        self._numbers: dict[tuple[str, tuple[tuple[int, int], ...], Stems], int] = {}
        self._codes_of: dict[tuple[str, str | None], tuple[int, ...]] = {}
        self._languages: dict[str, str | None] = {}
        self._lines: dict[tuple[str, str | None], tuple[int, ...]] = {}
        self._characters = 0  # of the texts

    @property
    def is_full(self) -> bool:
        """Return whether it is so large that another is begun."""
        return (
            len(self.words) > LEXICON_WORDS_MAX
            or len(self._codes_of) > LEXICON_WORDS_MAX
            or self._characters > LEXICON_CHARACTERS_MAX
        )

    def language(self, text: str) -> str | None:
        """Return the language of a text; None if it does not show it."""
        if text not in self._languages:
            begin = text[:LANGUAGE_CHARACTERS_READ_MAX].lower().split()
            self._languages[text] = language_of([raw.strip(_EDGES) for raw in begin])
        return self._languages[text]

    def line(self, text: str, language: str | None) -> tuple[int, ...]:
        """Return the numbers of a text's words in order, `BREAK` where punctuation, a number or an id is between them.

        The filing prefix comes first, before `FILED`.
        """
        found = self._lines.get((text, language))
        if found is None:
            cleaned = clean(text[:TEXT_CHARACTERS_READ_MAX])
            filed = filed_as(cleaned)
            codes = self._codes(unfiled(cleaned), language)
            if filed:
                codes = [*self._codes(filed.replace(",", " "), ENGLISH), FILED, *codes]
            found = self._lines[text, language] = tuple(codes if any(codes) else self._codes(cleaned, language))
            self._characters += len(text)
        return found

    def _codes(self, cleaned: str, language: str | None) -> list[int]:
        codes: list[int] = []
        for raw in cleaned.split()[:TEXT_WORDS_MAX]:
            found = self._codes_of.get((raw, language))
            if found is None:
                found = self._codes_of[raw, language] = tuple(self._numbered(raw, function_words_in(language)))
            codes += found
        return codes

    def _numbered(self, raw: str, foreign: frozenset[str]) -> list[int]:
        """Return the words between two spaces: one, or several if something other than a joint separates them."""
        stripped = raw.strip(_EDGES)
        if stripped == raw and raw.isalpha() and raw.islower() and raw.isascii() and is_word(raw):
            return [self._number(raw, [(0, len(raw))], foreign)]
        words: list[list[tuple[int, int]]] = []
        for span in spelled_words_of(stripped):
            if words and stripped[words[-1][-1][1] : span[0]] in _JOINTS:
                words[-1].append(span)
            else:
                words.append([span])
        codes = [BREAK] if raw.startswith(_OPENING) else []
        for spans in words:
            codes += [self._number(stripped, spans, foreign), BREAK]
        is_open = words and words[-1][-1][1] == len(stripped) and not _BREAK.search(raw)
        return codes[:-1] if is_open else codes or [BREAK]

    def _number(self, stripped: str, spans: list[tuple[int, int]], foreign: frozenset[str]) -> int:
        begin = spans[0][0]
        begin -= stripped[:begin].endswith(("@", "."))  # @types/node, .github
        written = stripped[begin : spans[-1][1]]
        inside = tuple((first - begin, last - begin) for first, last in spans)
        parts = [written[first:last].lower() for first, last in inside]
        stems = tuple(FOREIGN + part if part in foreign else stem_of(part) for part in parts)
        # The neighbouring words may split a word differently (`99fooACLs`), so all of it together is one word.
        number = self._numbers.get((written, inside, stems))
        if number is None:
            number = self._numbers[written, inside, stems] = len(self.words)
            self.words.append(_Word(written, inside, stems))
        return number


_lexicon = _Lexicon()


def _current_lexicon() -> _Lexicon:
    """Return the lexicon of this process, or a new one if that is full. Users of the old one keep it."""
    global _lexicon  # noqa: PLW0603 - a memory of this process; what is read is the same without it
    if _lexicon.is_full:
        _lexicon = _Lexicon()
    return _lexicon


class Reading:
    """What texts contain.

    `texts`: the distinct ones that are not empty, sorted; `number_of` gives the index of one. `holds` csr (texts,
    terms), 1 where a text contains a term; terms are numbered from the longest to the shortest, each kind
    alphabetically. `is_telling` and `is_single` bool (terms,): it can be a keyword; it is a part. `parts`: all their
    parts; `is_filing` bool (parts,): it belongs to a filing prefix. `language` names the language of some texts.
    """

    def __init__(self, texts: Iterable[str | None]) -> None:
        """Read texts of any number and size; at most `TEXT_CHARACTERS_READ_MAX` characters of each."""
        self.texts = tuple(sorted({text for text in texts if text}))
        self.number_of = {text: number for number, text in enumerate(self.texts)}
        lexicon = _current_lexicon()
        languages = [lexicon.language(text) for text in self.texts]
        known = Counter(language for language in languages if language)
        told = [
            language or script_language(text[:LANGUAGE_CHARACTERS_READ_MAX].lower())
            for text, language in zip(self.texts, languages, strict=True)
        ]
        self._languages = (None, *sorted({language for language in told if language}))
        self._language_of: IntArray = np.array([self._languages.index(one) for one in told], dtype=np.int64)
        # A title of three words does not show its language, and is read in that of most others.
        usual = min(known, key=lambda language: (-known[language], language), default=None)
        lines = [lexicon.line(text, language or usual) for text, language in zip(self.texts, languages, strict=True)]
        lengths = np.array([len(line) + 1 for line in lines], dtype=np.int64)
        # Each begins with a break: words of two texts are never adjacent.
        codes = np.fromiter(chain.from_iterable((BREAK, *line) for line in lines), np.int64, int(lengths.sum()))
        numbers, codes = np.unique(np.append(codes, (BREAK, FILED)), return_inverse=True)
        self._words: list[_Word] = [lexicon.words[number] for number in numbers.tolist()]
        self.parts = Parts.of(self._words, codes[:-2], lengths)
        self.is_filing = _is_filing(self._words, self.parts, len(self.texts))
        term_of, at, self._terms = _terms(self._words, self.parts)
        held = distinct(self.parts.text[at] * len(self._terms) + term_of)
        text, term = np.divmod(held, max(1, len(self._terms)))
        bounds = np.searchsorted(text, np.arange(len(self.texts) + 1))
        self.holds = sparse_rows((np.ones(len(held)), term, bounds), shape=(len(self.texts), len(self._terms)))
        self.is_telling: BoolArray = np.array(
            [max(map(kind_of, stems)) == TELLING for stems in self._terms], dtype=bool
        )
        self.is_single: BoolArray = np.array([len(stems) == 1 for stems in self._terms], dtype=bool)
        # A part of hyphenated words (the pre of pre-commit) is not a keyword.
        is_cut = self.parts.hyphen_before[at] | self.parts.hyphen_after[at]
        times = np.bincount(term_of, minlength=len(self._terms))
        self.is_telling &= ~self.is_single | (2 * np.bincount(term_of, is_cut, minlength=len(self._terms)) <= times)
        self._forms_of: dict[int, Counter[str]] = {}
        order = np.argsort(term_of, kind="stable")
        self._term_of, self._at = term_of[order], at[order]

    def language(self, numbers: IntArray, copies: FloatArray) -> str | None:
        """Return the language of more than half of these texts, each counted with its copies; None: they have none."""
        counts = np.bincount(self._language_of[numbers], copies, minlength=len(self._languages))
        most = int(counts.argmax())
        return self._languages[most] if 2 * counts[most] > copies.sum() else None

    def held(self, numbers: IntArray, terms: Sequence[int] | IntArray) -> FloatArray:
        """Return which of these texts contain which of these terms, 1 or 0: (texts, terms)."""
        own = self.holds[numbers]
        place = np.full(self.holds.shape[1], -1, dtype=np.int64)
        place[terms] = np.arange(len(terms))
        column = place[own.indices]
        found: FloatArray = np.zeros((len(numbers), len(terms)))
        found[np.repeat(np.arange(len(numbers)), np.diff(own.indptr))[column >= 0], column[column >= 0]] = 1.0
        return found

    def stems_of(self, term: int) -> Stems:
        """Return the stems of a term's parts."""
        return self._terms[term]

    def shown(self, term: int) -> str:
        """Return a term in the texts' most common spelling; of equally common ones the first alphabetically."""
        forms = self._forms(term)
        return min(forms, key=lambda form: (-forms[form], form))

    def _forms(self, term: int) -> Counter[str]:
        if (known := self._forms_of.get(term)) is not None:
            return known
        first, last = np.searchsorted(self._term_of, [term, term + 1])
        at = self._at[first:last]
        said = at[~self.is_filing[at]]  # texts filed under `ui` write UI
        at = said if len(said) else at
        at = at[:: 1 + len(at) // PLACES_SEEN_MAX]
        word, place = self.parts.word, self.parts.place
        following = word[np.minimum(at + 1, len(word) - 1)]
        written = Counter(zip(word[at].tolist(), place[at].tolist(), following.tolist(), strict=True))
        forms: Counter[str] = Counter()
        for (own, first, after), times in written.items():
            forms[self._form(own, first, after, len(self._terms[term]))] += times
        self._forms_of[term] = forms
        return forms

    def capitals(self, at: int) -> str:
        """Return the spelling of a part in capitals (`UI`) if the texts use it often enough, else ""."""
        term = len(self._terms) - len(self.parts.stems) + int(self.parts.stem[at])
        forms = self._forms(term)
        written = next((form for form in sorted(forms) if form.isupper() and len(form) <= CAPITALS_MAX), "")
        return written if forms[written] >= CAPITALS_SHARE_MIN * forms.total() else ""

    def whole(self, at: int) -> str:
        """Return the word that a part belongs to; a capital that only begins it becomes lower case."""
        word = self._words[int(self.parts.word[at])]
        return word.shown(0, len(word.spans) - 1)

    def written(self, first: int, last: int) -> str:
        """Return the adjacent parts from `first` to `last` (included), as they are written there."""
        said: list[str] = []
        at = first
        while at <= last:
            word, place = self._words[int(self.parts.word[at])], int(self.parts.place[at])
            if place == 1 and word.spans[0][1] == 1 and word.spans[1][0] == 1:
                place = 0  # the K of KRaft
            end = min(len(word.spans) - 1, int(self.parts.place[at]) + last - at)
            said.append(word.written[word.spans[place][0] if place else 0 : word.spans[end][1]])
            at += end - int(self.parts.place[at]) + 1
        return " ".join(said)

    def _form(self, own: int, place: int, following: int, size: int) -> str:
        """Return the spelling of a term of `size` parts that begins at this part of a word and may end in the next one."""
        word = self._words[own]
        if place + size <= len(word.spans):
            return word.shown(place, place + size - 1)
        return f"{word.shown(place, place)} {self._words[following].shown(0, 0)}"


@dataclass(frozen=True, slots=True)
class Parts:
    """Every part of every word of every text, in order, a break before each text: int (parts,) each.

    `text` and `word`: which; `place`: in its word; `stem`: its number among `stems`, which are sorted. `is_dotted`: a
    dot or slash precedes it in its word; `hyphen_before` and
    `hyphen_after`: a hyphen is beside it in its word. `word_size`: parts of its word.
    """

    stems: tuple[str, ...]
    text: IntArray
    word: IntArray
    place: IntArray
    stem: IntArray
    is_dotted: BoolArray
    hyphen_before: BoolArray
    hyphen_after: BoolArray
    word_size: IntArray

    @classmethod
    def of(cls, words: Sequence[_Word], codes: IntArray, lengths: IntArray) -> Parts:
        """Return the parts of the words of texts, one text after the other, and how many each text has, with its break."""
        stems = tuple(sorted({stem for word in words for stem in word.stems}))
        number = {stem: i for i, stem in enumerate(stems)}
        sizes = np.array([len(word.stems) for word in words], dtype=np.int64)
        stem_of_part = np.array([number[stem] for word in words for stem in word.stems], dtype=np.int64)
        dotted = np.array(
            [bool(a) and word.written[a - 1] in "./" for word in words for a, _ in word.spans], dtype=bool
        )
        before = np.array([word.written[a - 1 : a] == "-" for word in words for a, _ in word.spans], dtype=bool)
        after = np.array([word.written[b : b + 1] == "-" for word in words for _, b in word.spans], dtype=bool)
        repeats = sizes[codes]
        word = np.repeat(codes, repeats)
        place = np.arange(len(word)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        part = (np.cumsum(sizes) - sizes)[word] + place
        text = np.repeat(np.repeat(np.arange(len(lengths)), lengths), repeats)
        return cls(stems, text, word, place, stem_of_part[part], dotted[part], before[part], after[part], sizes[word])


def _terms(words: Sequence[_Word], parts: Parts) -> tuple[IntArray, IntArray, list[Stems]]:
    """Return every occurrence of a term, as its number and the place of its first part, and the stems of all terms by number."""
    long = sorted({word.stems for word in words if _is_long_term(word.stems)})
    long_number = {stems: number for number, stems in enumerate(long)}
    number_of_word = np.array([long_number.get(word.stems, -1) for word in words], dtype=np.int64)
    long_at = np.flatnonzero((parts.place == 0) & (number_of_word[parts.word] >= 0))
    pair_at = np.flatnonzero(_is_pair(parts))
    n = len(parts.stems)
    pairs, pair = np.unique(parts.stem[pair_at] * n + parts.stem[pair_at + 1], return_inverse=True)
    can_be_term = np.array([len(stem) > 1 and kind_of(stem) > STOP for stem in parts.stems], dtype=bool)
    single_at = np.flatnonzero(can_be_term[parts.stem])
    numbers = [
        number_of_word[parts.word[long_at]],
        len(long) + pair,
        len(long) + len(pairs) + parts.stem[single_at],
    ]
    terms = [*long, *((parts.stems[i], parts.stems[j]) for i, j in zip(*map(list, divmod(pairs, n)), strict=True))]
    return (
        np.concatenate(numbers),
        np.concatenate([long_at, pair_at, single_at]),
        [*terms, *((stem,) for stem in parts.stems)],
    )


def _is_filing(words: Sequence[_Word], parts: Parts, texts: int) -> BoolArray:
    """Return which parts precede the end of their text's filing prefix: bool (parts,)."""
    code = next((number for number, word in enumerate(words) if word is _END_OF_FILING), -1)
    ends = np.flatnonzero(parts.word == code)
    end_of_text = np.full(max(1, texts), -1, dtype=np.int64)
    end_of_text[parts.text[ends]] = ends
    is_filing: BoolArray = np.arange(len(parts.text)) < end_of_text[parts.text]
    return is_filing


def distinct(numbers: IntArray) -> IntArray:
    """Return distinct numbers in order; `np.unique` hashes them, which takes a hundred times as long for nearly sorted ones."""
    ordered = np.sort(numbers)
    return np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])


def _is_long_term(stems: Stems) -> bool:
    return 2 < len(stems) <= WORD_PARTS_MAX and max(map(kind_of, stems)) == TELLING


def _is_pair(parts: Parts) -> BoolArray:
    """Return whether a part and the next one form a term: bool (parts - 1,).

    Across a space two telling words do, if each is one part. Within a word of two parts one telling part is enough
    (`pre-commit`), and in a longer one both must be, with no dot or slash between.
    """
    kind = np.array([kind_of(stem) for stem in parts.stems], dtype=np.int8)[parts.stem]
    weaker, stronger = np.minimum(kind[:-1], kind[1:]), np.maximum(kind[:-1], kind[1:])
    within = parts.place[1:] > 0
    is_word = within & (parts.word_size[1:] == 2) & (weaker > STOP) & (stronger == TELLING)
    in_word = within & ~parts.is_dotted[1:] & (weaker == TELLING)
    across = ~within & (parts.word_size[:-1] == 1) & (parts.word_size[1:] == 1) & (weaker == TELLING)
    is_pair: BoolArray = (parts.stem[:-1] != parts.stem[1:]) & (is_word | in_word | across)
    return is_pair

"""Owns the reading of a window's texts: each once, for the terms that can be keywords and the phrases that can be labels.

Its law: what it gives stands in the texts as they write it, and depends on the set of texts alone, not on their order.

A *word* is what stands between spaces, without punctuation: `KafkaConsumer`, `@types/node`. Its *parts* are the words in
it, told from each other as in `tokens`. A *term* is a part, two parts in a row, or all parts of a word: `topicId`, `topic_id`
and `topic id` hold the same three. Counting goes by stems; what is shown is how the window's texts mostly write it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.sparse import sparse_rows
from highwater.streams.feeds.tokens import (
    FAINT_WORDS,
    HOLLOW_WORDS,
    STOP_WORDS,
    clean,
    is_word,
    spelled_words_of,
    stem_of,
)

PHRASE_WORDS_MAX = 6
# Words read of one text: what it is about stands at its beginning. A headline has a dozen, a paragraph a hundred.
TEXT_WORDS_MAX = 100
# Characters read for them, at ten a word with its space.
TEXT_CHARACTERS_READ_MAX = 1_000
# A word of more parts than this is a path or an expression: its parts and pairs say it shorter.
WORD_PARTS_MAX = 5

# Of texts and words that a process remembers: two windows of the largest size, about 100 MB with all that belongs to them.
LEXICON_WORDS_MAX = 100_000
LEXICON_CHARACTERS_MAX = 8_000_000

# Places of a term that decide how it is shown, evenly spread: the commonest spelling is settled by then.
PLACES_SEEN_MAX = 100

# "feat(api)!: ...", "MINOR: ...", "[ci] ...": how a change note is filed, not what it says.
_FILED = r"build|chore|ci|docs?|feat|feature|fix|hotfix|minor|misc|perf|refactor|revert|style|tests?|trivial|wip"
_FILING = re.compile(rf"^\W*(?:(?:{_FILED})(?:\([^)]*\))?!?\s*:|\[(?:{_FILED})\]:?)\s*", re.IGNORECASE)
# "...; reviewed by A and B": who signed it, not what it says.
_SIGNED = re.compile(
    r"[\s;,.(-]*\b(?:(?:patch|reviewed|authored|co-authored|signed-off)[ -]by\b|reviewers?:|author:)", re.IGNORECASE
)
_EDGES = "()[]{}<>\"'`\u201c\u201d\u2018\u2019.,;:!?*#~=|\u2026-_/\\"
_BREAK = re.compile(r"[;:,.!?)\]}\u2014\u2013]$")
_OPENING = ("(", "[", "{")
# What stands between the parts of one word; anything else makes two words of it.
_JOINTS = frozenset(("", "-", "_", ".", "/", "::", "'", "\u2019"))

STOP, FAINT, TELLING = 0, 1, 2
BREAK = 0
Stems = tuple[str, ...]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


def kind_of(stem: str) -> int:
    """Whether a stem is a function word (`STOP`), says how and not what (`FAINT`), or says something (`TELLING`)."""
    if stem in STOP_WORDS or not stem:
        return STOP
    return FAINT if stem in _FAINT_STEMS else TELLING


_FAINT_STEMS = frozenset(chain.from_iterable((word, stem_of(word)) for word in FAINT_WORDS | HOLLOW_WORDS))


def unfiled(text: str) -> str:
    """A text without how it is filed and signed, unless nothing else is in it."""
    told = _FILING.sub("", text)
    signed = _SIGNED.search(told)
    told = told[: signed.start()] if signed else told
    return told if any(map(str.isalpha, told)) else text


def stems_in(written: str) -> list[str]:
    """The telling stems of a label, in order, without single letters (the K of KRaft)."""
    stems = (stem_of(written[first:last].lower()) for first, last in spelled_words_of(written))
    return [stem for stem in stems if len(stem) > 1 and kind_of(stem) == TELLING]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A run of words as `written` in most of the texts that hold it, its words' stems, and the `share` of texts that do."""

    written: str
    words: tuple[Stems, ...]
    share: float

    @property
    def telling(self) -> float:
        """How many of its words say something; a faint word half."""
        return sum((0.0, 0.5, 1.0)[max(map(kind_of, stems))] for stems in self.words)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word as `written`, where its parts stand in it, and their stems."""

    written: str
    spans: tuple[tuple[int, int], ...]
    stems: Stems

    def shown(self, first: int, last: int) -> str:
        """Parts `first` to `last` (included) as written; a capital that only begins a word is made small."""
        written = self.written[self.spans[first][0] if first else 0 : self.spans[last][1]]
        return written if written[1:] != written[1:].lower() else written.lower()


_NO_WORD = _Word("", ((0, 0),), ("",))


class _Lexicon:
    """What was read before, in any window: words by number, and the numbers of a text's words. It saves time and decides nothing.

    A window takes on average one text in a hundred that the one before did not have, and users share channels.
    """

    def __init__(self) -> None:
        self.words = [_NO_WORD]
        self._numbers: dict[tuple[str, tuple[tuple[int, int], ...]], int] = {}
        self._codes_of: dict[str, tuple[int, ...]] = {}
        self._lines: dict[str, tuple[int, ...]] = {}
        self._characters = 0  # of the texts

    @property
    def is_full(self) -> bool:
        """Whether it holds so much that another is begun."""
        return (
            len(self.words) > LEXICON_WORDS_MAX
            or len(self._codes_of) > LEXICON_WORDS_MAX
            or self._characters > LEXICON_CHARACTERS_MAX
        )

    def line(self, text: str) -> tuple[int, ...]:
        """The numbers of a text's words in order, `BREAK` where punctuation, a number or an id stands between them."""
        found = self._lines.get(text)
        if found is None:
            cleaned = clean(text[:TEXT_CHARACTERS_READ_MAX])
            codes = self._codes(unfiled(cleaned))
            found = self._lines[text] = tuple(codes if any(codes) else self._codes(cleaned))
            self._characters += len(text)
        return found

    def _codes(self, cleaned: str) -> list[int]:
        codes: list[int] = []
        for raw in cleaned.split()[:TEXT_WORDS_MAX]:
            found = self._codes_of.get(raw)
            if found is None:
                found = self._codes_of[raw] = tuple(self._numbered(raw))
            codes += found
        return codes

    def _numbered(self, raw: str) -> list[int]:
        """The words in what stands between two spaces: one, or several around what is no joint."""
        stripped = raw.strip(_EDGES)
        if stripped == raw and raw.isalpha() and raw.islower() and raw.isascii() and is_word(raw):
            return [self._number(raw, [(0, len(raw))])]
        words: list[list[tuple[int, int]]] = []
        for span in spelled_words_of(stripped):
            if words and stripped[words[-1][-1][1] : span[0]] in _JOINTS:
                words[-1].append(span)
            else:
                words.append([span])
        codes = [BREAK] if raw.startswith(_OPENING) else []
        for spans in words:
            codes += [self._number(stripped, spans), BREAK]
        is_open = words and words[-1][-1][1] == len(stripped) and not _BREAK.search(raw)
        return codes[:-1] if is_open else codes or [BREAK]

    def _number(self, stripped: str, spans: list[tuple[int, int]]) -> int:
        begin = spans[0][0]
        begin -= stripped[:begin].endswith(("@", "."))  # @types/node, .github
        written = stripped[begin : spans[-1][1]]
        inside = tuple((first - begin, last - begin) for first, last in spans)
        # What stands around a word may cut it otherwise (`99fooACLs`), so both together are one word.
        number = self._numbers.get((written, inside))
        if number is None:
            number = self._numbers[written, inside] = len(self.words)
            stems = tuple(stem_of(written[first:last].lower()) for first, last in inside)
            self.words.append(_Word(written, inside, stems))
        return number


_lexicon = _Lexicon()


def _current_lexicon() -> _Lexicon:
    """The one of this process, or a new one where that is full. Whoever reads by the old one keeps it."""
    global _lexicon  # noqa: PLW0603 - a memory of this process; what is read is the same without it
    if _lexicon.is_full:
        _lexicon = _Lexicon()
    return _lexicon


class Reading:
    """What texts hold.

    `texts`: the distinct ones that are not empty, sorted; `number_of` tells where one stands. `holds` csr (texts, terms),
    1 where a text holds a term; terms are numbered from the longest to the shortest, each kind in the order of the
    alphabet. `is_telling` and `is_single` bool (terms,): it can be a keyword; it is a part.
    """

    def __init__(self, texts: Iterable[str | None]) -> None:
        """Read texts of any number and size; of each at most `TEXT_CHARACTERS_READ_MAX` characters."""
        self.texts = tuple(sorted({text for text in texts if text}))
        self.number_of = {text: number for number, text in enumerate(self.texts)}
        lexicon = _current_lexicon()
        lines = [lexicon.line(text) for text in self.texts]
        lengths = np.array([len(line) + 1 for line in lines], dtype=np.int64)
        # Each begins with a break: words of two texts are never in a row.
        codes = np.fromiter(chain.from_iterable((BREAK, *line) for line in lines), np.int64, int(lengths.sum()))
        known, codes = np.unique(np.append(codes, BREAK), return_inverse=True)
        self._words: list[_Word] = [lexicon.words[number] for number in known.tolist()]
        self._codes, self._bounds = codes[:-1], np.concatenate([[0], np.cumsum(lengths)])
        self._group_of, self._groups = _groups(self._words)
        text_of = np.repeat(np.arange(len(self.texts)), lengths)
        said = _distinct(text_of * len(self._groups) + self._group_of[self._codes])
        text, group = np.divmod(said, len(self._groups))
        bounds = np.searchsorted(text, np.arange(len(self.texts) + 1))
        self._says = sparse_rows((np.ones(len(said)), group, bounds), shape=(len(self.texts), len(self._groups)))
        self._parts = _Parts.of(self._words, self._codes, lengths)
        term_of, at, self._terms = _terms(self._words, self._parts)
        held = _distinct(self._parts.text[at] * len(self._terms) + term_of)
        text, term = np.divmod(held, max(1, len(self._terms)))
        bounds = np.searchsorted(text, np.arange(len(self.texts) + 1))
        self.holds = sparse_rows((np.ones(len(held)), term, bounds), shape=(len(self.texts), len(self._terms)))
        self.is_telling: BoolArray = np.array(
            [max(map(kind_of, stems)) == TELLING for stems in self._terms], dtype=bool
        )
        self.is_single: BoolArray = np.array([len(stems) == 1 for stems in self._terms], dtype=bool)
        order = np.argsort(term_of, kind="stable")
        self._term_of, self._at = term_of[order], at[order]

    def stems_of(self, term: int) -> Stems:
        """The stems of a term's parts."""
        return self._terms[term]

    def shown(self, term: int) -> str:
        """A term as the texts mostly write it; of equally common spellings the first of the alphabet."""
        first, last = np.searchsorted(self._term_of, [term, term + 1])
        places = self._at[first : last : 1 + (last - first) // PLACES_SEEN_MAX]
        forms = Counter(self._form(int(at), len(self._terms[term])) for at in places)
        shown: str = min(forms, key=lambda form: (-forms[form], form))
        return shown

    def phrases(self, weights: Mapping[int, int], share_min: float) -> list[Phrase]:
        """The phrases in at least `share_min` of the texts that `weights` gives by number, in no order.

        Only words that stand in so many texts can be in such a phrase, which leaves few to count.
        """
        if not weights:
            return []
        total = sum(weights.values())
        says = self._says[np.fromiter(weights, np.int64, len(weights))]
        heard = says.T @ np.fromiter(weights.values(), np.float64, len(weights))
        is_common = heard >= share_min * total
        is_common[self._group_of[BREAK]] = False
        common = frozenset(self._groups[group] for group in np.flatnonzero(is_common).tolist())
        if not common:
            return []
        counts: Counter[tuple[Stems, ...]] = Counter()
        spellings: dict[tuple[Stems, ...], Counter[str]] = {}
        is_holding = (says @ is_common.astype(np.float64)) > 0
        for number, weight in compress(weights.items(), is_holding.tolist()):
            for words, written in self._runs(number, common).items():
                counts[words] += weight
                spellings.setdefault(words, Counter())[written] += weight
        return [
            Phrase(min(forms, key=lambda form: (-forms[form], form)), words, counts[words] / total)
            for words, forms in spellings.items()
            if counts[words] >= share_min * total and kind_of(words[0][0]) != STOP and kind_of(words[-1][-1]) != STOP
        ]

    def _line(self, number: int) -> list[int]:
        """The words of a text in order, a break first."""
        codes: list[int] = self._codes[self._bounds[number] : self._bounds[number + 1]].tolist()
        return codes

    def _runs(self, number: int, common: frozenset[Stems]) -> dict[tuple[Stems, ...], str]:
        """The runs of `common` words in one text, up to `PHRASE_WORDS_MAX` long, as first written in it."""
        found: dict[tuple[Stems, ...], str] = {}
        words = [self._words[code] for code in self._line(number)]
        for first in [place for place, word in enumerate(words) if word.stems in common]:
            for last in range(first, min(len(words), first + PHRASE_WORDS_MAX)):
                if words[last].stems not in common:
                    break
                run = words[first : last + 1]
                found.setdefault(tuple(word.stems for word in run), " ".join(word.written for word in run))
        return found

    def _form(self, at: int, size: int) -> str:
        """How a term of `size` parts is written in one place."""
        word, place = self._words[int(self._parts.word[at])], int(self._parts.place[at])
        if place + size <= len(word.spans):
            return word.shown(place, place + size - 1)
        return f"{word.shown(place, place)} {self._words[int(self._parts.word[at + 1])].shown(0, 0)}"


def _groups(words: Sequence[_Word]) -> tuple[IntArray, list[Stems]]:
    """Which words have the same stems: the number of each word's group, int (words,), and what a group has in common."""
    number: dict[Stems, int] = {}
    of_word = [number.setdefault(word.stems, len(number)) for word in words]
    return np.array(of_word, dtype=np.int64), list(number)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Every part of every word of every text, in order, a break before each text: int (parts,) each.

    `text` and `word`: which; `place`: in its word; `stem`: its number among `stems`, which are sorted. `is_dotted`: a dot or
    slash stands before it in its word. `word_size`: parts of its word.
    """

    stems: tuple[str, ...]
    text: IntArray
    word: IntArray
    place: IntArray
    stem: IntArray
    is_dotted: BoolArray
    word_size: IntArray

    @classmethod
    def of(cls, words: Sequence[_Word], codes: IntArray, lengths: IntArray) -> "_Parts":
        """Of the words of texts, one text after the other, and how many each text has, with its break."""
        stems = tuple(sorted({stem for word in words for stem in word.stems}))
        number = {stem: i for i, stem in enumerate(stems)}
        sizes = np.array([len(word.stems) for word in words], dtype=np.int64)
        stem_of_part = np.array([number[stem] for word in words for stem in word.stems], dtype=np.int64)
        dotted = np.array(
            [bool(a) and word.written[a - 1] in "./" for word in words for a, _ in word.spans], dtype=bool
        )
        repeats = sizes[codes]
        word = np.repeat(codes, repeats)
        place = np.arange(len(word)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        part = (np.cumsum(sizes) - sizes)[word] + place
        text = np.repeat(np.repeat(np.arange(len(lengths)), lengths), repeats)
        return cls(stems, text, word, place, stem_of_part[part], dotted[part], sizes[word])


def _terms(words: Sequence[_Word], parts: _Parts) -> tuple[IntArray, IntArray, list[Stems]]:
    """Every occurrence of a term, as its number and where its first part stands, and the stems of all terms by number."""
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


def _distinct(numbers: IntArray) -> IntArray:
    """Different numbers in order; `np.unique` hashes them, which takes a hundred times as long where they are nearly in order."""
    ordered = np.sort(numbers)
    return np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])


def _is_long_term(stems: Stems) -> bool:
    return 2 < len(stems) <= WORD_PARTS_MAX and max(map(kind_of, stems)) == TELLING


def _is_pair(parts: _Parts) -> BoolArray:
    """Whether a part and the next one make a term: bool (parts - 1,).

    Across a space two telling words do, where each is one part. Within a word of two parts one that tells is enough
    (`pre-commit`), and in a longer one both must, with no dot or slash between.
    """
    kind = np.array([kind_of(stem) for stem in parts.stems], dtype=np.int8)[parts.stem]
    weaker, stronger = np.minimum(kind[:-1], kind[1:]), np.maximum(kind[:-1], kind[1:])
    within = parts.place[1:] > 0
    is_word = within & (parts.word_size[1:] == 2) & (weaker > STOP) & (stronger == TELLING)
    in_word = within & ~parts.is_dotted[1:] & (weaker == TELLING)
    across = ~within & (parts.word_size[:-1] == 1) & (parts.word_size[1:] == 1) & (weaker == TELLING)
    is_pair: BoolArray = (parts.stem[:-1] != parts.stem[1:]) & (is_word | in_word | across)
    return is_pair

"""Splits text into words. Invariant: bounded work per text, any script, the same words on every machine.

Text is NFKC-normalised; identifiers are split at case changes, underscores, dots and slashes (`topicId`, `topic_id` and
`topic/id` all give topic, id); words are lower-cased. Unique names (numbers, versions, hashes, issue keys) are not
words: they would keep two texts about the same subject apart.
"""

import re
import unicodedata
from functools import cache, lru_cache
from itertools import pairwise

from highwater.streams.languages import stem_in
from highwater.streams.letters import UNSPACED, comparable, is_within_letter, marks

# Beyond this a text adds cost, not meaning: an insight is a headline or a paragraph, 8,192 characters are two pages.
TEXT_CHARACTERS_MAX = 8_192
# Longer runs are encoded data, not words.
WORD_CHARACTERS_MAX = 40
# A word of three letters that ends in s is not a plural (css, dns, tls).
STEM_CHARACTERS_MIN = 3

# A name that changes its case within so few letters each time is one word to a reader.
PIECE_CHARACTERS_MAX = 2

# Words of two windows of the largest size, a megabyte.
ROOTS_MAX = 16_384

# Function words of English that join any two texts; kept short on purpose, since a longer list decides meaning.
STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below between both but by
    can could did do does doing down during each few for from further had has have having he her here hers him his how
    i if in into is it its itself just me more most my no nor not now of off on once only or other our out over own per
    same she should so some such than that the their them then there these they this those through to too under until up
    use used using very via was we were what when where which while who whom why will with would you your s t d ll re ve
    don doesn isn let etc""".split()  # noqa: SIM905 prose reads better than 150 quotes
)
# Words that most change notes share, for any subject. They say how, not what.
FAINT_WORDS = frozenset(
    """add added adding adds allow avoid bug bump change changed changes chore ci clean cleanup commit ensure enable
    feat feature fix fixed fixes fixing fixup handle hotfix implement improve improved improvement improvements
    introduce issue issues make makes merge merged merges minor misc more move moved moves new part perf pr pull
    refactor refactoring ref refs remove removed removes removing rename renamed replace request revert reverts set
    small some style support tweak update updated updates updating wip work""".split()  # noqa: SIM905 prose reads better than 150 quotes
)

# Those among them that are actions and can be the whole subject of a note.
ACTION_WORDS = frozenset(
    (
        "bump",
        "cleanup",
        "commit",
        "improve",
        "merge",
        "move",
        "refactor",
        "remove",
        "rename",
        "replace",
        "revert",
        "update",
    )
)

# Words without a meaning of their own: manner, amount and order. Never a keyword beside another word.
HOLLOW_WORDS = frozenset(
    """according actual actually additional already always another appropriate based better cannot case cases certain
    close closed closes com common correct correctly current currently default different due either else existing
    extra fails false favor final first follow following full general get gets getting given go good got http https
    init instead io keep last later least less like little logic lot main make many may maybe md minimum missing
    multiple must need needed needs never nice non none note old one ones org proper properly put py rather related
    required right rst run running runs second several sh since single slightly still stuff take temporarily thing
    things three time times true try trying two txt unnecessary unneeded unused upon usage useful various want way
    ways well without work working works wrong www yaml yet yml""".split()  # noqa: SIM905 prose reads better than 150 quotes
)
# The same of German and Russian, never a subject either: "ne udalos" is "failed to", and the second word alone "succeeded".
HOLLOW_ELSEWHERE = frozenset(
    """angegeben angegebene angegebenen bitte введите выводить использовать можно должен несколько нужно удалось удаётся
    умолчанию""".split()  # noqa: SIM905 as above
)

_ISSUE_KEY = re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b|\bGH-\d+\b")
_WEB_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+")
_HASH = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b")
_RUN = re.compile(r"[^\W_]+(?:['\u2019][^\W\d_]+)?")
_CASE_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_HAS_LETTER = re.compile(r"[^\W\d_]")


def without_addresses(text: str | None) -> str:
    """Return the truncated, NFKC-normalised text without web addresses; "" for None."""
    if not text:
        return ""
    cut = text[:TEXT_CHARACTERS_MAX]
    if not cut.isascii():
        cut = unicodedata.normalize("NFKC", cut)[:TEXT_CHARACTERS_MAX]
    return _WEB_ADDRESS.sub(" ", cut) if "://" in cut or "www." in cut else cut


def clean(text: str | None) -> str:
    """Return the truncated, NFKC-normalised text without web addresses, issue keys and hashes; "" for None."""
    cut = without_addresses(text)
    if "-" in cut:
        cut = _ISSUE_KEY.sub(" ", cut)
    return _HASH.sub(" ", cut)


def words_of(cleaned: str, *, keeps_marks: bool = False) -> list[str]:
    """The words of a `clean` text in order, lower-cased, function words kept. Numbers and versions are left out.

    `keeps_marks`: a mark belongs to its letter, else it parts words, which cuts those of Indic scripts at each vowel. Vectors of
    bases that are older than this rule are made without it.
    """
    pattern = _RUN
    if not cleaned.isascii():
        pattern = _run_with_marks() if keeps_marks else _RUN
        cleaned = comparable(cleaned) if keeps_marks else UNSPACED.sub(_in_pairs, cleaned)
    runs = pattern.findall(_CASE_CHANGE.sub(" ", cleaned).lower())
    return [run for run in runs if (run.isalpha() and len(run) <= WORD_CHARACTERS_MAX) or is_word(run)]


def spelled_words_of(cleaned: str) -> list[tuple[int, int]]:
    """Return where the words of a `clean` text begin and end in it, so that they can be shown; split as by `words_of`.

    But a mark always stays with the letter that it belongs to, as a vowel of an Indic script does. A script without spaces is cut
    into its letters, whose pairs are what can be read.
    """
    found: list[tuple[int, int]] = []
    if not _HAS_LETTER.search(cleaned):
        return found
    for run in (_RUN if cleaned.isascii() else _run_with_marks()).finditer(cleaned):
        written = run.group()
        cuts = _case_cuts(written)
        if not written.isascii():
            cuts += [
                cut
                for unspaced in UNSPACED.finditer(written)
                for cut in range(unspaced.start(), unspaced.end() + 1)
                if not is_within_letter(written, cut)
            ]
        edges = sorted({0, *cuts, len(written)})
        spans = ((run.start() + first, run.start() + last) for first, last in pairwise(edges))
        found += [(first, last) for first, last in spans if is_word(cleaned[first:last])]
    return found


def _case_cuts(written: str) -> list[int]:
    """Return where the case changes from one word to the next: not in a plural (ACLs), nor in a name of short pieces
    (ReST, iOS).
    """
    if written[1:].islower() or written[:-1].isupper():
        return []
    cuts = [cut.start() for cut in _CASE_CHANGE.finditer(written)]
    pieces = pairwise([0, *cuts, len(written)])
    return cuts if any(last - first > PIECE_CHARACTERS_MAX for first, last in pieces) else []


@cache
def _run_with_marks() -> re.Pattern[str]:
    """`_RUN` with the marks of every script within."""
    return re.compile(rf"[^\W_](?:[^\W_]|[{marks()}])*(?:['\u2019][^\W\d_]+)?")


def stem_of(word: str) -> str:
    """Return a lower-case word without a plural or possessive ending, so that `offsets` counts as `offset`.

    No more than that: a reader distinguishes `commit` and `committed`, and deeper stems join unrelated words.
    """
    word = word.partition("'")[0].partition("\u2019")[0] or word
    if len(word) <= STEM_CHARACTERS_MIN or not word.endswith("s") or word.endswith(("ss", "us", "is", "as", "os")):
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("sses", "xes", "ches", "shes")) else word[:-1]


@lru_cache(ROOTS_MAX)
def root_of(stem: str) -> str:
    """Return the common part of a word's forms: `update`, `updated` and `updating`; `docs` and `documentation`.

    Deeper than `stem_of`, and only for counting the texts with a word in any of its forms: a reader considers them one
    word. At least four letters remain, so that `string` and `speed` stay unchanged. Words of scripts of their own lose the
    endings of their language (`stem_in`).
    """
    if not stem.isascii():
        return stem_in(stem) or stem
    root = _SHORT_FORMS.get(stem, stem)
    for ending in _ENDINGS:
        if root.endswith(ending) and len(root) - len(ending) >= _ROOT_CHARACTERS_MIN:
            root = root[: -len(ending)]
            if root[-1] == root[-2] and root[-1] not in "els":
                root = root[:-1]  # logging, log
            break
    return root[:-1] if root.endswith("e") and len(root) > _ROOT_CHARACTERS_MIN else root


# Endings of inflected English words, longest first. None that makes another word (consume, consumer).
_ENDINGS = ("ations", "ation", "ings", "ates", "ated", "ing", "ate", "ed", "es")
_ROOT_CHARACTERS_MIN = 4
_SHORT_FORMS = {
    "auth": "authentication", "config": "configuration", "configs": "configuration", "db": "database", "dep": "dependency",
    "deps": "dependency", "doc": "documentation", "docs": "documentation", "env": "environment", "param": "parameter",
    "perf": "performance", "repo": "repository", "spec": "specification",
}  # fmt: skip


def is_word(run: str) -> bool:
    """Return whether a run of letters and digits is a shared name: not a number, a version (v2, 0b1) or an id."""
    if len(run) > WORD_CHARACTERS_MAX or not _HAS_LETTER.search(run):
        return False
    if run.isalpha():
        return True
    digits = sum(character.isdigit() for character in run)
    return digits == 0 or (run[0].isalpha() and len(run) >= 3 and 2 * digits < len(run))


def _in_pairs(match: re.Match[str]) -> str:
    run = match.group()
    return f" {' '.join(run[i : i + 2] for i in range(max(1, len(run) - 1)))} "

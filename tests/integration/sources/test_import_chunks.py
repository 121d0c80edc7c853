"""`highwater import files|git|jsonl|github` against the real parts, run as a user runs it: a process, its output, the log."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.chunks.sink_ingests import IngestsSink
from highwater.connectors.jobs.pdf_file import write_pdf
from highwater.connectors.jobs.pptx_file import write_pptx
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event, record_of
from highwater.connectors.sources.git import INSIGHT
from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED
from highwater.schemas.codec import Codec
from highwater.streams.chunks.completion import decide, decided_event, progressed
from highwater.streams.chunks.passports import load_passports
from highwater.streams.jobs.layout import Deck, Slide
from tests.conftest import Stack
from tests.integration.connecting import event, in_transaction, surroundings
from tests.integration.records import records
from tests.integration.sources.github_server import REPOSITORY, issue, refused
from tests.unit.sources.origins import Repo

DECK = Deck("Streams", (Slide("Logs", ("A log is ordered.",), "Say so."),))
SEEN = ("source_id", "chunk_no", "content", "title", "url", "published_at", "embedding")


class Importer:
    """Runs imports into a namespace of the test's own, and reads what they published."""

    def __init__(self, stack: Stack, codec: Codec, folder: Path) -> None:
        self.stack = stack
        self.ns = f"n-{uuid.uuid4().hex[:8]}"
        self._codec = codec
        self.environment = stack.environment(HIGHWATER_DATA_DIR=str(folder / "data"), GITHUB_TOKEN="secret")
        self.told: dict[str, Any] = {}

    def command(self, *arguments: str) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "highwater.api.cli.main", "import", *arguments]

    def run(self, *arguments: str, stdin: bytes = b"", status: int = 0) -> str:
        """An import into the namespace, run to its end; what it said on standard error."""
        done = subprocess.run(
            [*self.command(*arguments), "--ns", self.ns, "--json"],
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stderr.decode()
        self.told = json.loads(done.stdout) if done.stdout else {"said": done.stderr.decode()}
        return done.stderr.decode()

    def events(self, topic: str, ingest_id: str | None = None) -> list[dict[str, Any]]:
        """The events of the last import, or of that one."""
        assert "ingest_id" in self.told, self.told
        wanted = ingest_id or self.told["ingest_id"]
        found = [
            self._codec.decode(topic, record.value())
            for record in records(self.stack, topic, lambda key: key.startswith(f"{self.ns}|"))
        ]
        return [event for event in found if event["ingest_id"] == wanted]

    def chunks(self) -> list[tuple[Any, ...]]:
        """The submitted chunks of the last import, by source and number."""
        return sorted(tuple(event[name] for name in SEEN) for event in self.events(CHUNK_SUBMITTED))

    def ends(self) -> dict[str, tuple[bool, bool, bool, int]]:
        """The ended sources of the last import: full, truncated, force, count."""
        names = ("full", "truncated", "force", "expected_count")
        return {event["source_id"]: tuple(event[name] for name in names) for event in self.events(INGEST_FINISHED)}


@pytest.fixture
def importer(stack: Stack, codec: Codec, tmp_path: Path) -> Importer:
    """An importer with a data folder of its own."""
    return Importer(stack, codec, tmp_path)


def put(folder: Path, **files: bytes) -> Path:
    """A folder of files; `__` in a name is its dot."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return folder


def test_a_folder_is_published_each_file_a_source(importer, tmp_path):
    """Every format is cut by its structure; a broken file is named, ends nothing and harms no other; the exit status is 1."""
    folder = put(
        tmp_path / "docs",
        guide__md=b"# Start\n\nhere\n\n## Next\n\nthere\n",
        page__html=b"<title>no</title><h1>Page</h1><p>para</p><script>no</script>",
        deck__pptx=write_pptx(DECK),
        deck__pdf=write_pdf(DECK).content,
        broken__pdf=b"%PDF-1.7 nothing",
        image__png=b"no document",
    )
    said = importer.run("files", str(folder), "--url", "https://example.org", status=1)
    assert said.splitlines()[0].startswith("broken.pdf: it is not a readable PDF")
    chunks = importer.chunks()
    assert {"deck.pdf", "deck.pptx", "guide.md", "page.html"} == {chunk[0] for chunk in chunks}
    url, at = "https://example.org/guide.md", 1_600_000_000_000
    assert chunks[-3:] == [
        ("guide.md", 0, "here", "Start", url, at, None),
        ("guide.md", 1, "there", "Start > Next", url, at, None),
        ("page.html", 0, "para", "Page", "https://example.org/page.html", at, None),
    ]
    assert any("A log is ordered." in chunk[2] for chunk in chunks if chunk[0] == "deck.pdf")
    counts = {name: sum(chunk[0] == name for chunk in chunks) for name in importer.ends()}
    assert importer.ends() == {name: (False, False, False, count) for name, count in counts.items()}
    told = importer.told
    assert (told["sources"], told["chunks"], told["rejected"], told["passed_over"]) == (4, len(chunks), 1, 1)
    assert (told["slot"], told["faults"][0]["where"], told["gone"]) == ("docs", "broken.pdf", [])
    assert all(position.startswith("chunks.") for position in told["positions"])
    assert (told["left_out"], told["left_out_parts"]) == ({"page_title": 1}, [])
    assert told["passed_over_suffixes"] == {".png": 1}
    importer.run("files", str(folder), "--left-out", "show", status=1)
    assert importer.told["left_out_parts"] == [{"source_id": "page.html", "reason": "page_title", "text": "no"}]
    importer.run("files", str(folder), "--left-out", "keep", status=1)
    assert (importer.told["left_out"], importer.chunks()[-1][3]) == ({}, "Page")


def test_files_are_found_however_old_they_are_unless_their_namespace_has_a_life(importer, tmp_path):
    """A TTL from the namespace's own table is reported before anything is stored, with how many files are older."""
    folder = put(tmp_path / "docs", a__md=b"a", b__md=b"b")
    assert importer.run("files", str(folder)) == ""
    assert [event["lasts"] for event in importer.events(CHUNK_SUBMITTED)] == [True, True]
    assert importer.told["too_old"] == 0
    namespaces = tmp_path / "namespaces.toml"
    namespaces.write_text(f"[namespaces.{importer.ns}]\nttl_days = 30\n", encoding="utf-8")
    importer.environment["HIGHWATER_NAMESPACES"] = str(namespaces)
    (said,) = importer.run("files", str(folder)).splitlines()
    assert said.startswith(f"2 of 2 documents are older than the 30 days of '{importer.ns}'")
    assert importer.told["too_old"] == 2
    del importer.environment["HIGHWATER_NAMESPACES"]
    lines = b'{"source_id": "old", "text": "t", "published_at": "2020-01-01"}\n{"source_id": "none", "text": "t"}\n'
    (said,) = importer.run("jsonl", "-", stdin=lines).splitlines()
    assert "documents older than the 365 days" in said
    assert importer.told["too_old"] == 1
    assert {event["lasts"] for event in importer.events(CHUNK_SUBMITTED)} == {False}


def test_importing_again_publishes_the_same(importer, tmp_path):
    """Only the id of the ingest and the time of its end differ, so that everything is found unchanged."""
    folder = put(tmp_path / "docs", a__md=b"# A\n\ntext", b__txt=b"one\n\ntwo")
    importer.run("files", str(folder), "--full")
    first = (importer.chunks(), importer.ends(), importer.told["ingest_id"])
    importer.run("files", str(folder), "--full")
    assert (importer.chunks(), importer.ends()) == first[:2]
    assert importer.told["ingest_id"] != first[2]
    assert importer.ends() == {"a.md": (True, False, False, 1), "b.txt": (True, False, False, 1)}


def test_files_that_are_gone_are_ended_with_full_only(importer, tmp_path):
    """Without --full they stay; with it each gets a full, empty, forced end once, and is named; other slots are left alone."""
    folder = put(tmp_path / "docs", a__md=b"a", b__md=b"b")
    importer.run("files", str(folder), "--slot", "other", "--full")
    importer.run("files", str(folder))
    (folder / "b.md").unlink()
    importer.run("files", str(folder))
    assert (importer.told["gone"], list(importer.ends())) == ([], ["a.md"])
    importer.run("files", str(folder), "--full")
    assert importer.told["gone"] == ["b.md"]
    assert importer.ends() == {"a.md": (True, False, False, 1), "b.md": (True, False, True, 0)}
    assert {event["slot"] for event in importer.events(INGEST_FINISHED)} == {"docs"}
    importer.run("files", str(folder), "--full")
    assert importer.told["gone"] == []


def test_an_empty_folder_and_an_empty_file_mark_nothing_unless_forced(importer, tmp_path):
    """R3.20: a folder that is not mounted looks like an empty one, and a file that was cut off like an empty one."""
    folder = put(tmp_path / "docs", a__md=b"a", b__md=b"b")
    importer.run("files", str(folder), "--full")
    put(folder, a__md=b"\n")
    assert "there is nothing in it" in importer.run("files", str(folder), "--full", status=1)
    assert importer.ends()["a.md"] == (True, False, False, 0)
    importer.run("files", str(folder), "--full", "--force")
    assert importer.ends()["a.md"] == (True, False, True, 0)
    for path in folder.iterdir():
        path.unlink()
    assert "nothing is there, where 2 sources were" in importer.run("files", str(folder), "--full", status=1)
    assert (importer.told["gone"], importer.told["positions"]) == ([], [])
    importer.run("files", str(folder), "--full", "--force")
    assert (importer.told["gone"], importer.ends()) == (
        ["a.md", "b.md"],
        {"a.md": (True, False, True, 0), "b.md": (True, False, True, 0)},
    )


async def stored(importer: Importer, context: ProcessContext) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What the sinks make of the last import: the rows of the namespace, and the outcome of each source."""
    told = [
        Event(record_of(message), importer._codec.decode(topic, message.value()))
        for topic in (CHUNK_SUBMITTED, INGEST_FINISHED)
        for message in records(importer.stack, topic, lambda key: key.startswith(f"{importer.ns}|"))
    ]
    new = [one for one in told if one.value["ingest_id"] == importer.told["ingest_id"]]
    assert await in_transaction(context, ChunksSink(context, load_passports()), new) == []
    progress = {}
    for row in await context.pool.fetch(
        "SELECT value FROM outbox WHERE topic = 'chunks.ingest-progressed' ORDER BY id"
    ):
        one = context.codec.decode("chunks.ingest-progressed", row["value"])
        if one["ingest_id"] == importer.told["ingest_id"]:
            progress[one["source_id"]] = one
    outcomes = {}
    for source_id, one in sorted(progress.items()):
        row = progressed(None, one)
        decision = decide(row, one["at"])
        assert decision is not None
        decided = dict(decided_event(row, decision, one["at"]))
        outcomes[source_id] = decided["outcome"]
        await in_transaction(context, IngestsSink(context), [event("chunks.ingest-decided", decided)])
    query = (
        "SELECT source_id, chunk_no, content, to_delete, xmin::text AS version FROM chunks WHERE ns = $1 ORDER BY 1, 2"
    )
    return [dict(row) for row in await context.pool.fetch(query, importer.ns)], outcomes


async def test_what_the_sinks_make_of_imports(importer, stack, tmp_path):
    """Again: no row is written. In full: what a file has no longer, and a file that is gone, are marked, and nothing else is."""
    folder = put(tmp_path / "docs", a__md=b"# A\n\none\n\n# B\n\ntwo", b__md=b"b", c__pdf=write_pdf(DECK).content)
    async with surroundings(stack) as context:
        await asyncio.to_thread(importer.run, "files", str(folder))
        first, outcomes = await stored(importer, context)
        assert outcomes == dict.fromkeys(("a.md", "b.md", "c.pdf"), "partial")
        await asyncio.to_thread(importer.run, "files", str(folder), "--full")
        again, outcomes = await stored(importer, context)
        assert again == first
        assert outcomes == dict.fromkeys(("a.md", "b.md", "c.pdf"), "complete")
        put(folder, a__md=b"# A\n\none", c__pdf=b"%PDF-1.7 broken now")
        (folder / "b.md").unlink()
        await asyncio.to_thread(importer.run, "files", str(folder), "--full", status=1)
        last, outcomes = await stored(importer, context)
        assert outcomes == {"a.md": "complete", "b.md": "complete"}
        assert [(row["source_id"], row["chunk_no"]) for row in last if row["to_delete"]] == [("a.md", 1), ("b.md", 0)]


def test_lines_are_published_as_documents_and_chunks(importer):
    """Through a pipe, packed; a bad line is named with its number, and of chunks nothing is full then."""
    rows = [
        {"source_id": "faq", "text": "# Why\n\nso", "media_type": "text/markdown"},
        {"source_id": "cut", "chunk_no": 0, "content": "zero", "embedding": [1.0, 0.5]},
        {"source_id": "cut", "chunk_no": 1, "content": "one"},
    ]
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    importer.run("jsonl", "-", "--full", stdin=gzip.compress(data))
    assert [chunk[:4] for chunk in importer.chunks()] == [
        ("cut", 0, "zero", None),
        ("cut", 1, "one", None),
        ("faq", 0, "so", "Why"),
    ]
    assert importer.ends() == {"faq": (True, False, False, 1), "cut": (True, False, False, 2)}
    said = importer.run("jsonl", "-", "--full", stdin=data + b"\n{broken\n", status=1)
    assert said.startswith("line 4: not JSON")
    assert importer.ends() == {"faq": (True, False, False, 1), "cut": (False, True, False, 2)}
    long = json.dumps({"source_id": "long", "chunk_no": 0, "content": os.urandom(300_000).hex()}).encode()
    said = importer.run("jsonl", "-", "--full", stdin=gzip.compress(data + b"\n" + long)[:-9], status=1)
    assert "cannot be read completely" in said
    assert importer.ends()["cut"][:2] == (False, True)


def test_commits_are_published_as_insights(importer, tmp_path):
    """One each in the repository's channel, and importing again publishes the same."""
    repo = Repo(tmp_path / "tool")
    ids = [repo.commit(f"Change {n}", {"a": str(n)}, seconds=1_600_000_000 + n) for n in range(3)]
    channel = f"c-{uuid.uuid4().hex[:8]}"
    command = importer.command("git", str(repo.folder), "--as", "insights", "--channel", channel)
    for times in (1, 2):
        done = subprocess.run(command, env=importer.environment, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert f"imported {channel}: 3 insights".encode() in done.stdout
        found = [
            importer._codec.decode(INSIGHT, record.value())
            for record in records(importer.stack, INSIGHT, channel.__eq__)
        ]
        assert [event["insight_id"] for event in found] == ids * times
    assert [(event["text"], event["ts"]) for event in found[:2]] == [
        ("Change 0", 1_600_000_000_000),
        ("Change 1", 1_600_000_001_000),
    ]


def test_a_commit_is_published_each_file_a_source(importer, tmp_path):
    """Files of the commit with the times they were changed; one that a later commit has no longer is gone."""
    repo = Repo(tmp_path / "tool")
    first = repo.commit("one", {"a.md": "# A\n\ntext", "b.md": "b", "x.py": "x"}, seconds=1_600_000_000)
    repo.git("update-index", "--force-remove", "b.md")
    repo.commit("two", {}, seconds=1_600_000_100)
    importer.run("git", str(repo.folder), "--as", "chunks", "--full", "--rev", first)
    assert [chunk[:4] for chunk in importer.chunks()] == [("a.md", 0, "text", "A"), ("b.md", 0, "b", None)]
    assert {chunk[5] for chunk in importer.chunks()} == {1_600_000_000_000}
    importer.run("git", str(repo.folder), "--as", "chunks", "--full")
    assert importer.ends() == {"a.md": (True, False, False, 1), "b.md": (True, False, True, 0)}
    assert importer.told["slot"] == "tool"


def test_a_listing_is_published_and_asked_for_only_where_it_changed(importer, github):
    """Every issue a source under a full end with its window; then 304, and nothing to publish; then the page that changed."""
    github.entries["issues"] = [issue(n, body="text") for n in range(1, 121)]
    command = ("github", REPOSITORY, "--what", "issues", "--api-url", github.url, "--full")
    importer.run(*command)
    assert github.asked[0].headers["authorization"] == "Bearer secret"
    assert github.statuses() == [200, 200]
    assert (len(importer.chunks()), importer.told["slot"]) == (120, REPOSITORY)
    assert set(importer.ends().values()) == {(True, False, False, 1)}
    window = importer.events(INGEST_FINISHED)[0]["window"]
    assert json.loads(window) == importer.told["window"]
    assert importer.told["window"]["page_to"] == 2
    importer.run(*command)
    assert (github.statuses(), importer.told["sources"], importer.told["positions"]) == ([304, 304], 0, [])
    github.entries["issues"][110]["body"] = "other"
    del github.entries["issues"][119]
    importer.run(*command)
    assert github.statuses() == [304, 200, 404]
    assert (len(importer.chunks()), importer.told["gone"]) == (19, ["issues/120"])
    assert importer.ends()["issues/120"] == (True, False, True, 0)
    importer.run(*command, "--refresh")
    assert github.statuses() == [200, 200]


def test_a_listing_that_is_cut_short_marks_nothing_and_is_gone_on_with(importer, github):
    """A limit of pages is not a failure; a rate limit is one; a later full run reads it all again."""
    github.entries["issues"] = [issue(n) for n in range(1, 121)]
    command = ("github", REPOSITORY, "--what", "issues", "--api-url", github.url, "--full")
    importer.run(*command, "--pages", "1")
    assert (importer.told["truncated"], set(importer.ends().values())) == (True, {(False, True, False, 1)})
    cursor = importer.told["window"]["cursor"]
    importer.run(*command, "--cursor", cursor)
    assert (importer.told["sources"], importer.told["window"]["page_from"]) == (20, 2)
    github.script("issues", github.reply(f"/repos/{REPOSITORY}/issues", {"per_page": "100"}, {}))
    github.script("issues", refused(429, retry_after="3600"))
    said = importer.run(*command, status=1)
    assert "the rest: GitHub allows no more requests for 3,600 s" in said
    assert set(importer.ends().values()) == {(False, True, False, 1)}
    github.statuses()
    importer.run(*command)
    assert github.statuses() == [200, 200]
    assert set(importer.ends().values()) == {(True, False, False, 1)}


def test_an_entry_of_nobody_has_all_of_it_read_again(importer, github):
    """Its run marked nothing, so the next full run does not take the other pages for known; then it does."""
    github.entries["issues"] = [issue(n) for n in range(1, 121)]
    github.entries["issues"][110].pop("number")
    command = ("github", REPOSITORY, "--what", "issues", "--api-url", github.url, "--full")
    assert "page 2, entry 11: it has no number" in importer.run(*command, status=1)
    assert set(importer.ends().values()) == {(False, True, False, 1)}
    github.entries["issues"][110]["number"] = 111
    github.statuses()
    importer.run(*command)
    assert set(importer.ends().values()) == {(True, False, False, 1)}
    importer.run(*command)
    assert github.statuses() == [200, 200, 304, 304]


def test_an_import_that_is_interrupted_ends_what_it_read(importer, github):
    """Ctrl-C while it waits for a limit: what was handed over is acknowledged and ended as truncated; the status is 130."""
    github.entries["issues"] = [issue(n) for n in range(1, 121)]
    github.script("issues", github.reply(f"/repos/{REPOSITORY}/issues", {"per_page": "100"}, {}))
    github.script("issues", refused(429, retry_after="50"))
    command = importer.command(
        "github", REPOSITORY, "--what", "issues", "--api-url", github.url, "--full", "--ns", importer.ns
    )
    with subprocess.Popen(
        [*command, "--json"], env=importer.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while len(github.asked) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    importer.told = json.loads(out)
    assert 90 <= importer.told["chunks"] == len(importer.chunks()) <= 100
    assert set(importer.ends().values()) == {(False, True, False, 1)}
    assert len(importer.ends()) == importer.told["sources"]


def test_a_service_that_refuses_is_one_line(importer, github):
    """Nothing was read, so nothing is published."""
    github.script("issues", refused(404, "Not Found"))
    said = importer.run("github", REPOSITORY, "--what", "issues", "--api-url", github.url, status=1)
    assert said.splitlines()[-1] == f"highwater: {REPOSITORY}: /repos/{REPOSITORY}/issues: 404 Not Found: Not Found"
    assert list(importer.told) == ["said"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("files", "."), 2, "--ns"),
        (("files", ".", "--ns", "a|b"), 2, "holds a |"),
        (("files", ".", "--ns", "a", "--force"), 2, "--force"),
        (("files", "nowhere", "--ns", "a"), 2, "does not exist"),
        (("git", ".", "--as", "chunks"), 2, "--ns"),
        (("git", ".", "--as", "insights", "--ns", "a"), 2, "need --as chunks"),
        (("git", ".", "--as", "insights"), 1, "not a git repository"),
        (("github", "ada", "--what", "issues", "--ns", "a"), 2, "not OWNER/REPO"),
        (("github", "ada/tool", "--what", "stars", "--ns", "a"), 2, "--what"),
        (
            ("github", "ada/tool", "--what", "pulls", "--ns", "a", "--since", "2024-01-01"),
            2,
            "--since does not apply to pulls",
        ),
        (("github", "ada/tool", "--what", "issues", "--ns", "a", "--since", "soon"), 2, "not an ISO 8601 time"),
    ],
)
def test_wrong_use_is_one_line(importer, tmp_path, arguments, status, said):
    """It names the mistake, before any request is sent."""
    done = subprocess.run(
        importer.command(*arguments),
        env=importer.environment,
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (status, b"", 1), done.stderr
    assert said in done.stderr.decode()

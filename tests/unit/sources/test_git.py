"""A git repository as documents and as insights."""

from __future__ import annotations

import os

import pytest

from highwater.connectors.sources.chunked import Fault
from highwater.connectors.sources.git import Commit, GitError, Repository, insights
from tests.unit.sources.origins import Repo, drawn


@pytest.fixture
def repo(tmp_path) -> Repo:
    """A repository called `tool`."""
    return Repo(tmp_path / "tool")


async def test_a_source_is_a_file_of_the_commit(repo):
    """Exactly the committed files, with the time of the commit that brought them; of links and other kinds only the number."""
    repo.commit("one", {"a.md": "first", "src/x.py": "x", "b.md": "b"}, seconds=1_500_000_000)
    repo.commit("two", {"a.md": "second"}, seconds=1_500_000_100)
    (repo.folder / "a.md").write_text("not committed")
    (repo.folder / "new.md").write_text("not committed")
    repo.git(
        "update-index", "--add", "--cacheinfo", f"120000,{repo.git('rev-parse', 'HEAD:a.md').decode().strip()},link.md"
    )
    repo.git("commit", "-qm", "three", seconds=1_500_000_200)
    origin = Commit(Repository(repo.folder))
    found, faults = await drawn(origin)
    assert {path: item.raw for path, item in found.items()} == {"a.md": b"second", "b.md": b"b"}
    assert {path: item.published_at for path, item in found.items()} == {
        "a.md": 1_500_000_100_000,
        "b.md": 1_500_000_000_000,
    }
    assert ([], 2, {"a.md", "b.md"}) == (faults, origin.reading.passed_over, origin.reading.listed)


async def test_names_may_hold_anything(repo):
    """Spaces, quotes and letters of any script are valid; a name that cannot be an id is reported and skipped."""
    good = ["a b.md", 'q"uote.md', "ü/日本.md", ":100644 x.md", "-n.md", "$(touch x).md", "1500000000.md"]
    bad = [b"new\nline.md", b"bar|.md", b"\xff.md", b"tab\t.md"]
    repo.commit("names", dict.fromkeys(good, "text") | dict.fromkeys(bad, "text"), seconds=1_500_000_000)
    found, faults = await drawn(Commit(Repository(repo.folder)))
    assert sorted(good) == sorted(found)
    assert {1_500_000_000_000} == {item.published_at for item in found.values()}
    assert sorted(os.fsdecode(name) for name in bad) == sorted(fault.where for fault in faults)


async def test_a_folder_within_is_imported_alone(repo):
    """Paths are those from the folder, addresses those of the whole repository."""
    repo.commit("one", {"docs/a b.md": "a", "other.md": "b"}, seconds=1_500_000_000)
    (repo.folder / "docs").mkdir()
    repo.git("remote", "add", "origin", "git@github.com:ada/tool.git")
    found, _ = await drawn(Commit(Repository(repo.folder / "docs")))
    assert list(found) == ["a b.md"]
    assert (
        found["a b.md"].url,
        found["a b.md"].published_at,
    ) == ("https://github.com/ada/tool/blob/HEAD/docs/a%20b.md", 1_500_000_000_000)


async def test_a_merge_brings_its_files_when_it_is_made(repo):
    """A file's time is that of the commit on the main line, also when a branch had it earlier, or a merge made it."""
    repo.commit("base", {"a.md": "a"}, seconds=1_500_000_000)
    repo.git("checkout", "-qb", "side")
    repo.commit("side", {"side.md": "s"}, seconds=1_500_000_010)
    repo.git("checkout", "-qf", "main")
    repo.commit("main", {"a.md": "b"}, seconds=1_500_000_020)
    repo.git("merge", "-q", "--no-commit", "side", seconds=1_500_000_030)
    repo.commit("merge", {"both.md": "made by the merge"}, seconds=1_500_000_030)
    found, _ = await drawn(Commit(Repository(repo.folder)))
    assert {path: item.published_at // 1000 - 1_500_000_000 for path, item in found.items()} == {
        "a.md": 20,
        "side.md": 30,
        "both.md": 30,
    }


def test_commits_are_insights_of_the_repository(repo):
    """The oldest first: id, time of the commit, subject without control characters; channel and address by the origin."""
    first = repo.commit("Fix the\x1b[31m pipe\n\nIt was broken.", {"a": "a"}, seconds=1_500_000_000)
    second = repo.commit("Add a | b", {"a": "b"}, seconds=1_500_000_100)
    repo.commit("", {"a": "c"}, seconds=1_500_000_200)
    repo.git("remote", "add", "origin", "https://github.com/ada/tool.git")
    repository = Repository(repo.folder)
    found = list(insights(repository, repository.name))
    assert [(first, 1_500_000_000_000, "Fix the [31m pipe"), (second, 1_500_000_100_000, "Add a | b")] == [
        (told["insight_id"], told["ts"], told["text"]) for told in found[:2]
    ]
    assert ("ada/tool", f"https://github.com/ada/tool/commit/{first}") == (found[0]["channel_id"], found[0]["url"])
    assert isinstance(found[2], Fault)
    assert found == list(insights(Repository(repo.folder), "ada/tool"))


@pytest.mark.parametrize(
    ("origin", "name", "page"),
    [
        (None, "tool", None),
        ("/srv/git/team/tool.git", "team/tool", None),
        ("https://git.example.org/team/tool", "team/tool", None),
        ("ssh://git@github.com/ada/tool.git", "ada/tool", "https://github.com/ada/tool"),
        ("https://github.com/ada/tool/", "ada/tool", "https://github.com/ada/tool"),
        ("https://user:secret@example.org/ada/tool", "ada/tool", None),
        ("https://github.com.evil.org/ada/tool", "ada/tool", None),
    ],
)
def test_a_repository_is_called_after_its_origin(repo, origin, name, page):
    """The last two parts of where it was cloned from, else its folder; pages only of GitHub itself; no password in it."""
    repo.commit("one", {"a": "a"})
    if origin is not None:
        repo.git("remote", "add", "origin", origin)
    repository = Repository(repo.folder)
    assert (name, page) == (repository.name, repository.page)


async def test_a_repository_starts_no_program_of_its_own(repo, tmp_path):
    """Its configuration names programs for signatures, filters, differences and fetching: none is run."""
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    repo.commit("one", {"a.md": "a", ".gitattributes": "*.md diff=x filter=x"})
    for name in ("gpg.program", "core.fsmonitor", "core.pager", "diff.external", "diff.x.command", "diff.x.textconv"):
        repo.git("config", name, str(program))
    for name in ("filter.x.smudge", "core.sshCommand", "core.gitProxy", "core.editor", "credential.helper"):
        repo.git("config", name, str(program))
    repo.git("config", "log.showSignature", "true")
    signed = repo.git("cat-file", "commit", "HEAD").replace(
        b"\n\n", b"\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n\n", 1
    )
    repo.git(
        "update-ref", "HEAD", repo.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=signed).decode().strip()
    )
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(program)
    repo.git("config", "core.hooksPath", str(hooks))
    mark.unlink(missing_ok=True)
    found, _ = await drawn(Commit(Repository(repo.folder)))
    assert (list(found), len(list(insights(Repository(repo.folder), "c")))) == (["a.md"], 1)
    assert not mark.exists()


async def test_a_clone_without_all_objects_names_what_is_missing(repo, tmp_path):
    """A missing file is a fault of its own, nothing is fetched for it, and the others are read."""
    repo.commit("one", {"a.md": "a", "b.md": "b"})
    blob = repo.git("rev-parse", "HEAD:a.md").decode().strip()
    (repo.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    found, faults = await drawn(Commit(Repository(repo.folder)))
    assert (list(found), [fault.source_id for fault in faults]) == (["b.md"], ["a.md"])


async def test_a_file_that_is_too_large_is_named(repo, monkeypatch):
    """It is passed by without being held, and the one after it is read."""
    monkeypatch.setattr("highwater.connectors.sources.git.DOCUMENT_BYTES_MAX", 1_000)
    repo.commit("one", {"a.md": "a" * 600_000, "b.md": "b" * 1_000})
    found, faults = await drawn(Commit(Repository(repo.folder)))
    assert (list(found), [fault.source_id for fault in faults]) == (["b.md"], ["a.md"])
    assert len(found["b.md"].raw) == 1_000


@pytest.mark.parametrize("revision", ["nowhere", "--output=x", "HEAD:a.md", "main..main", ""])
def test_a_revision_that_is_no_commit_is_one_line(repo, revision):
    """It is never taken for an option."""
    repo.commit("one", {"a.md": "a"})
    with pytest.raises(GitError):
        Repository(repo.folder, revision)
    assert [path for path in repo.folder.iterdir() if path.name != ".git"] == []


def test_what_is_no_repository_is_one_line(tmp_path, monkeypatch):
    """Neither an empty folder nor one of a hook's environment is taken for another."""
    with pytest.raises(GitError, match="not a git repository"):
        Repository(tmp_path)
    other = Repo(tmp_path / "other")
    other.commit("one", {"a": "a"})
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    with pytest.raises(GitError, match="not a git repository"):
        Repository(tmp_path)


async def test_git_that_breaks_off_is_told(repo, monkeypatch):
    """The files that were read stay, and the listing no longer implies deletions."""
    repo.commit("one", {"a.md": "a"})
    repository = Repository(repo.folder)
    repository.commit = "0" * 40
    origin = Commit(repository)
    found, _ = await drawn(origin)
    assert (found, origin.reading.is_listed) == ({}, False)
    assert "git ls-tree failed" in str(origin.reading.why)


async def test_an_empty_tree_has_no_documents(repo):
    """Nothing is found, and that is the whole of it."""
    repo.commit("nothing", {})
    origin = Commit(Repository(repo.folder))
    assert (await drawn(origin), origin.reading.is_listed) == (({}, []), True)

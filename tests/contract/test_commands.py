"""Commands that documents show exist, each command prints JSON on request, and completion knows commands, options and topics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.contract.documented_commands import blocks, commands_in, documents, every_command, fault_of, named_in

# Commands without `--json`, and why.
WITHOUT_JSON = {
    "worker": "a role that runs until it is stopped; it prints only its log, each line of which is JSON where it is no terminal",
    "connect": "a role, likewise",
    "api": "a role, likewise",
    "jobs outline": "it prints one JSON document and nothing else, to be edited and handed to `jobs approve`",
}
# Retired names appear where the changelog mentions them.
HISTORY = {"CHANGELOG.md"}
SHELLS = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/highwater.fish"}


def test_every_command_prints_json_on_request():
    """All but the listed take `--json`, and these do not."""
    options = {name: {one for param in command.params for one in param.opts} for name, command in every_command()}
    assert {name for name, known in options.items() if "--json" not in known} == set(WITHOUT_JSON)


@pytest.mark.parametrize("path", documents(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_commands_exist(path: Path):
    """Each call of `highwater` in a shell block would be taken: command, options, choices, topics, number of arguments. Of each
    that a sentence names there are the command and the options.
    """
    text = path.read_text("utf-8")
    faults = [fault_of(call) for block in blocks(text) for call in commands_in(block)]
    if path.name not in HISTORY:
        faults += [fault_of(call, is_whole=False) for call in named_in(text)]
    assert [fault for fault in faults if fault is not None] == []


def test_documents_show_commands():
    """The check above finds calls: in the tour, in pipes, in `$(…)`, over several lines, two on a line, after a setting."""
    tour = [call for block in blocks((ROOT / "README.md").read_text("utf-8")) for call in commands_in(block)]
    found = [call for call in tour if call[0] in {"status", "topics", "doctor"}]
    assert found == [["status", "--json"], ["topics"], ["doctor"]]
    script = (
        'A=1 highwater lag > file 2>/dev/null | head; highwater sql "SELECT 1\nFROM x" \\\n  --json  # highwater none\n'
    )
    script += "X=$(highwater status)\n"
    assert commands_in(script) == [["lag"], ["sql", "SELECT 1\nFROM x", "--json"], ["status"]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nothing", "has no command nothing"),
        ("dlq lst", "has no command lst"),
        ("lag --partition", "No such option"),
        ("tail feeds.insight-ingestd", "there is no topic"),
        ("replay TOPIC --format pdf", "'pdf' is not one of"),
        ("describe", "topic is missing"),
        ("lag one two three", "too much"),
    ],
)  # fmt: skip
def test_a_call_that_would_be_refused(call: str, said: str):
    """Is found, with the reason."""
    assert said.lower() in (fault_of(call.split()) or "").lower()


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_completion(shell: str, tmp_path: Path):
    """The script of each shell is printed, the page says how to use it, and commands, options and topics are completed."""

    def completed(*words: str) -> list[str]:
        line = " ".join(("highwater", *words))
        done = _complete(
            tmp_path, f"{shell}_complete", COMP_WORDS=line, COMP_CWORD=words[-1] if shell == "fish" else str(len(words))
        )
        lines = done.splitlines()
        return lines[1::3] if shell == "zsh" else [one.split(",", 1)[1].split("\t")[0] for one in lines]

    assert "_HIGHWATER_COMPLETE=" in _complete(tmp_path, f"{shell}_source")
    assert completed("desc") == ["describe"]
    if shell == "bash":  # the others ask the same
        assert completed("replay", "--fo") == ["--format"]
        assert completed("describe", "feeds.insight-i") == ["feeds.insight-ingested", "feeds.insight-ingested.dlq"]
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert f"_HIGHWATER_COMPLETE={shell}_source highwater" in page
    assert SHELLS[shell] in page


def _complete(folder: Path, what: str, **words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
    environment = {**clean, "_HIGHWATER_COMPLETE": what, **words}
    program = Path(sys.executable).with_name("highwater")
    return subprocess.run([program], cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout

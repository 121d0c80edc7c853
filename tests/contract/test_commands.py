"""Commands that documents and messages show exist, and advice that changes something is executed by a test. Each command
prints JSON on request, and completion knows commands, options and topics.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.contract.documented_commands import blocks, commands_in, documents, every_command, fault_of, named_in
from tests.contract.visible_texts import all_texts, of_advice, of_literals

# Commands without `--json`, and why.
WITHOUT_JSON = {
    "worker": "a role that runs until it is stopped; it prints only its log, each line of which is JSON where it is no terminal",
    "connect": "a role, likewise",
    "api": "a role, likewise",
    "jobs outline": "it prints one JSON document and nothing else, to be edited and handed to `jobs approve`",
}
RUNBOOKS = ROOT / "docs" / "runbooks"
# The commands that `doctor`, errors and runbooks advise, if they change something, and the test that executes each on real parts
# and finds every record and row again, or what the command said before that it would delete.
ADVICE_EXECUTED = {
    "up": "tests/integration/deploy/test_three_embedded.py::test_a_folder_of_three_brokers_is_started_as_such",
    "down": "tests/integration/deploy/test_three_embedded.py::test_a_folder_of_three_brokers_is_started_as_such",
    "init": "tests/integration/deploy/test_three_embedded.py::test_a_folder_of_three_brokers_is_started_as_such",
    "restore": "tests/acceptance/backup/test_backup.py::test_a_lost_database_is_restored_beside_the_log",
    "reset": "tests/integration/kafka/test_consumer.py::test_a_recreated_topic_stops_the_consumer",
    "publish": "tests/integration/replay/test_replay.py::test_a_file_is_published_in_another_installation",
    "dlq edit": "tests/integration/dead_letters/test_dead_letters.py::test_an_edit_mends_what_its_bytes_meant",
    "dlq redrive": "tests/integration/dead_letters/test_dead_letters.py::test_a_redrive_leaves_its_trace_and_is_not_repeated",
    "dlq drop": "tests/integration/dead_letters/test_dead_letters.py::test_a_drop_is_told",
    "dlq park": "tests/integration/kafka/test_stopped_partitions.py"
    "::test_garbage_stops_one_partition_and_the_printed_command_resumes_it",
    "recover-tables": "tests/chaos/feeds/test_lost_changelogs.py"
    "::test_a_changelog_with_more_partitions_is_recreated_from_the_events",
    "repair-log": "tests/integration/kafka/test_truncation.py"
    "::test_the_api_confirms_nothing_of_a_partition_that_lost_its_tail",
    "history-check": "tests/acceptance/operating/test_history_check.py::test_a_history_of_the_product_has_no_violation",
    "keys add": "tests/unit/core/test_keys.py::test_no_key_is_lost_when_many_are_added_at_once",
}
# Advised commands that only read, and the roles, which run until they are stopped.
ADVICE_THAT_READS = {
    "chunks show", "dlq list", "dlq show", "doctor", "explain feed", "groups", "health", "keys list", "lag", "replay",
    "status", "topics", "upgrade", "users pending", "worker", "connect",
}  # fmt: skip
# The texts that advise to delete something, and the reason for which nothing is lost.
DELETIONS = {
    "A topic differs from the catalogue. Correct what the message names; delete no topic, its events are nowhere else.": "warns",
    "correct what the line names, settings of a topic with `kafka-configs.sh --alter`; delete no topic": "a warning",
    "… cannot be read; remove it to import everything again": "the events are published again under the same ids",
    "The record of earlier imports cannot be read. Remove the named file; the next import reads everything again.": "likewise",
    "remove … to end the rehearsal": "the file holds one number",
    "… is not empty: delete it first": "the folder of a release, which is built again",
    "… was copied while its stack ran, so the files of its services may not fit together: stop that stack (`highwater down`),"
    " copy the folder again and start the copy. If it is a snapshot of the file system at one moment, remove … and start"
    " again": "the state of a supervisor; its data stay",
    "… is not readable: …; remove it, the next start writes another": "the state of a supervisor that has ended",
    "… is not a supervisor's state; remove it, the next start writes another": "likewise",
}
_DELETION = re.compile(r"(?:^|[;:,.] |\b(?:or|then|and) )(?:delete|drop|remove|recreate) ", re.IGNORECASE)
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


def test_commands_in_messages_exist():
    """The command line has each command and option that a message, a help or a label names."""
    calls = {
        " ".join(call): call
        for text in [*all_texts(), *of_literals()]
        for call in named_in(text.text.replace("…", "X"))
    }
    assert {"init", "recover-tables --recreate"} <= set(calls)
    assert [fault for call in calls.values() if (fault := fault_of(call, is_whole=False))] == []


def test_advice_can_be_typed():
    """A call that `doctor`, an error or a runbook advises has every argument and required option."""
    calls = {" ".join(call): text.where for text in of_advice() for call in named_in(text.text.replace("…", "X"))}
    assert len(calls) > 30
    assert {call: fault for call in calls if (fault := fault_of(shlex.split(call)))} == {}


def test_advice_that_changes_something_is_executed():
    """Each advised command reads only, or a test executes it."""
    names = {name for name, _ in every_command()}
    advised = {
        max((name for name in names if f"{' '.join(call)} ".startswith(f"{name} ")), key=len, default="")
        for text in of_advice()
        for call in named_in(text.text.replace("…", "X"))
    }
    assert advised - ADVICE_THAT_READS == set(ADVICE_EXECUTED)
    for place in ADVICE_EXECUTED.values():
        path, _, test = place.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text("utf-8"), place


def test_no_advice_deletes_the_only_copy_of_something():
    """No message advises to delete what the log, the database or the registry holds; every other deletion has a reason."""
    found = {text.text for text in of_advice() if _DELETION.search(text.text)}
    assert found == set(DELETIONS)


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

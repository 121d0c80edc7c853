"""The file of a history, and what clients draw."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.api.history_check.history import Action, HistoryError, Recorder, read_history
from highwater.api.history_check.sessions import Draws


def test_a_history_is_read_as_it_was_recorded(tmp_path: Path):
    """Events in order, with their numbers and times; an incomplete last line, of a killed run, is ignored."""
    path = tmp_path / "history.jsonl"
    with Recorder(path, seed=1, apis=["http://one"]) as recorder:
        read = recorder.invoke(
            "a", "http://one", Action.READ_PAGE, "league:s/table", min_positions=("t/0/1",), is_final=True
        )
        written = recorder.invoke("b", "kafka", Action.WRITE_INSIGHT, "insight:c/i", value="text")
        ends = [
            recorder.complete(written, None),
            recorder.complete(read, 200, etag='W/"1"', version=0, positions=("t/0/2",), content={"matches": 0}),
        ]
    with path.open("ab") as file:
        file.write(b'{"type":"invocation","number":3')
    assert list(read_history(path)) == [read, written, *ends]
    assert read.at_ns <= written.at_ns <= ends[0].at_ns <= ends[1].at_ns
    with pytest.raises(FileExistsError):
        Recorder(path, seed=1, apis=[])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1"),
        ("[]\n", "it is not a JSON object"),
        ('{"history":2}\n', "it is not of format 1"),
        ('{"history":1}\n{"type":"completion","other":1}\n', "line 2"),
        ('{"history":1}\n{"type":"invocation","action":"none"}\n', "line 2"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, why: str):
    """In one sentence, with the line and the next step."""
    path = tmp_path / "other"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HistoryError, match=why) as found:
        list(read_history(path))
    assert str(found.value).endswith("name a file that --history has written")


def test_a_seed_determines_what_a_client_draws():
    """Each client draws its own numbers, below the limit."""
    drawn = [
        [Draws(seed, name).below(100) for _ in range(1)] for seed, name in ((1, "a"), (1, "a"), (1, "b"), (2, "a"))
    ]
    assert drawn[0] == drawn[1]
    assert len({number for numbers in drawn for number in numbers}) == 3
    draws = Draws(1, "a")
    assert {draws.below(3) for _ in range(50)} == {0, 1, 2}

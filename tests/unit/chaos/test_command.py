"""`highwater chaos` before it makes anything: its plan, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from highwater.api.chaos.plan import LEFT_OUT, plan_faults
from highwater.api.cli.chaos import chaos


def test_a_plan_is_printed_with_what_no_plan_has():
    """For people and for programs."""
    said = CliRunner().invoke(chaos, ["--seed", "4", "--minutes", "1", "--plan"])
    planned = plan_faults(4, 60)
    assert said.exit_code == 0
    lines = said.output.splitlines()
    assert lines[: len(planned)] == [str(fault) for fault in planned]
    assert len(lines) == len(planned) + len(LEFT_OUT)
    found = json.loads(CliRunner().invoke(chaos, ["--seed", "4", "--minutes", "1", "--plan", "--json"]).output)
    assert found == {"seed": 4, "planned": [fault.as_json() for fault in planned], "left_out": LEFT_OUT}


def test_what_is_no_fault_and_a_folder_that_is_there_are_refused(tmp_path: Path):
    """Before a stack is started: nothing is in the folder."""
    unknown = CliRunner().invoke(chaos, ["--seed", "1", "--only", "flood"])
    assert unknown.exit_code == 2
    assert "there is no fault 'flood'; there are kill, stop" in unknown.output
    there = CliRunner().invoke(chaos, ["--seed", "1", "--keep", str(tmp_path)], standalone_mode=False)
    assert "exists already" in str(there.exception)
    assert list(tmp_path.iterdir()) == []

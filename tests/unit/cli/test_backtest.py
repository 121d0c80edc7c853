"""`highwater backtest` over a file of insights: nothing has to run for it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest

from highwater.api.command.command import Group, run_command
from highwater.api.feeds.cli_backtest import backtest
from highwater.api.feeds.plots import layout, write_plot


@click.group(cls=Group)
def _program() -> None:
    """Nothing but the command."""


_program.add_command(backtest)


@pytest.fixture
def insights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A month of insights in two channels, and one invalid line; without a stack."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "insights.jsonl.gz"
    rows = [
        {
            "insight_id": f"i{n}",
            "channel_id": f"c{n % 2}",
            "ts": f"2026-03-{1 + n // 24:02}T{n % 24:02}:00:00Z",
            "text": "x",
        }
        for n in range(30 * 24)
    ]
    with gzip.open(path, "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows) + "no insight\n")
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = run_command(_program, ["backtest", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def _policy(tmp_path: Path, name: str, count: int) -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text(f"[plans.free]\nnovelty_count_min = {count}\n[plans.pro]\nnovelty_count_min = {count}\n")
    return path


def test_policies_stand_beside_the_live_one(insights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that asks for more novelty rebuilds less, and its readers wait longer."""
    eager, lazy = _policy(tmp_path, "eager", 1), _policy(tmp_path, "lazy", 1_000)
    status, out, err = _run(
        capsys,
        "--insights",
        insights,
        "--population",
        20,
        "--policy",
        eager,
        "--policy",
        lazy,
        "--price",
        "1/2",
        "--json",
    )
    assert status == 0
    assert "1 line" in err
    document = json.loads(out)
    live, *others = document["policies"]
    assert [one["policy"] for one in document["policies"]] == ["live", "eager", "lazy"]
    assert others[0]["rebuilds"] > live["rebuilds"] >= others[1]["rebuilds"] > 0
    assert others[0]["staleness_p95_seconds"] < others[1]["staleness_p95_seconds"]
    assert live["llm_cost_usd"] > 0
    assert document["live_check"] is None


def test_a_time_bounds_the_history(insights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An age counts from the last insight of the file, whenever that was."""
    _, out, _ = _run(capsys, "--insights", insights, "--population", 3, "--from", "-10d", "--json")
    assert json.loads(out)["policies"][0]["days"] == pytest.approx(10, abs=0.01)


def test_people_get_a_table(insights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a policy, and what it is about."""
    status, out, _ = _run(capsys, "--insights", insights, "--population", 3)
    assert status == 0
    assert "stale p50" in out.splitlines()[0]
    assert out.splitlines()[1].startswith("live")
    assert "3 users over 30" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "yesterday"], "'yesterday' is neither"),
        (["--population", "0"], "0 is not in the range"),
        (["--plot", "p.gif"], "FILE.svg or FILE.png"),
        (["--price", "3"], "IN/OUT"),
        (["--policy", "missing.toml"], "does not exist"),
        (["--policy", "bad.toml", "--population", "3"], "bad.toml"),
        (["--from", "2027-01-01", "--population", "3"], "--from is not before --to"),
    ],
)
def test_wrong_use_is_one_line(
    insights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """The line names the mistake."""
    (tmp_path / "bad.toml").write_text("[plans.free]\nnovelty = 3\n")
    given = ["--population", "3"] if "--population" not in arguments else []
    status, out, err = _run(capsys, "--insights", insights, *given, *arguments)
    assert status in (1, 2)
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) <= 2  # the warning of the file's bad line may stand before it


def test_more_than_five_policies_are_refused(
    insights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A picture of more cannot be read."""
    many = [part for n in range(6) for part in ("--policy", _policy(tmp_path, f"p{n}", n + 1))]
    status, _, err = _run(capsys, "--insights", insights, "--population", 3, *many)
    assert status == 2
    assert "at most 5" in err


def test_a_plot_is_a_picture_of_the_table(insights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SVG that is XML, with every policy's name in it; PNG that opens."""
    from PIL import Image

    for name in ("plot.svg", "plot.png"):
        status, _, err = _run(capsys, "--insights", insights, "--population", 3, "--plot", name)
        assert status == 0, err
    texts = [element.text for element in ET.parse(tmp_path / "plot.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert "live" in texts
    assert "2026-03-01" in texts
    with Image.open(tmp_path / "plot.png") as image:
        assert image.size[0] == 1_920


def test_a_policy_without_rebuilds_can_be_drawn(tmp_path: Path) -> None:
    """It has no figures and no bars, but is valid XML with any name."""
    nothing: dict[str, Any] = {
        "policy": "<none> & more", "rebuilds_per_user_day": None, "staleness_p50_seconds": None,
        "staleness_p95_seconds": None, "clustering_seconds": 0.0, "rebuilds_by_day": {},
    }  # fmt: skip
    marks, height = layout([nothing])
    assert marks
    assert height > 0
    write_plot(tmp_path / "p.svg", [nothing])
    ET.parse(tmp_path / "p.svg")

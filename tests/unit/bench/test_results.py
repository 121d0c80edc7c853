"""Kept results of benchmarks: the guard of ratios, the curves and their exponents."""

import json
import math

import pytest

from highwater.api.cli.main import highwater
from highwater.api.command.command import run_command
from tests.bench import results
from tests.bench.figures import Figure, figure, point


def _measured(ours: float, peer: float, unit: str = "rows/s") -> list[Figure]:
    return [figure("ingest", "highwater", unit, [ours]), figure("ingest", "COPY", unit, [peer])]


@pytest.mark.parametrize(
    ("unit", "now", "share", "dropped"),
    [
        ("rows/s", (50, 100), 0.8, False),  # a machine of half the speed: the ratio is what it was
        ("rows/s", (79, 200), 0.8, True),
        ("rows/s", (81, 200), 0.8, False),
        ("ms", (100, 200), 0.8, False),
        ("ms", (101, 80), 0.8, True),  # less is better: 0.79 of the peer's speed
        ("1=yes", (1, 100), 0.8, False),  # a unit that says neither better nor worse
    ],
)
def test_only_a_ratio_to_a_peer_can_drop(unit, now, share, dropped):
    """Our figure is compared with the peer's of the same run, in the direction of its unit."""
    before = _measured(100, 200) if unit == "rows/s" else _measured(100, 100, unit)
    assert bool(results.drops(before, _measured(*now, unit), share)) is dropped


def test_a_drop_says_both_ratios():
    """The message contains the ratio before and the ratio now."""
    (one,) = results.drops(_measured(100, 200), _measured(20, 200), 0.8)
    assert (one.name, one.ours, one.peer, one.before, one.now) == ("ingest [rows/s]", "highwater", "COPY", 0.5, 0.1)


def test_points_of_a_curve_are_compared_at_their_size():
    """A slow small run and a fast big one are not confused."""
    before = [point(one, at, "rows") for at in (1_000, 10_000) for one in _measured(100, 100)]
    now = [point(one, at, "rows") for at, ours in ((1_000, 100), (10_000, 10)) for one in _measured(ours, 100)]
    assert [one.name for one in results.drops(before, now, 0.8)] == ["ingest at 10,000 [rows/s]"]


def test_the_exponent_of_a_curve():
    """Linear work has 1, quadratic 2, constant 0; figures that are not positive have no exponent."""
    sizes = (1_000.0, 10_000.0, 100_000.0, 1_000_000.0)
    for power in (0, 1, 2):
        assert results.exponent([(size, 3 * size**power) for size in sizes]) == pytest.approx(power)
    assert math.isnan(results.exponent([(1.0, 0.0), (2.0, 1.0)]))


def test_results_are_read_as_they_were_saved(tmp_path):
    """Machine, versions and date are beside the figures; nothing in the file names a folder or a host."""
    found = results.results_of("ingest", _measured(1, 2), 1_700_000_000_000)
    (path,) = results.save(tmp_path, found)
    assert results.read(path) == found
    assert (found["date"], set(found["machine"])) == ("2023-11-14", {"cores", "memory_gb", "system", "processor"})
    assert {"python", "highwater", "numpy"} <= found["versions"].keys()


def test_a_file_without_results_is_wrong_use(tmp_path, capsys):
    """One line and exit code 2, before anything runs."""
    path = tmp_path / "ingest.json"
    for text, said in (
        ("{", "cannot be read"),
        ("[]", "holds no results"),
        (json.dumps({"benchmark": "nothing", "figures": []}), "'nothing'"),
    ):
        path.write_text(text)
        assert run_command(highwater, ["bench", "--compare", str(path)]) == 2
        assert said in capsys.readouterr().err


def test_a_drop_is_exit_code_1(tmp_path, capsys, monkeypatch):
    """`bench --compare` runs the file's benchmark alone and fails with the ratio that dropped."""
    from tests.bench import ingest

    monkeypatch.setattr(ingest, "run", lambda runs: _measured(20, 200))
    (path,) = results.save(tmp_path, results.results_of("ingest", _measured(100, 200), 0))
    assert run_command(highwater, ["bench", "--compare", str(path)]) == 1
    assert "highwater is 0.1 x COPY, was 0.5" in capsys.readouterr().err
    assert run_command(highwater, ["bench", "--compare", str(path), "--share", "0.1"]) == 0

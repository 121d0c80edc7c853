"""`highwater import` against the real parts, run as a user runs it: a process, its output, its exit status, the log."""

from __future__ import annotations

import gzip
import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from highwater.api.cli.sample import SEASON_FILE
from highwater.schemas.positions import parse_position
from tests.integration import commands
from tests.integration.records import records

SCHEDULED, FINALIZED = "league.match-scheduled", "league.match-finalized"


@pytest.fixture
def season() -> str:
    """A season of the test's own; the log is shared."""
    return f"2018-19_{uuid.uuid4().hex[:8]}"


def run(environment: dict[str, str], *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """The import, run to its end."""
    return commands.run(environment, "import", "openfootball", *arguments, stdin=stdin)


def match(home: str, **told: Any) -> dict[str, Any]:
    """A played match."""
    return {"round": "1", "date": "2018-08-18", "team1": home, "team2": "Chelsea", "score": {"ft": [1, 0]}, **told}


def written(tmp_path: Path, *matches: Any) -> str:
    """A file of these matches."""
    path = tmp_path / "season.json"
    path.write_text(json.dumps({"matches": matches}), encoding="utf-8")
    return str(path)


def log(stack: Any, topic: str, season: str) -> list[Any]:
    """The records of a season, in the order of its partition."""
    return records(stack, topic, lambda key: key == season)


def test_a_season_is_published_matches_before_results(environment, stack, season):
    """The whole season arrives under its key at the printed positions, every match before the first result, and a repeat is
    equal.
    """
    done = run(environment, str(SEASON_FILE), "--season", season, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert tuple(told[name] for name in ("matches", "scheduled", "finalized", "rejected")) == (380, 380, 380, 0)
    matches, results = log(stack, SCHEDULED, season), log(stack, FINALIZED, season)
    assert (len(matches), len(results)) == (380, 380)
    last = [f"{row.topic()}/{row.partition()}/{row.offset()}" for row in (matches[-1], results[-1])]
    assert last == told["positions"]
    assert max(row.timestamp()[1] for row in matches) <= min(row.timestamp()[1] for row in results)
    headers = dict(results[0].headers())
    assert headers["ce_type"] == FINALIZED.encode()

    again = run(environment, str(SEASON_FILE), "--season", season)
    assert again.returncode == 0, again.stderr
    assert f"imported {season}: 380 matches, 380 results" in again.stdout
    for topic, before in ((SCHEDULED, matches), (FINALIZED, results)):
        assert [row.value() for row in before] * 2 == [row.value() for row in log(stack, topic, season)]


def test_as_of_and_timezone(environment, stack, season, tmp_path):
    """Results come up to the given moment, with kickoffs in the league's zone; the file may come through a pipe, packed."""
    path = Path(written(tmp_path, match("Arsenal", time="15:00"), match("Fulham", time="17:30"), match("Leeds")))
    arguments = ("-", "--season", season, "--timezone", "Europe/London", "--as-of", "2018-08-18T16:00:00Z", "--json")
    done = run(environment, *arguments, stdin=gzip.compress(path.read_bytes()))
    told = json.loads(done.stdout)
    assert (told["scheduled"], told["finalized"]) == (3, 2)
    assert [parse_position(position).topic for position in told["positions"]] == [SCHEDULED, FINALIZED]
    assert (len(log(stack, SCHEDULED, season)), len(log(stack, FINALIZED, season))) == (3, 2)


def test_bad_entries_are_named_and_the_others_published(environment, stack, season, tmp_path):
    """The first five are shown with their numbers, the rest counted; a repetition is reported once; the exit status is 1."""
    bad = [match(f"Team {n}", date="someday") for n in range(7)]
    path = written(tmp_path, match("Arsenal"), *bad, match("Leeds"), match("Leeds"), match("Leeds"))
    done = run(environment, path, "--season", season)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert [f"match {n}" for n in range(2, 7)] == [line.partition(":")[0] for line in said[:5]]
    assert "2 more bad matches" in said[5]
    assert "match 10 and 1 more" in said[6]
    assert len(said) == 7
    assert f"imported {season}: 2 matches, 2 results, 7 rejected" in done.stdout
    assert (len(log(stack, SCHEDULED, season)), len(log(stack, FINALIZED, season))) == (2, 2)


@pytest.mark.parametrize(
    ("content", "arguments", "status", "said"),
    [
        (b"no json", (), 1, "not JSON"),
        (b'{"matches": []}', (), 1, "no matches"),
        (gzip.compress(b'{"matches": []}' * 99)[:-9], (), 1, "cannot be read completely"),
        (b"{}", ("--timezone", "Mars/Olympus"), 2, "not a time zone"),
        (b"{}", ("--timezone", "../etc"), 2, "not a time zone"),
        (b"{}", ("--as-of", "soon"), 2, "not an ISO 8601 time"),
        (b"{}", ("--season", ""), 2, "season is empty"),
    ],
    ids=["no JSON", "no matches", "torn", "no zone", "no name of a zone", "no time", "no season"],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_line(environment, season, tmp_path, content, arguments, status, said):
    """An invalid file fails with 1, wrong use with 2, each with one line on standard error."""
    path = tmp_path / "file"
    path.write_bytes(content)
    done = run(environment, str(path), "--season", season, *arguments)
    assert (status, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n")), done.stderr
    assert said in done.stderr

"""What names of rounds mean, and which rounds count for the table."""

from __future__ import annotations

import pytest

from highwater.streams.league.stages import counted_rounds, stage_of

NAMES = {
    "Final": "final",
    "FINAL": "final",
    "Finals": "final",
    "Grand Final": "final",
    "Play-offs - Final": "final",
    "Semi-finals": "semi-final",
    "Semifinal": "semi-final",
    "Semi Finals | 1st Leg": "semi-final",
    "Semi-finals, 2nd leg": "semi-final",
    "1/2": "semi-final",
    "Quarterfinals": "quarter-final",
    "Quarter-finals (Leg 2)": "quarter-final",
    "1/4-Finals": "quarter-final",
    "Last 8": "quarter-final",
    "Round of 16": "round of 16",
    "Round of the last 16": "round of 16",
    "Last 16": "round of 16",
    "1/8": "round of 16",
    "1/8 finals": "round of 16",
    "8th Finals": "round of 16",
    "Eighth-finals": "round of 16",
    "Last 32": "round of 32",
    "Round of 64": "round of 64",
    "16th Finals": "round of 32",
    "Match for third place": "third place",
    "Third place play-off": "third place",
    "3rd-place match": "third place",
    "Play-off": "play-off",
    "Playoffs": "play-off",
    "Knockout round play-offs": "play-off",
    "Promotion Play-Offs": "play-off",
    "Play-off Round": "play-off",
    "Finals, Final": "final",
    "Final Replay": "final",
    "Knockout, Quarter-finals": "quarter-final",
    "Finals, Round of 16": "round of 16",
    "Apertura Playoffs, Semifinals": "semi-final",
    "Playoffs, 3. Platz": "third place",
    "Promotion Play-offs - Semi-finals": "play-off",
    "Relegation, Final": "play-off",
    "Europa League Finals, Semifinals": "play-off",
    "Playout, Final": "play-off",
    "Finals, Elimination Final": "play-off",
    "Playoffs, 5.-8. Platz Playoffs": "play-off",
    "Clausura Playoffs, Play-in round 2": "play-off",
    "Inter-confederation Play-offs, Pathway 1, Final": "play-off",
    "Play-offs 1": "play-off",
    "Playoffs I": "play-off",
    "Play-offs III": "play-off",
    "Playoffs, Matchday 2": "play-off",
    "Play-off Round 2": "play-off",
    "Championship Play-offs": "play-off",
    "Championship, Matchday 23": "second phase",
    "Relegation, Matchday 2": "second phase",
    "ECL Playoffs, Matchday 6": "second phase",
    "Playoff I, Matchday 10": "second phase",
    "Championship Round": "second phase",
    "Championship Round - 10": "second phase",
    "Relegation Group, Matchday 2": "second phase",
    "Meistergruppe": "second phase",
    "Qualifying. 1st Round": "qualifying",
    "Preliminary Round": "qualifying",
    "Matchday 1": None,
    "Regular Season - 3": None,
    "League, Matchday 2": None,
    "Final Round": None,
    "Regular, Matchday 3": None,
    "Apertura, Matchday 3": None,
    "1. Round": None,
    "Round 8": None,
    "Round 16": None,
    "Group A": None,
    "Final Matchday": None,
    "Finals Group A": None,
    "Last 10": None,
    "Round of 0": None,
    "Round of 9999": None,
    "1/0": None,
    "3. Spieltag": None,
    "-": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str):
    """A round is recognised by its name, or is none of a knock-out competition."""
    stage = stage_of(name)
    assert NAMES[name] == (stage.name if stage else None)


def test_rounds_of_a_league_count_alone():
    """A stage counts only in a season without a round of a league: a cup has a table of all its matches."""
    assert counted_rounds(["Matchday 1", "Group A", "Play-offs 1", "Final", "Championship Round"]) == {
        "Matchday 1",
        "Group A",
    }
    assert counted_rounds(["Semi-finals", "Final"]) == {"Semi-finals", "Final"}

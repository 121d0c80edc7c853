"""Differences of lines: those of `diff -u`, for any two texts in a short time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.line_diff import parts, unified

LINES = st.lists(st.sampled_from("abcd"), max_size=12)


@given(LINES, LINES, st.integers(0, 3))
def test_a_difference_leads_from_one_text_to_the_other(old: list[str], new: list[str], context: int):
    """The lines of both texts are in it, each with its sign, at the places that the ranges name."""
    lines = unified(old, new, context)
    assert bool(lines) == (old != new)
    assert [line for one in parts(old, new) for line in old[one.begin : one.end]] == old
    rebuilt, place = [], 0
    for line in lines:
        if line.startswith("@@"):
            begin, _, count = line.split()[1][1:].partition(",")
            start = int(begin) - (count != "0")
            rebuilt += old[place:start]
            place = start
        else:
            place += line[0] != "+"
            rebuilt += [line[1:]] if line[0] != "-" else []
    assert rebuilt + old[place:] == new


def test_a_difference_is_written_as_diff_writes_it():
    """With its ranges and the lines around it."""
    old = [str(number) for number in range(10)]
    assert unified(old, [*old[:4], "x", *old[5:]], 1) == ["@@ -4,3 +4,3 @@", " 3", "-4", "+x", " 5"]
    assert unified([], ["a", "b"], 3) == ["@@ -0,0 +1,2 @@", "+a", "+b"]
    assert unified(["a"], [], 3) == ["@@ -1 +0,0 @@", "-a"]

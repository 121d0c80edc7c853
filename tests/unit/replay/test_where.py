"""Conditions over records: which fields they may read, what is refused and where, what has no answer."""

from __future__ import annotations

import pytest

from highwater.connectors.replay.where import CHARACTERS_MAX, Where, WhereError
from tests.unit.replay.making import TOPIC, batch, decoder_of, encoded, insight, own_text

DECODER = decoder_of()


def values():
    """Two insights, a tombstone, and invalid bytes."""
    return [
        encoded(insight(channel_id="git", text="a", ts=1_000), own_text()),
        encoded(insight(channel_id="web", text=None, ts=1_700_000_000_000), own_text()),
        None,
        b"garbage",
    ]


BATCH = batch(
    values(),
    keys=[b"git", b"web", b"git", None],
    headers=[[("ce_type", b"x")], None, [("ce_type", b"y"), ("ce_type", b"x")], []],
    times_ms=[0, 86_400_000, 172_800_000, 259_200_000],
)


def kept(text: str, of=BATCH) -> list[int]:
    """The places that a condition keeps."""
    return Where(text, DECODER.arrow_type, TOPIC).kept(DECODER.decode(of))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value.channel_id == 'git'", [0]),
        ("value != null && value.channel_id == 'git'", [0]),
        ("value == null", [2, 3]),
        ("value != null && value['text'] == null", [1]),
        ("value.ts > timestamp('2020-01-01T00:00:00Z')", [1]),
        ("key == 'git'", [0, 2]),
        ("key == null", [3]),
        ("headers.ce_type == 'x'", [0, 2]),
        ("'ce_type' in headers", [0, 2]),
        ("time >= timestamp('1970-01-03T00:00:00Z')", [2, 3]),
        ("time - timestamp('1970-01-01T00:00:00Z') < duration('25h')", [0, 1]),
        ("offset >= 102 && partition == 3", [2, 3]),
        (f"topic == '{TOPIC}'", [0, 1, 2, 3]),
        ("true", [0, 1, 2, 3]),
        ("['git', 'web'].exists(one, one == value.channel_id)", [0, 1]),
        ("key.upperAscii() == 'GIT'", [0, 2]),
        ("value.text == 'value.nothing'", []),
        ("value.channel_id.matches('^g.t$')", [0]),
    ],
)
def test_a_condition_looks_at_key_value_headers_time_and_place(text: str, expected: list[int]):
    """Each field of a record can be used; times are times, and a quoted text is not a field."""
    assert expected == kept(text)


def test_both_ways_of_reading_give_the_same_answers():
    """Events that were decoded all at once are asked as those decoded one by one."""
    flat = batch(values()[:2])
    assert DECODER.decode(flat).made_column is not None
    assert kept("value.ts > timestamp('2020-01-01T00:00:00Z') || value.text == 'a'", flat) == [0, 1]
    assert kept("value.text == null", flat) == [1]


def refused(text: str) -> WhereError:
    """The refusal of a condition."""
    with pytest.raises(WhereError) as caught:
        kept(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "said", "pointer"),
    [
        ("value.channel_id ==", "it ends too early", "value.channel_id ==\n                   ^"),
        ("key = 'a'", "token recognition error at: '= '", "key = 'a'\n    ^"),
        ("key ==\n  @ 3", "token recognition", "  @ 3\n  ^"),
        ("", "it ends too early", "\n^"),
        ("value['a", "token recognition", "value['a\n      ^"),
        ("key.lower() == 'a'", "no function 'lower'", "key.lower() == 'a'\n    ^"),
        ("kez == 'a'", "no 'kez'; there are key, value", "kez == 'a'\n^"),
        ("key == 'kez' || kez == 'a'", "no 'kez'", "key == 'kez' || kez == 'a'\n                ^"),
        ("value.chanel == 'a'", "no field 'chanel'; they have insight_id", "value.chanel == 'a'\n      ^"),
        ("open('/etc/passwd')", "no function 'open'", "open('/etc/passwd')\n^"),
        ("__import__('os')", "no function '__import__'", "__import__('os')\n^"),
        ("size(key)", "the answer is int, not true or false", "size(key)\n^"),
        ("0", "the answer is int, not true or false", "0\n^"),
        ("value.text", "the answer is str, not true or false", "value.text\n^"),
        ("value.ts", "the answer is datetime, not true or false", "value.ts\n^"),
        ("(" * 500 + "true" + ")" * 500, "nested too deeply", None),
        ("true || " * CHARACTERS_MAX + "true", "at most 4,000", None),
    ],
)
def test_what_is_no_condition_is_refused_under_its_spot(text: str, said: str, pointer: str | None):
    """The message says why in a few words, the caret stands under the place."""
    error = refused(text)
    assert said in str(error)
    assert "expecting" not in str(error)
    assert pointer is None or error.pointer() == pointer


@pytest.mark.parametrize("text", ["0", "value.text", "value.ts", "[key]", "size(headers)"])
def test_what_is_no_condition_is_known_before_a_record_is_read(text: str):
    """By a record of empty values, so that nothing is answered before the refusal."""
    with pytest.raises(WhereError, match="not true or false"):
        Where(text, DECODER.arrow_type, TOPIC).require_condition()


@pytest.mark.parametrize(
    "text", ["true", "value.text == null", "headers.ce_type == 'x'", "headers.ce_type", "key.size() > 1 / 0"]
)
def test_a_condition_that_only_records_can_answer_is_taken(text: str):
    """It has no answer for empty values; that is not counted."""
    where = Where(text, DECODER.arrow_type, TOPIC)
    where.require_condition()
    assert (where.failed, where.first_failure) == (0, None)


def test_a_record_without_an_answer_is_left_out_and_counted():
    """The letters of a null, a missing header: left out, with the first reason; a tombstone is not a fault."""
    where = Where("value.text.startsWith('a')", DECODER.arrow_type, TOPIC)
    assert where.kept(DECODER.decode(BATCH)) == [0]
    assert where.failed == 1
    assert where.first_failure
    where = Where("headers['ce_type'] == 'x'", DECODER.arrow_type, TOPIC)
    assert where.kept(DECODER.decode(BATCH)) == [0, 2]
    assert (where.failed, where.first_failure) == (2, "no field 'ce_type'")

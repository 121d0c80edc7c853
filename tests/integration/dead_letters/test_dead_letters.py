"""`highwater dlq` against the real services: every action on a letter leaves its trace, and no action is repeated unnoticed."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.commands import printed, run, tail

TOPIC = "jobs.role-changed"
HANDLED = "streams.dead-letter-handled"


@pytest.fixture
def bury(stack):
    """Puts a letter on the dead-letter topic of TOPIC as its sink would; its offset."""

    def put(value: bytes | None, key: bytes = b"ada", **headers: str) -> int:
        named = {"dlq_reason": "not_avro", "dlq_detail": "d", "dlq_origin": f"{TOPIC}/5/0", **headers}
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": stack.kafka})
        producer.produce(
            f"{TOPIC}.dlq", value, key, headers=[(name, text.encode()) for name, text in named.items()],
            on_delivery=lambda error, message: offsets.append(message.offset()),
        )  # fmt: skip
        assert producer.flush(30) == 0
        return offsets[0]

    return put


def listed(environment: dict[str, str], offset: int) -> dict[str, Any]:
    """The output of `list` for a letter."""
    letters = printed(run(environment, "dlq", "list", TOPIC, "--json"))
    return next(one for one in letters if one["position"] == f"{TOPIC}.dlq/0/{offset}")


def test_a_redrive_leaves_its_trace_and_is_not_repeated(environment, bury):
    """The trace names letter, new position, who and why; the letter counts as sent, and only --again sends it once more."""
    offset = bury(b"\x01bytes")
    assert listed(environment, offset)["open"] is True
    arguments = ("dlq", "redrive", TOPIC, "--offset", str(offset), "--json")
    told = printed(run(environment, *arguments, "--note", "the sink was mended"))
    assert (told["redriven"], told["sent_before"]) == (1, 0)
    position = told["positions"][0]["position"]
    assert position.startswith(f"{TOPIC}/5/")

    trace = tail(environment, HANDLED, 1)[0]
    assert (trace["key"], trace["headers"]["ce_causedby"]) == (TOPIC, f"{TOPIC}.dlq/0/{offset}")
    seen = trace["value"]
    assert (seen["action"], seen["position"], seen["note"]) == ("redriven", position, "the sink was mended")

    one = listed(environment, offset)
    assert (one["open"], [deed["position"] for deed in one["handled"]]) == (False, [position])
    again = printed(run(environment, *arguments))
    assert (again["redriven"], again["sent_before"]) == (0, 1)
    assert printed(run(environment, *arguments, "--again"))["redriven"] == 1
    still_open = printed(run(environment, "dlq", "list", TOPIC, "--open", "--json"))
    assert offset not in [int(letter["position"].rsplit("/", 1)[1]) for letter in still_open]


def test_an_edit_mends_what_its_bytes_meant(environment, bury, stack):
    """A letter is edited field by field, shown first, checked, and sent to where its key belongs."""
    user = uuid.uuid4().hex
    printed(run(environment, "publish", TOPIC, "-", "--json", stdin=json.dumps(role(user))))
    good = tail(environment, TOPIC, 1)[0]
    assert good["value"]["user_id"] == user
    record = raw_of(stack, good["position"])
    offset = bury(record, b"wrong", ce_id="77")
    shown = printed(run(environment, "dlq", "show", TOPIC, "--offset", str(offset), "--json"))
    assert (shown["value"]["user_id"], shown["schema_id"] is not None) == (user, True)

    edit = ("dlq", "edit", TOPIC, str(offset), "--set", "role=editor", "--json")
    dry = printed(run(environment, *edit, "--dry-run"))
    assert (dry["position"], [one["field"] for one in dry["changes"]]) == (None, ["role", "key"])
    assert run(environment, *edit).returncode == 2  # there is no terminal to confirm on, so --yes is needed
    done = printed(run(environment, *edit, "--yes"))
    assert tail(environment, TOPIC, 1)[0]["position"] == done["position"] == sent(environment, user)["position"]
    assert sent(environment, user)["headers"]["ce_id"].startswith("77-edited-")
    assert tail(environment, HANDLED, 1)[0]["value"]["changed"] == ["role", "key"]

    refused = run(environment, *edit, "--yes")
    assert (refused.returncode, "--again" in refused.stderr) == (1, True)
    wrong = run(environment, "dlq", "edit", TOPIC, str(offset), "--set", "role=emperor", "--again", "--yes")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)


def role(user: str) -> dict[str, Any]:
    """An event of TOPIC."""
    return {"user_id": user, "role": "viewer", "ts": "2020-01-01T00:00:00Z"}


def raw_of(stack: Any, position: str) -> bytes:
    """The bytes of a record."""
    from highwater.connectors.kafka.admin import LogRange
    from highwater.connectors.kafka.reading import open_reader, read_spans
    from highwater.schemas.positions import parse_position

    place = parse_position(position)
    reader = open_reader({"bootstrap.servers": stack.kafka})
    try:
        found = list(read_spans(reader, {place[:2]: LogRange(place.offset, place.offset + 1)}))
    finally:
        reader.close()
    assert found[0].value is not None
    return found[0].value


def sent(environment: dict[str, str], user: str) -> dict[str, Any]:
    """The latest event of a user."""
    found = [one for one in tail(environment, TOPIC, 50) if one["key"] == user]
    assert found[-1]["value"]["role"] == "editor"
    return found[-1]


def test_undecodable_bytes_are_shown_as_they_were_written(environment, bury, stack):
    """A letter of another topic's schema is shown by that schema; its bytes can be had as they are and replaced."""
    user = uuid.uuid4().hex
    line = json.dumps({"user_id": user, "ts": "2020-01-01T00:00:00Z"})
    printed(run(environment, "publish", "feeds.user-active", "-", "--json", stdin=line))
    foreign = raw_of(stack, tail(environment, "feeds.user-active", 1)[0]["position"])
    offset = bury(foreign)
    shown = printed(run(environment, "dlq", "show", TOPIC, "--offset", str(offset), "--json"))
    assert shown["as_written"]["user_id"] == user
    assert "undecodable" in shown
    assert user in run(environment, "dlq", "show", TOPIC, "--offset", str(offset)).stdout
    done = run(environment, "dlq", "edit", TOPIC, str(offset), "--bytes", "-", "--yes", "--json", stdin=b"any\xff")
    assert raw_of(stack, printed(done)["position"]) == b"any\xff"


def test_original_bytes_are_written_to_a_file(environment, bury, tmp_path):
    """`show --bytes FILE` writes the value of one letter and nothing else."""
    offset = bury(b"\x00\xff\n")
    done = run(environment, "dlq", "show", TOPIC, "--offset", str(offset), "--bytes", str(tmp_path / "out"))
    assert (done.returncode, (tmp_path / "out").read_bytes()) == (0, b"\x00\xff\n")


def test_what_cannot_be_sent_fails_after_the_rest(environment, bury):
    """A letter without its bytes is named, the others are sent, and the status is 1."""
    good, omitted = bury(b"x"), bury(None, dlq_omitted_bytes="9000000")
    arguments = ("--offset", str(good), "--offset", str(omitted))
    done = run(environment, "dlq", "redrive", TOPIC, *arguments, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["redriven"], told["without_bytes"]) == (1, 1, 1)
    assert "9000000 bytes" in done.stderr


def test_a_drop_is_told(environment, bury):
    """Deleted letters are counted in one event that names the last of them."""
    last = bury(b"x")
    count = printed(run(environment, "dlq", "drop", TOPIC, "--yes", "--json", "--note", "test"))["dropped"]
    told = tail(environment, HANDLED, 1)[0]["value"]
    assert (told["action"], told["letter"], told["count"]) == ("dropped", f"{TOPIC}.dlq/0/{last}", count)

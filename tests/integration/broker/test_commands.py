"""The same by command: topics, groups and schemas, also of other applications, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from highwater.connectors.kafka.registry_http import ask
from highwater.streams.access import RegistryAccess
from tests.conftest import Stack
from tests.integration.broker.making import COUNT, NOTE, TEXT, foreign_topic, schema
from tests.integration.commands import printed, run
from tests.integration.connecting import fresh, send

INSIGHTS = "feeds.insight-ingested"
NOON_MS = 1_794_484_800_000


@pytest.fixture(scope="module")
def environment(stack: Stack, own_settings: Any) -> dict[str, str]:
    """An environment for commands, with this module's database."""
    return stack.environment(DATABASE_URL=own_settings().database)


def test_topics_of_others_are_listed_and_shown(environment: dict[str, str], foreign: str) -> None:
    """`--all` lists them; one has its partitions, its settings and its groups; one that is missing is named."""
    listed = {one["topic"]: one for one in printed(run(environment, "topics", "--all", "--json"))}
    assert (listed[foreign]["subsystem"], listed[INSIGHTS]["subsystem"]) == ("other", "feeds")
    found = printed(run(environment, "topics", foreign, "--json"))
    assert (found["events"], found["groups"][0]["lag"], found["is_catalogued"]) == (COUNT, COUNT - 2, False)
    shown = run(environment, "topics", foreign)
    assert (shown.returncode, "retention.ms" in shown.stdout) == (0, True)
    missing = run(environment, "topics", foreign[:-1])
    assert (missing.returncode, f"did you mean {foreign}" in missing.stderr) == (2, True), missing.stderr


def test_records_of_others_are_replayed_and_followed(environment: dict[str, str], foreign: str) -> None:
    """They are shown as JSON, chosen by fields that no schema declares; a missing topic is named with a similar one."""
    replayed = run(environment, "replay", foreign, "--where", "value.n > 2")
    assert [json.loads(line)["value"] for line in replayed.stdout.splitlines()] == [{"n": 3}, {"n": 4}], replayed.stderr
    followed = run(environment, "tail", foreign, "-n", "1", "--no-follow", "--json")
    assert json.loads(followed.stdout)["value"] == {"n": 4}
    missing = run(environment, "tail", "feeds.insight-ingestd")
    assert (missing.returncode, f"did you mean {INSIGHTS}" in missing.stderr) == (2, True), missing.stderr


def test_the_latest_records_are_found_behind_markers_and_odd_times(
    stack: Stack, environment: dict[str, str], tmp_path: Path
) -> None:
    """Offsets of transactions' markers and of aborted records are no records; a time in microseconds is shown as a number."""
    name, copy = fresh("transactions"), fresh("copies")
    far = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    client = {"bootstrap.servers": stack.kafka}
    admin = AdminClient(client)
    for future in admin.create_topics([NewTopic(one, 1, 1, config=far) for one in (name, copy)]).values():
        future.result(30)
    producer = Producer({**client, "transactional.id": name})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        times = {"timestamp": NOON_MS * 1_000} if number == 1 else {}
        producer.produce(name, b'{"n": %d}' % number, **times)
        producer.flush(30)
        if number < 2:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    for count in (1, 2):
        found = run(environment, "tail", name, "-n", str(count), "--no-follow", "--json")
        records = [json.loads(line) for line in found.stdout.splitlines()]
        assert sorted(one["value"]["n"] for one in records) == [[1], [0, 1]][count - 1], found.stderr
        assert NOON_MS * 1_000 in [one["timestamp"] for one in records]
    assert run(environment, "replay", name, "--into", copy).returncode == 0
    (_, late) = [json.loads(line) for line in run(environment, "replay", copy).stdout.splitlines()]
    assert late["headers"]["replay_time"] == str(NOON_MS * 1_000)
    producer.begin_transaction()
    producer.produce(name, b'{"n": 9}')
    producer.flush(30)
    assert send(stack.kafka, name, [(None, b'{"n": 10}')])
    query = f'SELECT count(*) FROM "{name}"'
    for command in (
        ("replay", name),
        ("count", name),
        ("tail", name, "--no-follow"),
        ("sql", query),
        ("sql", query, "--json"),
    ):
        found = run(environment, *command)
        assert (found.returncode, f"{name}/0 has an open transaction at offset 8: 2 offsets" in found.stderr) == (
            0,
            True,
        )
    producer.abort_transaction(30)
    for future in admin.delete_topics([name, copy]).values():
        future.result(30)


def test_a_schema_that_refers_to_others_is_read(stack: Stack, environment: dict[str, str]) -> None:
    """The registry keeps what it refers to as subjects of their own."""
    access, name = RegistryAccess.required(stack.schema_registry), fresh("references").replace("-", "_")
    address = {"type": "record", "name": "Address", "namespace": name, "fields": [{"name": "city", "type": "string"}]}
    order = {
        "type": "record",
        "name": "Order",
        "namespace": name,
        "fields": [{"name": "to", "type": f"{name}.Address"}],
    }
    ask(access, "POST", f"subjects/{name}_address/versions", {"schema": json.dumps(address), "schemaType": "AVRO"})
    reference = {"name": f"{name}.Address", "subject": f"{name}_address", "version": 1}
    written = {"schema": json.dumps(order), "schemaType": "AVRO", "references": [reference]}
    schema_id = ask(access, "POST", f"subjects/{name}-value/versions", written)["id"]
    with foreign_topic(stack.kafka, name):
        value = b"\0" + int(schema_id).to_bytes(4, "big") + b"\x08Lund"
        send(stack.kafka, name, [(None, value)])
        found = run(environment, "tail", name, "-n", "1", "--no-follow", "--json")
    assert json.loads(found.stdout)["value"] == {"to": {"city": "Lund"}}, found.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("topics nowhere", "describe nowhere", "tail nowhere --no-follow", "replay nowhere", "count nowhere"),
        *("diff nowhere --from 0", "publish nowhere -", "dlq list nowhere", "groups nowhere", "schemas nowhere"),
        *(
            "reset nowhere --to latest",
            "reset insights --to latest --topic nowhere",
            f"replay {INSIGHTS} --into nowhere",
        ),
    ],
)
def test_a_name_that_nothing_has_is_wrong_use(environment: dict[str, str], command: str) -> None:
    """Status 2, in one line that has the name."""
    done = run(environment, *command.split())
    assert (done.returncode, "'nowhere'" in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_records_of_others_are_counted_and_compared(environment: dict[str, str], foreign: str) -> None:
    """They are grouped by a field that no schema declares, and compared by key at two times; a missing topic is named with a
    similar one.
    """
    counted = printed(run(environment, "count", foreign, "--by", "n", "--where", "value.n > 2", "--json"))
    assert counted["values"] == [{"value": 3, "records": 1}, {"value": 4, "records": 1}]
    compared = printed(run(environment, "diff", foreign, "--from", "0/3", "--json"))
    assert (compared["differences"], compared["without_key"]) == ([], COUNT)
    missing = run(environment, "count", foreign[:-1])
    assert (missing.returncode, f"did you mean {foreign}" in missing.stderr) == (2, True), missing.stderr


def test_groups_of_others_are_listed_shown_and_reset(environment: dict[str, str], foreign: str) -> None:
    """The dry run changes nothing; executed, the group continues from there."""
    listed = {one["group"]: one for one in printed(run(environment, "groups", "--json"))}
    assert (listed[foreign]["lag"], listed["insights"]["is_catalogued"]) == (COUNT - 2, True)
    planned = printed(run(environment, "reset", foreign, "--to", "earliest", "--json"))
    assert planned["partitions"] == [{"topic": foreign, "partition": 0, "before": 2, "after": 0}]
    assert printed(run(environment, "groups", foreign, "--json"))["partitions"][0]["next"] == 2
    assert printed(run(environment, "reset", foreign, "--to", "earliest", "--execute", "--json"))["executed"] is True
    shown = run(environment, "groups", foreign)
    assert f"{COUNT} events behind" in shown.stdout
    missing = run(environment, "groups", foreign[:-1])
    assert (missing.returncode, f"did you mean {foreign}" in missing.stderr) == (2, True), missing.stderr


def test_schemas_are_compared_and_checked(environment: dict[str, str], subject: str, tmp_path: Path) -> None:
    """The last two versions; a topic stands for its subject; a check that fails is exit status 1."""
    assert {subject, f"{INSIGHTS}-value"} <= {one["subject"] for one in printed(run(environment, "schemas", "--json"))}
    assert printed(run(environment, "schemas", INSIGHTS, "--json"))["versions"][0]["version"] == 1
    found = printed(run(environment, "schemas", subject, "--diff", "--json"))
    assert (found["from"], found["to"], found["fields"][0]["field"]) == (1, 2, "note")
    file = tmp_path / "order.avsc"
    for count, is_compatible in (({"default": 0}, True), ({}, False)):
        file.write_text(schema(TEXT, NOTE, {"name": "count", "type": "int", **count}), encoding="utf-8")
        checked = run(environment, "schemas", subject, "--check", str(file))
        assert (checked.returncode, "field count" in checked.stderr) == (int(not is_compatible), not is_compatible)
    wrong = run(environment, "schemas", subject, "--from", "1")
    assert (wrong.returncode, "need --diff" in wrong.stderr) == (2, True)

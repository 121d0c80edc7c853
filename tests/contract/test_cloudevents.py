"""Every record that the product writes is an event of CloudEvents 1.0 in the Kafka binding, binary mode."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from highwater.schemas.envelope import REQUIRED_ATTRIBUTES, make_headers
from tests import ROOT

LAYERS = ("streams", "connectors", "api")
# Calls that hand a record to Kafka or to the outbox, and how the record came by its attributes.
WRITERS = {
    "api/command/actions.py": "make_headers",
    "api/command/publishing.py": "make_headers",  # and, of `replay --into`, the headers that the record had
    "api/core/publishing.py": "make_headers",
    "api/dead_letters/handling.py": "make_headers",  # and, of a letter that is sent again, those of its origin
    "api/simulate/agents.py": "make_headers",  # into a log in memory
    "connectors/feeds/worker_fanout.py": "make_headers",
    "connectors/kafka/outbox.py": "make_headers",
    "connectors/kafka/records.py": "missing_attributes",
    "connectors/repair/repairing.py": "make_headers",  # and, of a record that stood in another's place, its own
    "streams/agents.py": "make_headers",
    "streams/driver.py": "make_headers",
    "streams/intake.py": "missing_attributes",
    "streams/worker.py": "make_headers",
}
# They pass on what the ones above made, or what a record had.
CARRIERS = {"api/cli/replay.py", "api/simulate/store.py", "connectors/kafka/producer.py", "streams/app.py"}
# Records of a table's changelog, which are Faust's own and no events.
CHANGELOGS = {"connectors/recovery/changelogs.py", "connectors/recovery/tables.py"}
# Records of aborted transactions, which are no events.
FILLERS = {"connectors/repair/filling.py"}
# A producer from outside, which may omit the attributes.
FOREIGN = {"api/history_check/wire.py"}


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Each call of a module, with the name of its function: for a method its last part, after a point."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield f".{node.func.attr}", node


def modules() -> Iterator[tuple[str, Path]]:
    """Those of the product."""
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path


def hands_over(name: str, call: ast.Call) -> bool:
    """Whether a call gives a record with its headers to Kafka or the outbox."""
    verb = name.rpartition(".")[2]
    if verb not in ("send", "_send"):
        return verb in ("produce", "enqueue", "OutboxRow", "publish_record")
    return "headers" in [ast.unparse(one) for one in call.args] + [word.arg for word in call.keywords]


def test_every_record_is_written_with_the_attributes() -> None:
    """A module that hands a record to Kafka makes its headers by one of two functions, or passes on what those made."""
    made, handed = {}, set()
    for name, path in modules():
        for called, call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            if called in ("make_headers", "missing_attributes"):
                made[name] = called
            if hands_over(called, call):
                handed.add(name)
    assert made == WRITERS
    assert handed <= set(WRITERS) | CARRIERS | CHANGELOGS | FOREIGN | FILLERS


def test_every_source_is_a_uri_reference() -> None:
    """Each constant that a module gives as the source of its events; another one is refused when it is used."""
    found = set()
    for name, path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                named = {one.id for one in node.targets if isinstance(one, ast.Name)}
                if named & {"SOURCE", "_SOURCE"} and name != "api/core/security_log.py":  # a field of an event
                    found.add(node.value.value)
        for _, call in calls(tree):
            words = {word.arg: word.value for word in call.keywords}
            source = words.get("source")
            if isinstance(source, ast.Constant) and words.keys() & {"now_ms", "caused_by"} and "resource" not in words:
                found.add(source.value)
    assert len(found) > 15
    for source in found:
        headers = dict(make_headers(event_id="1", event_type="t", source=source, now_ms=0, caused_by=None))
        assert set(REQUIRED_ATTRIBUTES) <= set(headers)

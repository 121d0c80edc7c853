"""Generates `docs/events.md`, the atlas of events: the producers and consumers of each topic, with links to their code.

Invariant: a function of the catalogue of topics (`schemas/topics.py`) and of the text of the code, none of which is
imported. A topic that no code publishes, or a consumer without a module, raises `NoCodeError`: the page never leaves
one out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from highwater.deploy.dependencies import ROOT
from highwater.schemas.topics import TOPICS, Topic

PAGE = ROOT / "docs" / "events.md"
SUBSYSTEMS = {
    "feeds": "Feeds",
    "league": "Leagues",
    "queries": "Queries",
    "jobs": "Jobs",
    "chunks": "Chunks",
    "cache": "Versions of documents",
    "streams": "Time and dead letters",
    "security": "Actions",
}
# Functions that publish, or write to the outbox, the topic in their arguments.
_PUBLISHING = {
    "row", "_row", "event_row", "_event_row", "tombstone_row", "outbox_event", "_event", "_send", "send", "publish", "one",
    "commands", "taken", "record", "enqueue", "_hand_over", "encode_unjudged",
}  # fmt: skip
# Rooms that read, judge or restore what others published.
_TOOLS = (
    "connectors/backup/",
    "connectors/explain/",
    "connectors/verify/",
    "connectors/replay/",
    "streams/driver.py",
    "api/examples.py",
)
# Code that publishes by a computed name, or a name defined elsewhere.
_ELSEWHERE = {
    **{f"jobs.{kind}-requested": "connectors/jobs/sink_jobs.py" for kind in ("generation", "ingestion", "export")},
    "streams.dead-letter-handled": "api/dead_letters/handling.py",
}
# Roles that are not a consumer group with a module of its own.
_ROLES = {
    "api": "[API](../api/core/events.py)",
    "outside": "any producer",
    "operator": "[operators](../api/dead_letters/README.md)",
}
_HEAD = """\
# Events

<!-- Written by `make generate` from schemas/topics.py and the code; do not edit. -->

Every topic with its producers, its consumers and links to the code. `/asyncapi.json` of a running API has the same for
tools ([AsyncAPI](https://www.asyncapi.com) 3.0), with every schema. Each topic has a dead-letter topic, `<topic>.dlq`.

Any client may write **outside** topics; only Highwater writes the others. If PostgreSQL stores the effect, the event goes to
the [outbox](../connectors/kafka/outbox.py) in the same transaction, and a relay publishes it. A key `a|b` has both values, joined
by `|`. Events are Avro in the Confluent wire format; `highwater tail TOPIC` shows them decoded.
"""


class NoCodeError(LookupError):
    """A topic has a producer or consumer that the code does not show; add what publishes it to `_PUBLISHING`."""


@dataclass(frozen=True, slots=True)
class Code:
    """Where the code publishes and reads: modules by topic, by agent's topic and by consumer group."""

    publishers: Mapping[str, tuple[str, ...]]
    agents: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, str]


def read_code(root: Path = ROOT) -> Code:
    """Read the text of the three layers."""
    names = dict(_names(root))
    publishers = {topic: {module} for topic, module in _ELSEWHERE.items()}
    agents: dict[str, set[str]] = {}
    groups: dict[str, str] = {}
    for layer in ("streams", "connectors", "api"):
        for path in sorted((root / layer).rglob("*.py")):
            module = path.relative_to(root).as_posix()
            if module.startswith(_TOOLS):
                continue
            is_route = module.startswith("api/") and path.name.startswith("routes")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    function = ast.unparse(node.func).rpartition(".")[2]
                    topics = [names[one.id] for one in node.args if isinstance(one, ast.Name) and one.id in names]
                    into = publishers if function in _PUBLISHING else agents if function in {"on", "fold"} else {}
                    for topic in topics:
                        into.setdefault(topic, set()).add(module)
                elif is_route and isinstance(node, ast.Constant) and node.value in TOPICS:
                    publishers.setdefault(str(node.value), set()).add(module)  # a route publishes the topic it names
                elif group := _group(node):
                    groups.setdefault(group, module)
    return Code(
        {topic: tuple(sorted(found)) for topic, found in publishers.items()},
        {topic: tuple(sorted(found)) for topic, found in agents.items()},
        groups,
    )


def _names(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each constant that names a topic, with that name (`schemas/<subsystem>.py`)."""
    for path in (root / "schemas").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func).startswith("TopicName[")
            ):
                yield node.target.id, ast.literal_eval(node.value.args[0])


def _group(node: ast.AST) -> str | None:
    """Return the consumer group that a class declares here (`group = "insights"`)."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        (target, *_) = node.targets
        if isinstance(target, ast.Name) and target.id == "group":
            return node.value.value
    return None


def consumers_of(topic: Topic, code: Code) -> list[str]:
    """Return each consumer of a topic with a link to its module.

    Raises:
        NoCodeError: one has none.
    """
    return [text for consumer in topic.consumers for text in _consumer(consumer, topic, code)]


def _consumer(consumer: str, topic: Topic, code: Code) -> Iterable[str]:
    if consumer in _ROLES:
        return [_ROLES[consumer]]
    if consumer == "worker":
        found = code.agents.get(topic.name, ())
        return [f"agent [{Path(module).parent.name}](../{module})" for module in _required(found, consumer, topic)]
    # The workers of jobs are one class; each kind is a group of its own.
    module = code.groups.get(consumer) or (
        "connectors/jobs/wiring.py" if topic.name == f"jobs.{consumer}-requested" else ""
    )
    return [f"[{consumer}](../{one})" for one in _required((module,) if module else (), consumer, topic)]


def producers_of(topic: Topic, code: Code) -> list[str]:
    """Return the producers of a topic, with a link to each module.

    Raises:
        NoCodeError: a part of Highwater should publish it, and no module does.
    """
    roles = [_ROLES[one] for one in topic.producers if one in ("outside", "api" if topic.outsider else "outside")]
    modules = code.publishers.get(topic.name, ())
    if not topic.outsider:
        modules = tuple(_required(modules, "/".join(topic.producers), topic))
    shown = [one for one in modules if not (topic.outsider and one.startswith("api/core/"))]
    return roles + [f"[{module.removesuffix('.py')}](../{module})" for module in shown]


def _required(found: tuple[str, ...], who: str, topic: Topic) -> tuple[str, ...]:
    if not found:
        raise NoCodeError(f"{who} of {topic.name}")
    return found


def page() -> str:
    """Return the page."""
    code = read_code()
    parts = [_HEAD]
    for prefix, title in SUBSYSTEMS.items():
        rows = [_row(topic, code) for topic in TOPICS.values() if topic.name.startswith(f"{prefix}.")]
        parts.append(
            f"\n## {title}\n\n| topic | what | key | published by | read by |\n|---|---|---|---|---|\n" + "".join(rows)
        )
    return "".join(parts)


def _row(topic: Topic, code: Code) -> str:
    schema = f"[{topic.name}](../schemas/avro/{topic.schema}.avsc)"
    about = (
        topic.about + (" (outside)" if topic.outsider else "") + (" (compacted)" if topic.cleanup == "compact" else "")
    )
    key = f"`{topic.key}`".replace("|", "\\|") if topic.key else "by partition"
    readers = ", ".join(consumers_of(topic, code)) or "analysts"
    return f"| {schema} | {about} | {key} | {', '.join(producers_of(topic, code))} | {readers} |\n"

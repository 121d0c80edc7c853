"""Writes `docs/kafka-access.md`: which user of Kafka may read and write which topic.

Invariant: the table is what `highwater init` sets; a test compares it with what the brokers of a secured stack let each user do.
"""

from __future__ import annotations

from pathlib import Path

from highwater.connectors.principals import may_write
from highwater.schemas.topics import TOPICS, Topic, dead_letter_topic
from highwater.streams.processes import API, PRINCIPALS, PROCESSES, PRODUCER

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-access.md"
_HEAD = """\
# Who may do what in Kafka

Written by `make generate` from the catalogue of topics (`connectors/principals.py`). `highwater up --secure`, the compose file
and the manifests for Kubernetes set these rights; [secure.md](secure.md) says how to set them on brokers of your own.

| user | who | may |
|---|---|---|
| `highwater` | the operator: `highwater init`, all commands | everything |
{processes}
| `highwater-producer` | producers from outside | write what happened outside, read nothing |

In the table `R` is read, `W` is write. Every process of Highwater also joins and commits to consumer groups that begin with
`highwater-`. The worker creates, reads and writes the changelogs of its tables (`highwater-feeds-…`). The API reads all topics
and groups, also those of other applications, and deletes dead letters. The last column has the users that write the dead letters
of a topic (`….dlq`), without `highwater-api`, which writes all of them. Only the operator creates other topics, and changes
topics, users and rights.

**What limits, pays or grants.** Plans, roles and prompts are written by the API for callers that may, and by the operator. If
another system is to write them, your billing for example, give it a user of its own with the right Write on that topic alone.

**A forged clock.** `streams.tick` has the time by which decisions are made. Only the worker writes it; the API can send a dead
letter of it again.

| topic | {names} | dead letters by |
|---|{lines}---|
"""


def page() -> str:
    """Return the page."""
    processes = "\n".join(
        f"| `highwater-{name}` | `{' '.join(('highwater', *words))}` | as in the table |"
        for name, words in PROCESSES.items()
    )
    head = _HEAD.format(processes=processes, names=" | ".join(PRINCIPALS), lines="---|" * len(PRINCIPALS))
    return head + "".join(f"{_row(topic)}\n" for topic in sorted(TOPICS.values(), key=lambda one: one.name))


def _row(topic: Topic) -> str:
    rights = [_rights(name, topic) for name in PRINCIPALS]
    letters = [name for name in PROCESSES if name != API and may_write(name, dead_letter_topic(topic))]
    return f"| `{topic.name}` | {' | '.join(rights)} | {', '.join(letters) or '-'} |"


def _rights(principal: str, topic: Topic) -> str:
    return ("" if principal == PRODUCER else "R") + ("W" if may_write(principal, topic) else "") or "-"

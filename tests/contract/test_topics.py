"""The catalogue of topics against the outside that is promised, the schemas, and who produces and consumes."""

from __future__ import annotations

import json
import re

import pytest

from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.chunks.sink_ingests import IngestsSink
from highwater.connectors.chunks.sink_namespaces import NamespacesSink
from highwater.connectors.chunks.worker_backfill import BackfillRequests
from highwater.connectors.feeds.mirror import Mirror
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.feeds.worker_fanout import Fanout
from highwater.connectors.feeds.worker_rebuild import RebuildWorker
from highwater.connectors.identity.sink_organizations import OrganizationsSink
from highwater.connectors.identity.sink_tokens import TokensSink
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.jobs.progress import Progress
from highwater.connectors.jobs.sink_controls import JobControlsSink
from highwater.connectors.jobs.sink_jobs import JobsSink
from highwater.connectors.jobs.sink_usage import UsageSink
from highwater.connectors.jobs.sink_views import ViewsSink
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_posts import PostsSink
from highwater.connectors.league.sink_results import ResultsSink
from highwater.connectors.league.sink_votes import VotesSink
from highwater.connectors.league.worker_ratings import RatingsWorker
from highwater.connectors.pages.cache import CacheVersions
from highwater.connectors.queries.sink_controls import RunControlsSink
from highwater.connectors.queries.sink_queries import QueriesSink
from highwater.connectors.queries.timeline import Timeline
from highwater.connectors.run import CONNECTORS
from highwater.schemas.avro_files import schema_names, schema_text
from highwater.schemas.topics import DEAD_LETTER_BYTES_MAX, MESSAGE_BYTES_MAX, TOPICS, all_topics
from highwater.streams.jobs.states import REQUESTED
from tests import ROOT

# Roles outside `connect` that produce or consume.
ROLES = {"worker", "api", "outside", "operator"}
# The contract with external programs: topic -> key, fields (`?` marks an optional one).
OUTSIDER: dict[str, tuple[str, str]] = {
    "feeds.insight-ingested": (
        "channel_id",
        "insight_id, channel_id, ts, text?, url?, embedding?, embedding_model?",
    ),
    "feeds.insight-retracted": ("channel_id", "insight_id, channel_id, ts"),
    "feeds.subscription-changed": ("user_id", "user_id, channel_id, subscribed, ts"),
    "feeds.subscriptions-replaced": ("user_id", "user_id, channels, ts"),
    "feeds.user-active": ("user_id", "user_id, ts"),
    "feeds.plan-changed": ("user_id", "user_id, plan, ts"),
    "queries.query-submitted": ("user_id", "request_id, user_id, query, ts, organization_id?"),
    "jobs.job-submitted": ("job_id", "job_id, kind, organization_id, user_id, args, ts, expires_at?"),
    "jobs.plan-changed": ("organization_id", "organization_id, plan, ts, subscription_status?, period_end?"),
    "jobs.role-changed": ("user_id", "user_id, role, ts"),
    "chunks.chunk-submitted": (
        "ns|slot|source_id",
        "ingest_id, ns, slot, source_id, chunk_no, content, title?, url?, embedding?, published_at?, lasts?, opens?",
    ),
    "chunks.ingest-finished": (
        "ns|slot|source_id",
        "ingest_id, ns, slot, source_id, full, expected_count, truncated, ts, force?, window?",
    ),
}
# Topics that the system writes and analysts read.
SYSTEM = {
    "streams.tick",
    "security.action-recorded",
    "feeds.channel-advanced",
    "feeds.channel-dirty",
    "feeds.novelty",
    "feeds.rebuild-requested",
    "feeds.rebuild-finished",
    "feeds.clusters-rebuilt",
    "feeds.cluster-evolved",
    "feeds.basis-changed",
    "league.match-changed",
    "queries.stage-requested",
    "queries.pipeline-stage",
    "jobs.generation-requested",
    "jobs.ingestion-requested",
    "jobs.export-requested",
    "jobs.control",
    "jobs.checkpoint-saved",
    "jobs.progress",
    "jobs.tokens-used",
    "jobs.usage-recorded",
    "chunks.ingest-progressed",
    "chunks.chunk-changed",
    "chunks.embedding-requested",
    "chunks.ingest-reported",
    "cache.prewarm-requested",
    "cache.version-bumped",
}
READERS = (
    InsightsSink, UsersSink, FixturesSink, ResultsSink, VotesSink, PostsSink, QueriesSink, RunControlsSink, ViewsSink,
    JobsSink, JobControlsSink, OrganizationsSink, TokensSink, UsageSink, ChunksSink, IngestsSink, NamespacesSink,
    Fanout, RebuildWorker, RatingsWorker, BackfillRequests,
    Mirror, CacheVersions, Timeline, Progress,
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(OUTSIDER))
def test_outsiders_find_their_topics(name: str):
    """Key and fields of every promised topic are as promised, and it is marked as one that outsiders write."""
    key, fields = OUTSIDER[name]
    topic = TOPICS[name]
    declared = json.loads(schema_text(topic.schema))["fields"]
    shown = ", ".join(field["name"] + ("?" if "default" in field else "") for field in declared)
    assert (key, fields, True) == (topic.key, shown, topic.outsider)


def test_analysts_find_their_topics():
    """The promised internal topics are there, and outsiders write none."""
    assert {name for name, topic in TOPICS.items() if not topic.outsider} >= SYSTEM


@pytest.mark.parametrize("name", sorted(TOPICS))
def test_a_topic_has_a_schema_with_its_key(name: str):
    """The schema exists and its key fields are strings; a topic without a key field is one whose partition is explicit."""
    topic = TOPICS[name]
    assert topic.schema in schema_names()
    fields = {field["name"]: field["type"] for field in json.loads(schema_text(topic.schema))["fields"]}
    if topic.key:
        assert {fields[part] for part in topic.key.split("|")} == {"string"}
    else:
        assert name in {"streams.tick", "feeds.novelty"}


def test_every_schema_is_used():
    """No Avro file without a topic."""
    assert sorted(topic.schema for topic in TOPICS.values()) == schema_names()


@pytest.mark.parametrize("name", sorted(TOPICS))
def test_producers_and_consumers_are_real(name: str):
    """Every producer or consumer in the catalogue is a connector or a role."""
    named = {*TOPICS[name].producers, *TOPICS[name].consumers}
    assert set() == named - ROLES - set(CONNECTORS)


def test_readers_and_catalogue_agree():
    """A connector reads exactly the topics whose consumers name it."""
    reads = {reader.group: set(reader.topics) for reader in READERS}
    reads |= {str(kind): {topic} for kind, topic in REQUESTED.items()}  # the one consumer of each kind of job
    named = {group: {name for name, topic in TOPICS.items() if group in topic.consumers} for group in reads}
    assert named == reads


def test_only_sinks_read_what_outsiders_write():
    """Outside clients partition as they like, so nothing that trusts the place of a key reads their topics."""
    readers = {consumer for topic in TOPICS.values() if topic.outsider for consumer in topic.consumers}
    assert {
        "insights",
        "users",
        "fixtures",
        "results",
        "votes",
        "posts",
        "queries",
        "controls",
        "views",
        "jobs",
        "organizations",
        "chunks",
    } == readers


def test_every_consumed_topic_has_a_dead_letter_topic():
    """Beside each topic stands `<topic>.dlq`, which takes its largest record and the headers that are added."""
    created = {topic.name: topic for topic in all_topics()}
    assert set(created) == {*TOPICS, *(f"{name}.dlq" for name in TOPICS)}
    for name, topic in TOPICS.items():
        assert topic.message_bytes_max <= MESSAGE_BYTES_MAX
        assert created[f"{name}.dlq"].message_bytes_max == DEAD_LETTER_BYTES_MAX > topic.message_bytes_max


@pytest.mark.parametrize("name", sorted(OUTSIDER))
def test_history_is_kept(name: str):
    """Events of external producers are stamped by the broker and kept forever: event time never makes a broker delete them."""
    config = TOPICS[name].config()
    assert (
        config["message.timestamp.type"], config["retention.ms"], config["cleanup.policy"],
    ) == ("LogAppendTime", "-1", "delete")  # fmt: skip


def test_code_names_topics_of_the_catalogue_only():
    """Every string in the code with the form of our topics is one."""
    looks = re.compile(r'"((?:feeds|league|queries|jobs|chunks|cache|streams|security)\.[a-z]+-?[a-z-]*)"')
    found: set[str] = set()
    options = {"security.protocol"}  # options of the Kafka client
    for folder in ("api", "connectors", "streams"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(looks.findall(path.read_text(encoding="utf-8")))
    assert set() == {name for name in found - options if name not in TOPICS and not name.startswith("streams.feeds")}

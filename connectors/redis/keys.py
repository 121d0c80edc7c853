"""The catalogue of Redis keys (R0.22 to R0.26, R2.4 to R2.10): the writer, the contents and the TTL of each.

Redis holds nothing that cannot be rebuilt. A part in braces is a parameter; ids are used unchanged, so a colon in one
cannot be distinguished from a separator and no key with several parameters is ever parsed. Keys that one script touches
belong to one resource: in a Redis Cluster they share a hash tag, so that they are on one node (R2.1, `resource_key`).
"""

from __future__ import annotations

# HASH current_seq, last_ts; written by the mirror.
CHANNEL = "ch:{channel_id}"
# HASH last_seq; written by the mirror.
HIGH_WATER_MARK = "hwm:{user_id}:{channel_id}"
# HASH pending, last_clustered_at, last_active_at, cluster_version, plan, last_enqueued_at; written by the mirror.
USER = "us:{user_id}"
# ZSET of channels that changed since the last tick, score = broker time in ms; written by the mirror.
DIRTY_CHANNELS = "dirty:channels"
# STRING owner token, NX, expires; one rebuild per user at a time (R0.26).
USER_LOCK = "lock:user:{user_id}"
# HASH next offset by `topic/partition` that the mirror has reached, written after the rows: a Redis that is behind was
# emptied or lost its last writes.
MIRRORED_TO = "highwater:mirrored-to"
# HASH version, etag, caused_by of a resource; written by one script that stores only newer versions.
RESOURCE_VERSION = "__v:{key}"
# STRING payload of the version named in `__v:`.
RESOURCE_PAYLOAD = "payload:{key}"
# STRING payload of a league document under its own key (R4.6), as RESOURCE_PAYLOAD but compressed with brotli.
DOCUMENT = "{key}"
# STRING owner token, NX, `lock_timeout_seconds`; one regeneration of a document over all processes (R4.28).
DOCUMENT_LOCK = "__lock:{key}"
# LIST of times in ms, newest first, of an address's last requests to live pages (R4.36).
LIVE_REQUESTS = "ratelimit:live:{address}"
# STRING number of requests of an API key in a minute (YYYYmmddHHMM, UTC), 120 s (R2.27); the id is a hash of the key.
KEY_REQUESTS = "ratelimit:{api_key_id}:{minute}"
# STRING, the same of a user (R2.30).
USER_REQUESTS = "ratelimit:user:{user_id}:{minute}"
# STRING, the same for cheap calls, which do not count for the plan; the caller is `user:{id}` or `key:{id}`.
CALLER_REQUESTS = "ratelimit:caller:{caller}:{minute}"
# HASH job_id, presentation_id, status, outline, slides_completed, slides_total, completed_slide_ids, last_updated, worker_id,
# langgraph_state (R2.11), and epoch; 3600 s from each running checkpoint, gone with the result; written by progress.
CHECKPOINT = "gen_checkpoint:{job_id}"
CHECKPOINT_SECONDS = 3_600
# STREAM of a job's last 200 events under ids `{seq}-0` (R2.17), 7200 s from the last (R2.19); written by progress.
PROGRESS = "gen_progress:{job_id}"
PROGRESS_ENTRIES_MAX = 200
PROGRESS_SECONDS = 7_200
# Channel of {"job_id", "user_id", "event"}, one message for a step (R2.22): readers of the stream take it as a wake-up only.
PROGRESS_BROADCAST = "pubsub:gen_progress"
# HASH presentations, slides, tokens, cost_cents (R2.35), seq and at of the last usage in them; 90 days; written by progress.
USAGE = "usage:{org}:{period}"
USAGE_SECONDS = 7_776_000
# STREAM of pieces of the answer that is written for a user: request_id, epoch, attempt, start, text, is_end; the last
# 4,096 (an answer has at most 2,000 tokens, R1.24, and a piece is at least a token: two answers), 300 s from the last;
# written by stages. Nobody reads pieces after the answer itself, so they only serve a client that reconnects.
DELTAS = "answer_deltas:{user_id}"
DELTA_ENTRIES_MAX = 4_096
DELTA_SECONDS = 300
# ZSET of `{server_id}:{connection_id}`, score = last beat in ms, 300 s (R2.23): which processes hold sockets on a user's jobs;
# `GET /api/sockets` counts them.
SOCKETS = "ws_connections:{user_id}"
SOCKET_SECONDS = 300
# HASH plan_name, max_presentations_per_month, ai_tokens_per_month, max_file_size_mb, storage_gb, requests_per_minute, features,
# subscription_status, period_end (R2.32), 300 s, gone when the plan changes; while it is loaded `loading` alone.
PLAN_LIMITS = "plan_limits:{organization_id}"
PLAN_LIMITS_SECONDS = 300
# STRING number of views of a deck, the one that is shown (R2.42), no TTL; never below the stored number, which refills it
# (R2.43); gone with the deck's owner.
PRESENTATION_VIEWS = "presentation_view_count:{presentation_id}"
# HASH user_id, organization_id, role, email, plan, created_at, last_active, ip; 86400 s, sliding (R2.4, R2.5). The id
# is the SHA-256 of the token in hex; the token itself is never in Redis or its file.
SESSION = "session:{session_id}"
# SET of the hashes of a user's tokens; each of its sessions renews its TTL (R2.6).
USER_SESSIONS = "user_sessions:{user_id}"
SESSION_SECONDS = 86_400
# STRING ms; a user's sessions created at or before it are void (R2.10); mirrored from session_revocations.
REVOKED_AT = "revoked_at:{user_id}"
# STRING, 300 s; a user's activity was published recently (R0.7).
ACTIVE = "active:{user_id}"
# HASH query_embedding_hash, original_query, response, tokens_saved, llm_provider, created_at, hit_count; a deck by its query
# (R2.24).
SEMANTIC_CACHE_ENTRY = "semantic_cache:{hash}"
SEMANTIC_CACHE_SECONDS = 86_400


def key(template: str, **parts: str) -> str:
    """Return the key of a template of this catalogue with its parameters."""
    return template.format(**parts)


def resource_key(template: str, resource: str, *, is_cluster: bool) -> str:
    """Return the key of a resource. In a cluster its name is the hash tag: `__v:{league:table:1}` is on the node of
    `league:table:1`.

    Braces in a name would form another tag; there they are percent-encoded, as is the percent sign. A single server has
    the names of the requirements (R4.7), as had the release before clusters.
    """
    if not is_cluster:
        return template.format(key=resource)
    name = resource.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return template.format(key=name if template == DOCUMENT else "{" + name + "}")

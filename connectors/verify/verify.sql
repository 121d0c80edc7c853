-- What `highwater verify` reads. Each model is read twice, from the live database and from the one that the sinks filled again from
-- the log; columns are in the order key, compared, and last the position of the event behind the row.

-- name: verify_create
CREATE DATABASE highwater_verify

-- Nothing in it is to outlive the machine.
-- name: verify_hasten
ALTER DATABASE highwater_verify SET synchronous_commit = off

-- What is connected to it is what a verification that was killed has left: whoever drops it holds the lock.
-- name: verify_drop
DROP DATABASE IF EXISTS highwater_verify WITH (FORCE)

-- name: verify_lock
SELECT pg_try_advisory_lock($1::bigint)

-- name: verify_moment
SELECT 1

-- name: verify_positions
SELECT "group", topic, partition, topic_id, next FROM positions ORDER BY 1, 2, 3

-- name: verify_empty_outbox
TRUNCATE outbox

-- name: verify_channels
SELECT channel_id, current_seq, last_insight_ts, last_arrived_at, NULL::text
FROM channels ORDER BY channel_id COLLATE "C"

-- A vector that came with its event is compared; one that was made is of a basis, and which one was in force is no matter of the log.
-- name: verify_insights
SELECT i.insight_id, i.channel_id, i.seq, i.ts, i.arrived_at, i.text, i.url,
       CASE WHEN b.basis_id IS NULL THEN i.embedding END AS embedding,
       CASE WHEN b.basis_id IS NULL THEN i.embedding_model END AS embedding_model,
       i.retracted_at IS NOT NULL AS is_retracted, i.source_partition, i.source_offset,
       'feeds.insight-ingested/' || i.source_partition || '/' || i.source_offset
FROM insights AS i LEFT JOIN bases AS b ON b.basis_id = i.embedding_model ORDER BY i.insight_id COLLATE "C"

-- name: verify_users
SELECT user_id, plan, plan_changed_ms, last_active_at, subscriptions_replaced_ms, caused_by
FROM user_stats ORDER BY user_id COLLATE "C"

-- name: verify_subscriptions
SELECT s.user_id, s.channel_id, s.changed_ms, u.caused_by
FROM subscriptions AS s LEFT JOIN user_stats AS u USING (user_id)
WHERE s.subscribed ORDER BY s.user_id COLLATE "C", s.channel_id COLLATE "C"

-- name: verify_curations
SELECT user_id, curation_id, curation::text, arrived_ms, source_partition, source_offset,
       'feeds.clusters-curated/' || source_partition || '/' || source_offset
FROM cluster_curations ORDER BY user_id COLLATE "C", curation_id COLLATE "C"

-- name: verify_matches
SELECT match_id, season, round, kickoff, time_unknown, status, home, away, home_goals, away_goals, home_goals_extra_time,
       away_goals_extra_time, home_penalties, away_penalties, minute, finalized_at,
       schedule_ms, schedule_position, CASE WHEN result_ms IS NULL THEN score_ms END AS score_ms,
       CASE WHEN result_ms IS NULL THEN score_position END AS score_position, result_ms, result_position,
       COALESCE(result_position, score_position, schedule_position)
FROM league_matches ORDER BY match_id COLLATE "C"

-- name: verify_votes
SELECT match_id, user_id, choice, cast_at, cast_ms, position, position
FROM league_votes ORDER BY match_id COLLATE "C", user_id COLLATE "C"

-- name: verify_predictions
SELECT match_id, user_id, home_goals, away_goals, made_at, made_ms, position, position
FROM league_predictions ORDER BY match_id COLLATE "C", user_id COLLATE "C"

-- name: verify_vote_counts
SELECT match_id, home, draw, away, position FROM league_vote_counts
WHERE home + draw + away > 0 ORDER BY match_id COLLATE "C"

-- name: verify_comments
SELECT match_id, position, posted_ms, user_id, body, posted_at, position
FROM league_comments ORDER BY match_id COLLATE "C", position COLLATE "C"

-- name: verify_ads
SELECT ad_id, payload, changed_at, changed_ms, position, position FROM league_ads ORDER BY ad_id COLLATE "C"

-- name: verify_rules
SELECT season, rules::text, changed_ms, position, position FROM league_rules ORDER BY season COLLATE "C"

-- name: verify_runs
SELECT id::text, coalesce(user_text_id, user_id::text), organization_id, ordinal, user_query, arrived_ms, position, position
FROM pipeline_runs WHERE restarted_from IS NULL ORDER BY id::text COLLATE "C"

-- name: verify_prompts
SELECT position, role_name, prompt_template, is_active, arrived_ms, position
FROM system_prompts WHERE arrived_ms > 0 ORDER BY position COLLATE "C"

-- name: verify_jobs
SELECT job_id::text, kind, organization_id, user_id, args::text, expires_ms, arrived_ms, position, position
FROM jobs ORDER BY job_id::text COLLATE "C"

-- name: verify_usage
SELECT organization_id, period, presentations, slides, tokens, cost_cents, upto_seq, NULL::text
FROM usage_records ORDER BY organization_id COLLATE "C", period COLLATE "C"

-- name: verify_organizations
SELECT organization_id, plan, subscription_status, period_end, arrived_ms, position, position
FROM organizations ORDER BY organization_id COLLATE "C"

-- name: verify_chunks
SELECT ns, slot, source_id, chunk_no, content, title, url, content_hash, published_at, ingest_id, source_partition, source_offset,
       'chunks.chunk-submitted/' || source_partition || '/' || source_offset
FROM chunks ORDER BY ns COLLATE "C", slot COLLATE "C", source_id COLLATE "C", chunk_no

-- name: verify_former_chunks
SELECT ns, slot, source_id, chunk_no, source_partition, source_offset, content, title, url, content_hash, published_at, ingest_id,
       'chunks.chunk-submitted/' || source_partition || '/' || source_offset
FROM former_chunks
ORDER BY ns COLLATE "C", slot COLLATE "C", source_id COLLATE "C", chunk_no, source_partition, source_offset

-- Effects: columns in the order key, what the event says of it, and last the position that the row itself names.

-- name: verify_cluster_versions
SELECT user_id, cluster_version, caused_by, dataset_size, omitted, noise, left_out, basis_id, updated_at, hwm::text,
       json_array_length(clusters) AS clusters, curations, caused_by
FROM user_clusters

-- name: verify_user_versions
SELECT user_id, cluster_version, last_clustered_at, last_checked_at, revision, last_request
FROM user_stats

-- name: verify_marks
SELECT user_id, channel_id, last_seq, NULL::text FROM user_cluster_hwm

-- name: verify_versions
SELECT key, version, etag, position, changed_at, position FROM resource_versions

-- name: verify_statuses
SELECT id::text, status, caused_by FROM pipeline_runs

-- name: verify_timeline
SELECT position, run_id::text, status, operation, attempt, revision, position FROM run_events

-- name: verify_match_states
SELECT match_id, season, kickoff, status, home, away, home_goals, away_goals, home_goals_extra_time, away_goals_extra_time,
       home_penalties, away_penalties, finalized_at, schedule_position
FROM league_matches

-- name: verify_ingests
SELECT ingest_id, ns, slot, source_id, revision, inserted, updated, unchanged, failures, position FROM chunk_ingests

-- How many chunks have each word, counted anew from their texts, beside the sums that are kept in the same snapshot; null: there is none.
-- name: verify_chunk_words
WITH counted AS (
    SELECT ns, word, count(*) AS chunks, coalesce(sum(octets) FILTER (WHERE word = ''), 0)::bigint AS octets
    FROM (SELECT ns, chunk_text_octets(title, content) AS octets,
                 unnest(array_append(tsvector_to_array(chunk_text_words(language, title, content)), '')) COLLATE "C" AS word
          FROM chunks WHERE NOT to_delete) AS of_chunks
    GROUP BY ns, word
), kept AS (
    SELECT ns, word, sum(chunks)::bigint AS chunks, sum(octets)::bigint AS octets
    FROM chunk_words GROUP BY ns, word HAVING sum(chunks) <> 0 OR sum(octets) <> 0
)
SELECT ns, word, counted.chunks, counted.octets, kept.chunks, kept.octets
FROM counted FULL JOIN kept USING (ns, word)
ORDER BY ns COLLATE "C", word

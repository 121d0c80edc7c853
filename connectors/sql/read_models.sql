-- The read models that SQL may join: plain columns, no vectors, no text that was retracted. One row more than may be copied is asked for.

-- name: sql_channels
SELECT channel_id, current_seq, announced_seq, retractions, last_insight_ts, last_arrived_at FROM channels LIMIT $1

-- name: sql_insights
SELECT insight_id, channel_id, seq, ts, arrived_at, CASE WHEN retracted_at IS NULL THEN text END AS text, url, embedding_model,
       retracted_at, excluded_at, source_partition, source_offset
FROM insights LIMIT $1

-- name: sql_subscriptions
SELECT user_id, channel_id, subscribed, changed_ms FROM subscriptions LIMIT $1

-- name: sql_users
SELECT u.user_id, u.plan, u.cluster_version,
       (SELECT coalesce(sum(greatest(0, c.current_seq - coalesce(h.last_seq, 0))), 0)::bigint
        FROM subscriptions s JOIN channels c USING (channel_id)
        LEFT JOIN user_cluster_hwm h ON h.user_id = s.user_id AND h.channel_id = s.channel_id
        WHERE s.user_id = u.user_id AND s.subscribed) AS pending_insights_count,
       u.last_clustered_at, u.last_active_at, u.last_enqueued_at, u.last_checked_at, u.in_flight, u.last_request, u.caused_by
FROM user_stats u LIMIT $1

-- name: sql_cluster_history
SELECT user_id, cluster_id, cluster_version, kind, label, size, previous_size, joined, arrived, "left", expired, jaccard,
       evolved_at, caused_by
FROM cluster_history LIMIT $1

-- name: sql_jobs
SELECT job_id::text AS job_id, kind, organization_id, user_id, status, attempt, progress_pct, steps_done, steps_total, tokens,
       cost_usd::double precision AS cost_usd, error, position, caused_by, created_at, updated_at, completed_at
FROM jobs LIMIT $1

-- name: sql_queries
SELECT id::text AS request_id, coalesce(user_text_id, user_id::text) AS user_id, organization_id, ordinal, status, archive_status,
       attempt, is_cancelled, error,
       position, caused_by, created_at, updated_at
FROM pipeline_runs LIMIT $1

-- name: sql_matches
SELECT match_id, season, round, kickoff, status, home, away, home_goals, away_goals, minute, finalized_at, schedule_position,
       score_position, result_position
FROM league_matches LIMIT $1

-- name: sql_organizations
SELECT organization_id, plan, subscription_status, period_end, position, changed_at FROM organizations LIMIT $1

-- name: sql_resource_versions
SELECT key, version, etag, position, changed_at FROM resource_versions LIMIT $1

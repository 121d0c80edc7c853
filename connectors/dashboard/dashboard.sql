-- What the dashboard lists over all users: the latest of each kind, never a whole table.

-- $1: beginning of the id (empty: any), $2: this user only (null: all), $3 how many
-- name: dashboard_users
SELECT user_id, plan, cluster_version, last_active_at, last_clustered_at, in_flight IS NOT NULL AS in_flight, delay_reason
FROM user_stats
WHERE starts_with(user_id, $1) AND ($2::text IS NULL OR user_id = $2)
ORDER BY last_active_at DESC NULLS LAST, user_id LIMIT $3

-- name: dashboard_versions
SELECT cluster_version, updated_at, caused_by, dataset_size, noise, json_array_length(clusters) AS clusters, preliminary, regrouped
FROM user_clusters WHERE user_id = $1 ORDER BY cluster_version DESC

-- Texts of insights on a map, cut: a tooltip shows a line.
-- name: dashboard_texts
SELECT insight_id, left(text, 160) AS text FROM insights
WHERE insight_id = ANY ($1::text[]) AND retracted_at IS NULL

-- Insights as a list shows them.
-- name: dashboard_insights
SELECT insight_id, channel_id, left(text, 160) AS text, ts FROM insights
WHERE insight_id = ANY ($1::text[]) AND retracted_at IS NULL

-- The sizes of clusters, the newest $2 changes. A cluster that changed in a version has exactly one of these kinds.
-- name: dashboard_cluster_sizes
SELECT cluster_id, cluster_version, label, size FROM cluster_history
WHERE user_id = $1 AND kind IN ('born', 'grew', 'shrank', 'died')
ORDER BY cluster_version DESC, cluster_id LIMIT $2

-- $1: beginning of the key, $2 how many
-- name: dashboard_documents
SELECT d.key, d.version, d.coming, v.position, d.built_at, octet_length(d.payload) AS bytes
FROM documents AS d JOIN resource_versions AS v USING (key)
WHERE starts_with(d.key, $1)
ORDER BY d.built_at DESC, d.key LIMIT $2

-- $1: of this user only (null: all), $2 how many
-- name: dashboard_runs
SELECT id::text AS request_id, coalesce(user_text_id, user_id::text) AS user_id, left(user_query, 200) AS query, status, archive_status, error,
       position, created_at, completed_at
FROM pipeline_runs WHERE $1::uuid IS NULL OR user_id = $1::uuid
ORDER BY created_at DESC LIMIT $2

-- $1: of this user only (null: all), $2 how many
-- name: dashboard_jobs
SELECT job_id::text AS job_id, kind, organization_id, user_id, status, progress_pct, steps_done, steps_total, error, tokens,
       cost_usd, attempt, approval_until_ms, position, created_at, updated_at, completed_at
FROM jobs WHERE $1::text IS NULL OR user_id = $1
ORDER BY created_at DESC LIMIT $2

-- name: dashboard_ingests
SELECT ingest_id, ns, slot, source_id, status, expected, inserted, updated, unchanged, failures, orphaned, position,
       created_at, updated_at
FROM chunk_ingests ORDER BY updated_at DESC LIMIT $1

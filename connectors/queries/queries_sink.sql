-- What the sinks of queries store. Rows of users are locked before rows of runs, each in the order of ids.

-- A user who was erased goes on where the order ended: a place is never given twice. $1 keys of users, $2 their ids
-- name: ensure_query_users
INSERT INTO query_users (user_id, last_ordinal)
SELECT u.user_key, COALESCE(e.last_ordinal, 0) FROM unnest($1::uuid[], $2::text[]) AS u (user_key, user_id)
LEFT JOIN user_erasures AS e ON e.user_hash = sha256(convert_to(u.user_id, 'UTF8'))
ORDER BY u.user_key
ON CONFLICT DO NOTHING

-- name: lock_query_users
SELECT user_id::text, last_ordinal FROM query_users WHERE user_id = ANY ($1::uuid[]) ORDER BY user_id FOR NO KEY UPDATE

-- Of locked users those with a run that the next one waits for.
-- name: users_with_unreleased_runs
SELECT DISTINCT user_id::text AS user_id FROM pipeline_runs WHERE user_id = ANY ($1::uuid[]) AND NOT released

-- name: advance_query_users
UPDATE query_users AS u SET last_ordinal = a.last_ordinal
FROM unnest($1::uuid[], $2::bigint[]) AS a (user_id, last_ordinal) WHERE u.user_id = a.user_id

-- name: known_queries
SELECT id::text, coalesce(user_text_id, user_id::text) AS user_id, organization_id, user_query, position FROM pipeline_runs WHERE id = ANY ($1::uuid[])

-- name: known_runs
SELECT id::text FROM pipeline_runs WHERE id = ANY ($1::uuid[])

-- For what must not wait for whoever holds a table for long.
-- name: wait_for_locks_at_most
SELECT set_config('lock_timeout', $1, true)

-- R1.13, R1.14: one line a query, in the order of its user's runs.
-- name: log_queries
INSERT INTO raw_logs (user_id, message_type, content, pipeline_run_id, ordinal, created_at)
SELECT user_id, 'user_query', user_query, id, ordinal, created_at FROM pipeline_runs
WHERE id = ANY ($1::uuid[]) ORDER BY user_id, ordinal
ON CONFLICT DO NOTHING

-- name: lock_runs
SELECT id::text, coalesce(user_text_id, user_id::text) AS user_id, organization_id, ordinal, status, archive_status, released, revision,
       epoch, attempt,
       restarted_from::text,
       analysis_result IS NOT NULL AS has_analysis, final_context_payload IS NOT NULL AS has_payload
FROM pipeline_runs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE

-- The epoch takes the run from whoever holds it. A run that is not as it was read is left alone; the caller counts.
-- name: cancel_runs
UPDATE pipeline_runs AS r
SET status = c.status, error = c.error, is_cancelled = true, released = true, command = NULL,
    worker = NULL, due_ms = NULL, lease_until_ms = NULL,
    revision = c.revision, epoch = r.epoch + 1, updated_at = $8, caused_by = c.command
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[])
    AS c (id, held_status, held_epoch, status, error, revision, command)
WHERE r.id = c.id AND r.status = c.held_status AND r.epoch = c.held_epoch

-- A run of its own with the query of another, and what the stages before its first one gave that one.
-- name: restart_runs
INSERT INTO pipeline_runs (id, user_id, user_text_id, organization_id, ordinal, user_query, status, analysis_result, draft_context,
                           final_context_payload, sources, withdrawn, restarted_from, arrived_ms, position, caused_by, created_at, updated_at)
SELECT n.id, s.user_id, s.user_text_id, s.organization_id, n.ordinal, s.user_query, n.status,
       CASE WHEN n.status IN ('ANALYZED', 'READY') THEN s.analysis_result END,
       CASE WHEN n.status = 'READY' THEN s.draft_context END,
       CASE WHEN n.status = 'READY' THEN s.final_context_payload END,
       CASE WHEN n.status = 'READY' THEN s.sources END,
       CASE WHEN n.status = 'READY' THEN s.withdrawn END,
       s.id, n.arrived_ms, n.position, n.position, $7, $7
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::bigint[], $6::text[])
    AS n (id, source_id, ordinal, status, arrived_ms, position)
JOIN pipeline_runs AS s ON s.id = n.source_id

-- Prompts of a role have no row of their own to lock before there is any.
-- name: hold_prompts
SELECT pg_advisory_xact_lock($1, $2)

-- The last word on each role, and what is in force, which may be older: saying it again is not stored.
-- name: prompts_of_roles
(SELECT DISTINCT ON (role_name) role_name, prompt_template, is_active, arrived_ms, position
 FROM system_prompts WHERE role_name = ANY ($1::text[]) ORDER BY role_name, id DESC)

-- name: deactivate_prompts
UPDATE system_prompts SET is_active = false WHERE is_active AND role_name = ANY ($1::text[])

-- name: store_prompts
INSERT INTO system_prompts (role_name, prompt_template, is_active, position, arrived_ms, changed_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[], $5::bigint[], $6::timestamptz[])

-- $1 users, $2 broker times of their erasures. Locked in the order of ids, as who works on them does.
-- name: runs_to_erase
SELECT r.id::text, coalesce(r.user_text_id, r.user_id::text) AS user_id, r.organization_id, r.ordinal, r.status, r.archive_status, r.released,
       r.revision, r.epoch, r.attempt
FROM pipeline_runs AS r JOIN unnest($1::uuid[], $2::bigint[]) AS e (user_id, erased_ms) ON e.user_id = r.user_id
WHERE r.arrived_ms <= e.erased_ms ORDER BY r.id FOR UPDATE OF r

-- name: erase_runs
DELETE FROM pipeline_runs WHERE id = ANY ($1::uuid[])

-- name: erase_raw_logs
DELETE FROM raw_logs WHERE pipeline_run_id = ANY ($1::uuid[])

-- name: erase_memories
DELETE FROM lsm_storage WHERE pipeline_run_id = ANY ($1::uuid[])

-- name: erase_run_events
DELETE FROM run_events WHERE run_id = ANY ($1::uuid[])

-- The user's id goes; where the order ended stays beside the hash of it. $1 keys of users, $2 their ids
-- name: erase_query_users
WITH gone AS (
    DELETE FROM query_users AS q USING unnest($1::uuid[], $2::text[]) AS u (user_key, user_id) WHERE q.user_id = u.user_key
    RETURNING u.user_id, q.last_ordinal
)
UPDATE user_erasures AS e SET last_ordinal = GREATEST(e.last_ordinal, gone.last_ordinal)
FROM gone WHERE e.user_hash = sha256(convert_to(gone.user_id, 'UTF8'))

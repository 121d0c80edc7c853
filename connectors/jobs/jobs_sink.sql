-- What the sinks of jobs store. Organizations are locked before rows of jobs, and those in the order of ids.

-- name: known_submissions
SELECT job_id::text, kind, organization_id, user_id, args::text, expires_ms FROM jobs WHERE job_id = ANY ($1::uuid[])

-- name: known_jobs
SELECT job_id::text FROM jobs WHERE job_id = ANY ($1::uuid[])

-- name: lock_jobs
SELECT * FROM jobs WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR UPDATE

-- The epoch takes the job from whoever holds it. A job that is not as it was read is left alone; the caller counts.
-- name: revoke_jobs
UPDATE jobs AS j
SET status = c.status, epoch = c.epoch, seq = c.seq, error = c.error, tokens = c.tokens, cost_usd = c.cost_usd,
    worker = NULL, due_ms = NULL, lease_until_ms = NULL, checkpoint = NULL, caused_by = c.command,
    updated_at = $10, completed_at = $10
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[], $8::numeric[], $9::text[])
    AS c (job_id, held_status, epoch, status, seq, error, tokens, cost_usd, command)
WHERE j.job_id = c.job_id AND j.status = c.held_status AND j.epoch = c.epoch - 1

-- Asked for again now, so that nobody takes it for forgotten before the command is read.
-- name: republish_jobs
UPDATE jobs SET updated_at = $2 WHERE job_id = ANY ($1::uuid[]) AND status = 'pending'

-- $1 users, $2 broker times of their erasures. Locked in the order of ids, as who works on them does.
-- name: jobs_to_erase
SELECT j.* FROM jobs AS j JOIN unnest($1::text[], $2::bigint[]) AS e (user_id, erased_ms) ON e.user_id = j.user_id
WHERE j.arrived_ms <= e.erased_ms ORDER BY j.job_id FOR UPDATE OF j

-- name: erase_jobs
DELETE FROM jobs WHERE job_id = ANY ($1::uuid[])

-- A deck has the id of the job that made it.
-- name: erase_presentations
DELETE FROM presentations WHERE presentation_id = ANY ($1::uuid[])

-- name: erase_presentation_shares
DELETE FROM presentation_shares WHERE presentation_id = ANY ($1::text[])

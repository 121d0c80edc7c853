-- What the sinks of jobs store. Organizations are locked before rows of jobs, and those in the order of ids.

-- name: known_submissions
SELECT job_id::text, kind, organization_id, user_id, args::text, expires_ms, position FROM jobs WHERE job_id = ANY ($1::uuid[])

-- name: known_jobs
SELECT job_id::text FROM jobs WHERE job_id = ANY ($1::uuid[])

-- name: lock_jobs
SELECT * FROM jobs WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR UPDATE

-- Failed jobs that are to be restarted, not locked: their organizations are locked first.
-- name: submissions_to_restart
SELECT kind, organization_id, args::text AS args FROM jobs WHERE job_id = ANY ($1::uuid[])

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

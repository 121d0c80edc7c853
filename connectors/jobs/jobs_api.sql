-- What the API asks of jobs and of what they make. A version only grows: whatever changes a job makes one of its parts grow.

-- Jobs of these ids, in one snapshot.
-- name: jobs_read
SELECT job_id::text AS job_id, kind, organization_id, user_id, args::text AS args, status, seq, epoch + seq + 1 AS version,
       progress_pct, steps_done, steps_total, result::text AS result, tokens, cost_usd, cost_cents, error, position, caused_by,
       expires_ms, approval_until_ms, CASE WHEN approval_until_ms IS NOT NULL THEN (checkpoint -> 'outline')::text END AS outline,
       created_at, updated_at, completed_at
FROM jobs WHERE job_id = ANY($1::uuid[])

-- Jobs of an organization, the newest first. $2, $3 the place before which the page begins; $4 of this user only (null: of all),
-- $5 in this status and $6 of this kind; $7 how many
-- name: jobs_of_organization_read
SELECT job_id::text AS job_id, kind, organization_id, user_id, args::text AS args, status, seq, epoch + seq + 1 AS version,
       progress_pct, steps_done, steps_total, result::text AS result, tokens, cost_usd, cost_cents, error, position, caused_by,
       expires_ms, approval_until_ms, NULL AS outline, created_at, updated_at, completed_at
FROM jobs
WHERE organization_id = $1 AND (created_at, job_id) < ($2::timestamptz, $3::uuid) AND ($4::text IS NULL OR user_id = $4)
  AND ($5::text IS NULL OR status = $5) AND ($6::text IS NULL OR kind = $6)
ORDER BY created_at DESC, job_id DESC LIMIT $7

-- Failed jobs of an organization, the last to fail first. $2 of this user and $3 of this kind only (null: of all), failed from $4
-- and before $5; $6 how many; $7 these jobs alone (null: all).
-- name: failed_jobs_read
SELECT job_id::text AS job_id, kind, organization_id, user_id, args::text AS args, status, seq, epoch + seq + 1 AS version,
       progress_pct, steps_done, steps_total, result::text AS result, tokens, cost_usd, cost_cents, error, position, caused_by,
       expires_ms, approval_until_ms, NULL AS outline, created_at, updated_at, completed_at
FROM jobs
WHERE organization_id = $1 AND status = 'failed' AND ($2::text IS NULL OR user_id = $2) AND ($3::text IS NULL OR kind = $3)
  AND coalesce(completed_at, updated_at) >= $4 AND coalesce(completed_at, updated_at) < $5
  AND ($7::uuid[] IS NULL OR job_id = ANY($7))
ORDER BY coalesce(completed_at, updated_at) DESC, job_id LIMIT $6

-- A deck with the views of it that are stored.
-- name: presentation_read
SELECT p.presentation_id::text AS presentation_id, p.organization_id, p.user_id, p.title, p.slides::text AS slides, p.position,
       p.created_at, coalesce(s.view_count, 0) AS view_count
FROM presentations AS p LEFT JOIN presentation_shares AS s ON s.presentation_id = p.presentation_id::text
WHERE p.presentation_id = $1

-- The calls of the language model that a job made, in order. Times in ms since 1970.
-- name: job_calls_read
SELECT stage, attempt, model, sends, outcome, error, prompt_tokens, completion_tokens, cost_usd,
       (extract(epoch FROM started_at) * 1000)::bigint AS started_ms, (extract(epoch FROM ended_at) * 1000)::bigint AS ended_ms
FROM llm_calls WHERE run_id = $1 ORDER BY started_at, stage, attempt

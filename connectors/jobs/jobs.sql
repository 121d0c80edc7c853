-- Jobs that are asked for and that nobody has, locked in the order of ids so that two captures cannot lock each other out.
-- name: wanted_jobs
SELECT * FROM jobs WHERE job_id = ANY ($1::uuid[]) AND kind = $2 AND status = 'pending' ORDER BY job_id FOR UPDATE

-- Jobs whose next attempt is due, taken by whoever looks first.
-- name: take_due_jobs
UPDATE jobs AS j
SET epoch = j.epoch + 1, worker = $2, lease_until_ms = $3, due_ms = NULL
WHERE j.job_id IN (
    SELECT job_id FROM jobs WHERE kind = $5 AND due_ms <= $1 AND status = 'running'
    ORDER BY due_ms LIMIT $4 FOR UPDATE SKIP LOCKED)
RETURNING j.*

-- Jobs that wait so long that what asked for them must be lost (R2.41). Locked until the transaction ends.
-- name: forgotten_jobs
SELECT * FROM jobs WHERE kind = $3 AND status = 'pending' AND updated_at < $1
ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: workers_with_jobs
SELECT DISTINCT worker FROM jobs WHERE worker IS NOT NULL AND kind = $1

-- Held jobs whose worker is gone or whose lease is over, locked until the transaction ends.
-- name: lost_jobs
SELECT * FROM jobs
WHERE kind = $4 AND status = 'running' AND worker IS NOT NULL AND (worker = ANY ($1::int[]) OR lease_until_ms <= $2)
ORDER BY job_id LIMIT $3 FOR UPDATE SKIP LOCKED

-- What a worker holds, to be given back in order.
-- name: jobs_of_worker
SELECT * FROM jobs WHERE worker = $1 AND status = 'running' ORDER BY job_id FOR UPDATE

-- Rows that are about to be stored, locked in the order of ids: an UPDATE that is joined locks them in any.
-- name: hold_jobs
SELECT FROM jobs WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR UPDATE

-- A job as it is stored only if it still is as it was when it was taken (R2.15). A checkpoint is written only where it changed.
-- name: store_jobs
UPDATE jobs AS j
SET status = m.status, epoch = m.epoch, worker = m.worker, attempt = m.attempt, unusable = m.unusable, returns = m.returns,
    lease_until_ms = m.lease_until_ms, due_ms = m.due_ms, seq = m.seq, progress_pct = m.progress_pct,
    steps_done = m.steps_done, steps_total = m.steps_total,
    checkpoint = CASE WHEN m.is_saved THEN m.checkpoint::jsonb ELSE j.checkpoint END,
    result = COALESCE(m.result::jsonb, j.result), tokens = m.tokens, cost_usd = m.cost_usd,
    cost_cents = COALESCE(m.cost_cents, j.cost_cents), error = m.error, caused_by = m.caused_by, updated_at = m.updated_at,
    completed_at = m.completed_at
FROM unnest(
    $1::uuid[], $2::text[], $3::bigint[],
    $4::text[], $5::bigint[], $6::int[], $7::int[], $8::int[], $9::int[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::int[], $14::int[], $15::int[], $16::boolean[], $17::text[], $18::text[], $19::bigint[], $20::numeric[],
    $21::bigint[], $22::text[], $23::text[], $24::timestamptz[], $25::timestamptz[]
) AS m (
    job_id, held_status, held_epoch,
    status, epoch, worker, attempt, unusable, returns, lease_until_ms, due_ms, seq,
    progress_pct, steps_done, steps_total, is_saved, checkpoint, result, tokens, cost_usd,
    cost_cents, error, caused_by, updated_at, completed_at)
WHERE j.job_id = m.job_id AND j.status = m.held_status AND j.epoch = m.held_epoch
RETURNING j.job_id::text

-- What the calls of jobs used, those that failed and those that a worker that ended had made too: they were paid.
-- name: totals_of_jobs
SELECT run_id::text AS job_id, sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0))::bigint AS tokens,
       coalesce(sum(cost_usd), 0) AS cost_usd
FROM llm_calls WHERE run_id = ANY ($1::uuid[]) GROUP BY run_id

-- name: store_presentation
INSERT INTO presentations (presentation_id, organization_id, user_id, title, slides, position, created_at)
VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7) ON CONFLICT DO NOTHING

-- The next place of a usage; the row's lock orders those of an organization and period.
-- name: next_usage_place
INSERT INTO usage_sequences AS s (organization_id, period, last_seq) VALUES ($1, $2, 1)
ON CONFLICT (organization_id, period) DO UPDATE SET last_seq = s.last_seq + 1 RETURNING last_seq

-- The newest vectors of an organization and a set of documents (R2.26).
-- name: semantic_vectors_of
SELECT hash, embedding FROM semantic_vectors
WHERE organization_id = $1 AND sources_hash = $2 AND model = $3 AND created_at >= $4 ORDER BY created_at DESC, hash LIMIT $5

-- name: store_semantic_vector
INSERT INTO semantic_vectors (hash, organization_id, sources_hash, model, embedding, created_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (organization_id, sources_hash, hash) DO UPDATE
SET model = EXCLUDED.model, embedding = EXCLUDED.embedding, created_at = EXCLUDED.created_at

-- Vectors whose answers are gone from Redis; some at a time, so that no store waits for it.
-- name: prune_semantic_vectors
DELETE FROM semantic_vectors WHERE ctid = ANY (ARRAY(SELECT ctid FROM semantic_vectors WHERE created_at < $1 LIMIT 1000))

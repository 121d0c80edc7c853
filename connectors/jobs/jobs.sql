-- Jobs that wait are asked for: from now on whoever has a free slot may take them. Locked in the order of ids.
-- name: ask_for_jobs
UPDATE jobs AS j SET command = a.position
FROM (SELECT jobs.job_id, c.position FROM jobs JOIN unnest($1::uuid[], $2::text[]) AS c (id, position) ON c.id = job_id
      WHERE kind = $3 AND status = 'pending' ORDER BY job_id FOR NO KEY UPDATE OF jobs) AS a
WHERE j.job_id = a.job_id

-- Jobs that wait so long that what asked for them must be lost (R2.41).
-- name: ask_for_forgotten_jobs
UPDATE jobs SET command = caused_by
WHERE job_id IN (SELECT job_id FROM jobs WHERE kind = $3 AND status = 'pending' AND command IS NULL AND updated_at < $1
                 ORDER BY updated_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING job_id

-- name: count_waiting_jobs
SELECT count(*) FROM jobs WHERE kind = $1 AND status = 'pending'

-- Whether any job of a kind waits for a slot: asked for and not begun, or put aside until $1, which has come.
-- name: has_waiting_jobs
SELECT EXISTS (SELECT FROM jobs WHERE kind = $2 AND status = 'pending' AND command IS NOT NULL)
    OR EXISTS (SELECT FROM jobs WHERE kind = $2 AND status = 'running' AND due_ms <= $1)

-- Whether any job of a kind has not ended.
-- name: has_unended_jobs
SELECT EXISTS (SELECT FROM jobs WHERE kind = $1 AND status = 'pending')
    OR EXISTS (SELECT FROM jobs WHERE kind = $1 AND status = 'running')

-- Jobs that wait for a slot, of each organization the first $2 that were not begun; organizations are skipped through in the index.
-- name: waiting_jobs
WITH RECURSIVE organizations AS (
    (SELECT organization_id FROM jobs WHERE kind = $3 AND status = 'pending' AND command IS NOT NULL
     ORDER BY organization_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.organization_id FROM jobs AS j
            WHERE j.kind = $3 AND j.status = 'pending' AND j.command IS NOT NULL AND j.organization_id > o.organization_id
            ORDER BY j.organization_id LIMIT 1)
    FROM organizations AS o WHERE o.organization_id IS NOT NULL
)
SELECT w.job_id::text AS work_id, o.organization_id, w.created_at, false AS is_begun
FROM organizations AS o
CROSS JOIN LATERAL (SELECT j.job_id, j.created_at FROM jobs AS j
                    WHERE j.kind = $3 AND j.status = 'pending' AND j.command IS NOT NULL
                      AND j.organization_id = o.organization_id
                    ORDER BY j.created_at, j.job_id LIMIT $2) AS w
UNION ALL
SELECT job_id::text, organization_id, created_at, true FROM jobs WHERE kind = $3 AND status = 'running' AND due_ms <= $1
ORDER BY created_at, work_id

-- Jobs in progress by organization, how many of them hold a slot, and how many wait for somebody's approval.
-- name: jobs_in_progress
SELECT organization_id, count(worker) AS held, count(*) AS begun, count(approval_until_ms) AS awaiting FROM jobs
WHERE kind = $1 AND status = 'running' GROUP BY organization_id

-- Jobs that are to be taken, if they still wait.
-- name: wanted_jobs
SELECT * FROM jobs
WHERE job_id = ANY ($1::uuid[]) AND (status = 'pending' AND command IS NOT NULL OR status = 'running' AND due_ms <= $2)
ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED

-- name: workers_with_jobs
SELECT DISTINCT worker FROM jobs WHERE worker IS NOT NULL AND kind = $1

-- Held jobs whose worker is gone or whose lease is over, locked until the transaction ends.
-- name: lost_jobs
SELECT * FROM jobs
WHERE kind = $4 AND status = 'running' AND worker IS NOT NULL AND (worker = ANY ($1::int[]) OR lease_until_ms <= $2)
ORDER BY job_id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED

-- What a worker holds, to be given back in order.
-- name: jobs_of_worker
SELECT * FROM jobs WHERE worker = $1 AND status = 'running' ORDER BY job_id FOR NO KEY UPDATE

-- Rows that are about to be stored, locked in the order of ids: an UPDATE that is joined locks them in any.
-- name: hold_jobs
SELECT FROM jobs WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR NO KEY UPDATE

-- A job as it is stored only if it still is as it was when it was taken (R2.15), and not another one of the same key, after an
-- erasure. A checkpoint is written only where it changed.
-- name: store_jobs
UPDATE jobs AS j
SET status = m.status, epoch = m.epoch, worker = m.worker, attempt = m.attempt, attempts_before = m.attempts_before,
    unusable = m.unusable, returns = m.returns, command = CASE WHEN m.status = 'running' THEN j.command END,
    lease_until_ms = m.lease_until_ms, due_ms = m.due_ms, seq = m.seq, progress_pct = m.progress_pct,
    steps_done = m.steps_done, steps_total = m.steps_total,
    checkpoint = CASE WHEN m.is_saved THEN m.checkpoint::jsonb ELSE j.checkpoint END,
    result = COALESCE(m.result::jsonb, j.result), tokens = m.tokens, cost_usd = m.cost_usd,
    cost_cents = COALESCE(m.cost_cents, j.cost_cents), error = m.error, caused_by = m.caused_by, updated_at = m.updated_at,
    completed_at = m.completed_at, approval_until_ms = m.approval_until_ms, begun = m.begun
FROM unnest(
    $1::uuid[], $2::text[], $3::bigint[],
    $4::text[], $5::bigint[], $6::int[], $7::int[], $8::int[], $9::int[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::int[], $14::int[], $15::int[], $16::boolean[], $17::text[], $18::text[], $19::bigint[], $20::numeric[],
    $21::bigint[], $22::text[], $23::text[], $24::timestamptz[], $25::timestamptz[], $26::int[],
    $27::bigint[], $28::int[], $29::text[]
) AS m (
    job_id, held_status, held_epoch,
    status, epoch, worker, attempt, unusable, returns, lease_until_ms, due_ms, seq,
    progress_pct, steps_done, steps_total, is_saved, checkpoint, result, tokens, cost_usd,
    cost_cents, error, caused_by, updated_at, completed_at, attempts_before, approval_until_ms,
    begun, position)
WHERE j.job_id = m.job_id AND j.position = m.position AND j.status = m.held_status AND j.epoch = m.held_epoch
RETURNING j.job_id::text

-- name: store_presentation
INSERT INTO presentations (presentation_id, organization_id, user_id, title, slides, position, created_at)
VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7) ON CONFLICT DO NOTHING

-- An ended job again, whose last call was answered after its end: what that used.
-- name: store_late_totals
UPDATE jobs SET tokens = $2, cost_usd = $3, cost_cents = $4, epoch = epoch + 1, updated_at = $5 WHERE job_id = $1::uuid

-- The newest vectors of an organization and a set of documents (R2.26).
-- name: semantic_vectors_of
SELECT hash, embedding FROM semantic_vectors
WHERE organization_id = $1 AND sources_hash = $2 AND model = $3 AND created_at >= $4 AND NOT is_withdrawn
ORDER BY created_at DESC, hash LIMIT $5

-- name: store_semantic_vector
INSERT INTO semantic_vectors (hash, organization_id, sources_hash, model, embedding, created_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (organization_id, sources_hash, hash) DO UPDATE
SET model = EXCLUDED.model, embedding = EXCLUDED.embedding, created_at = EXCLUDED.created_at, is_withdrawn = false

-- Vectors whose answers are gone from Redis; some at a time, so that no store waits for it.
-- name: prune_semantic_vectors
WITH gone AS (
    DELETE FROM semantic_vectors WHERE ctid = ANY (ARRAY(SELECT ctid FROM semantic_vectors WHERE created_at < $1 LIMIT 1000))
    RETURNING hash)
DELETE FROM surrogate_keys WHERE document IN (SELECT 'semantic:' || hash FROM gone)

-- The channels of a user, by whose insights a deck without documents is made.
-- name: channels_of_user
SELECT channel_id FROM subscriptions WHERE user_id = $1 AND subscribed

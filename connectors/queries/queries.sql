-- Runs that wait for a stage are asked for (R1.6): from now on whoever has a free slot may take them. Only those whose turn it is: all
-- runs of their users before them have released them (R1.2). Locked in the order of ids.
-- name: ask_for_runs
UPDATE pipeline_runs AS r SET command = a.command
FROM (SELECT w.id, c.command
      FROM unnest($1::uuid[], $2::text[], $3::text[]) AS c (id, waits, command)
      JOIN pipeline_runs AS w ON w.id = c.id AND w.status = c.waits
      WHERE w.worker IS NULL AND w.due_ms IS NULL AND NOT w.released
        AND NOT EXISTS (
            SELECT FROM pipeline_runs AS e WHERE e.user_id = w.user_id AND e.ordinal < w.ordinal AND NOT e.released)
      ORDER BY w.id FOR NO KEY UPDATE OF w) AS a
WHERE r.id = a.id

-- Runs that nobody asks for although it is their turn: a completed run whose archivist was given up, and what waits so long that its
-- command must be lost (R1.16).
-- name: ask_for_forgotten_runs
UPDATE pipeline_runs SET command = caused_by
WHERE id IN (
    SELECT r.id FROM pipeline_runs AS r
    WHERE NOT r.released AND r.worker IS NULL AND r.due_ms IS NULL AND r.command IS NULL
      AND ((r.status = 'COMPLETED' AND r.archive_status = 'WAITING')
           OR (r.status IN ('NEW', 'ANALYZED', 'READY') AND r.updated_at < $1))
      AND NOT EXISTS (
          SELECT FROM pipeline_runs AS e WHERE e.user_id = r.user_id AND e.ordinal < r.ordinal AND NOT e.released)
    ORDER BY r.updated_at LIMIT $2 FOR NO KEY UPDATE OF r SKIP LOCKED)
RETURNING id

-- Whether any run waits for a slot: asked for, or put aside until $1, which has come.
-- name: has_waiting_runs
SELECT EXISTS (SELECT FROM pipeline_runs WHERE command IS NOT NULL AND worker IS NULL AND due_ms IS NULL AND NOT released)
    OR EXISTS (SELECT FROM pipeline_runs WHERE due_ms <= $1)

-- Whether any run has not come to its end, its memory included. Asked of three indexes, since none has them all.
-- name: has_unended_runs
SELECT EXISTS (SELECT FROM pipeline_runs WHERE NOT released)
    OR EXISTS (SELECT FROM pipeline_runs WHERE worker IS NOT NULL)
    OR EXISTS (SELECT FROM pipeline_runs WHERE due_ms IS NOT NULL)

-- Runs that wait for a slot, of each organization the first $2; organizations are skipped through in the index. The operator's own
-- have none. Of those that are due no more than the first thousand: the rest is due at the next look, too.
-- name: waiting_runs
WITH RECURSIVE organizations AS (
    (SELECT coalesce(organization_id, '') AS organization_id FROM pipeline_runs
     WHERE command IS NOT NULL AND worker IS NULL AND due_ms IS NULL AND NOT released
     ORDER BY coalesce(organization_id, '') LIMIT 1)
    UNION ALL
    SELECT (SELECT coalesce(r.organization_id, '') FROM pipeline_runs AS r
            WHERE r.command IS NOT NULL AND r.worker IS NULL AND r.due_ms IS NULL AND NOT r.released
              AND coalesce(r.organization_id, '') > o.organization_id
            ORDER BY coalesce(r.organization_id, '') LIMIT 1)
    FROM organizations AS o WHERE o.organization_id IS NOT NULL
)
SELECT w.id::text AS work_id, o.organization_id, w.created_at, w.status = 'COMPLETED' AS is_begun
FROM organizations AS o
CROSS JOIN LATERAL (SELECT r.id, r.created_at, r.status FROM pipeline_runs AS r
                    WHERE r.command IS NOT NULL AND r.worker IS NULL AND r.due_ms IS NULL AND NOT r.released
                      AND coalesce(r.organization_id, '') = o.organization_id
                    ORDER BY r.created_at, r.id LIMIT $2) AS w
UNION ALL
(SELECT id::text, coalesce(organization_id, ''), created_at, true FROM pipeline_runs WHERE due_ms <= $1
 ORDER BY due_ms LIMIT 1000)
ORDER BY created_at, work_id

-- Runs at work or put aside, by organization, and how many of them hold a slot.
-- name: runs_in_progress
SELECT organization_id, count(worker) AS held, count(*) AS begun, 0 AS awaiting
FROM (SELECT coalesce(organization_id, '') AS organization_id, worker FROM pipeline_runs WHERE worker IS NOT NULL
      UNION ALL
      SELECT coalesce(organization_id, ''), NULL FROM pipeline_runs WHERE due_ms IS NOT NULL) AS begun
GROUP BY organization_id

-- Runs that are to be taken, if they still wait. Not FOR UPDATE: the timeline holds the key of a fresh run while it tells of it, and a
-- run that is skipped waits for the next look.
-- name: wanted_runs
SELECT * FROM pipeline_runs
WHERE id = ANY ($1::uuid[]) AND worker IS NULL AND NOT released AND (due_ms <= $2 OR command IS NOT NULL AND due_ms IS NULL)
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED

-- name: workers_with_runs
SELECT DISTINCT worker FROM pipeline_runs WHERE worker IS NOT NULL

-- Held runs whose worker is gone or whose lease is over, locked until the transaction ends.
-- name: lost_runs
SELECT * FROM pipeline_runs
WHERE worker IS NOT NULL AND (worker = ANY ($1::int[]) OR lease_until_ms <= $2)
ORDER BY id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED

-- What a worker holds, to be given back in order.
-- name: runs_of_worker
SELECT * FROM pipeline_runs WHERE worker = $1 ORDER BY id FOR NO KEY UPDATE

-- Rows that are about to be stored, locked in the order of ids: an UPDATE that is joined locks them in any.
-- name: hold_runs
SELECT FROM pipeline_runs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE

-- name: hold_run
SELECT * FROM pipeline_runs WHERE id = $1 FOR UPDATE

-- A run as it is stored only if it still is as it was when it was taken, and not another one of the same key, after an erasure. Texts that are null stay as they are; what asked for it is
-- done with.
-- name: store_runs
UPDATE pipeline_runs AS r
SET status = m.status, archive_status = m.archive_status, released = m.released, revision = m.revision, epoch = m.epoch,
    worker = m.worker, attempt = m.attempt, unusable = m.unusable, returns = m.returns, lease_until_ms = m.lease_until_ms,
    due_ms = m.due_ms, error = m.error, updated_at = m.updated_at, completed_at = m.completed_at,
    analysis_result = COALESCE(m.analysis::jsonb, r.analysis_result), draft_context = COALESCE(m.draft, r.draft_context),
    final_context_payload = COALESCE(m.payload, r.final_context_payload), final_answer = COALESCE(m.answer, r.final_answer),
    sources = COALESCE(m.sources::jsonb, r.sources), caused_by = COALESCE(m.caused_by, r.caused_by), command = NULL
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::bigint[],
    $5::text[], $6::text[], $7::boolean[], $8::bigint[], $9::bigint[], $10::int[], $11::int[], $12::int[], $13::int[],
    $14::bigint[], $15::bigint[], $16::text[], $17::timestamptz[], $18::timestamptz[],
    $19::text[], $20::text[], $21::text[], $22::text[], $23::text[], $24::text[], $25::bigint[]
) AS m (
    id, held_status, held_archive, held_epoch,
    status, archive_status, released, revision, epoch, worker, attempt, unusable, returns,
    lease_until_ms, due_ms, error, updated_at, completed_at,
    analysis, draft, payload, answer, sources, caused_by, ordinal)
WHERE r.id = m.id AND r.ordinal = m.ordinal AND r.status = m.held_status AND r.archive_status IS NOT DISTINCT FROM m.held_archive
  AND r.epoch = m.held_epoch
RETURNING r.id::text

-- name: log_answers
INSERT INTO raw_logs (user_id, message_type, content, pipeline_run_id, ordinal, created_at)
SELECT user_id, 'assistant_response', content, pipeline_run_id, ordinal, created_at
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::timestamptz[])
    AS l (user_id, content, pipeline_run_id, ordinal, created_at)
ON CONFLICT DO NOTHING

-- name: store_memories
INSERT INTO lsm_storage (
    user_id, time_bucket_start, time_bucket_end, tags, summary, raw_log_ids, pipeline_run_id, ordinal, created_at)
SELECT m.user_id, m.day, m.day, ARRAY(SELECT jsonb_array_elements_text(m.tags::jsonb)), m.summary,
       ARRAY(SELECT l.id FROM raw_logs AS l WHERE l.pipeline_run_id = m.run_id ORDER BY l.id), m.run_id, m.ordinal, m.created_at
FROM unnest($1::uuid[], $2::date[], $3::text[], $4::text[], $5::uuid[], $6::bigint[], $7::timestamptz[])
    AS m (user_id, day, tags, summary, run_id, ordinal, created_at)
ON CONFLICT (pipeline_run_id) DO NOTHING
RETURNING id, pipeline_run_id::text

-- name: active_prompts
SELECT id, role_name, prompt_template FROM system_prompts WHERE is_active AND role_name = ANY ($1::text[])

-- R1.17: the 20 latest of the user, of runs before this one.
-- name: memories_before
SELECT id, time_bucket_start, time_bucket_end, tags, summary FROM lsm_storage
WHERE user_id = $1 AND ordinal < $2 ORDER BY time_bucket_start DESC, id DESC LIMIT $3

-- R1.20: the 10 latest of the user, of runs before this one, told oldest first.
-- name: logs_before
SELECT message_type, content, created_at FROM (
    SELECT id, message_type, content, created_at FROM raw_logs
    WHERE user_id = $1 AND ordinal < $2 ORDER BY created_at DESC, id DESC LIMIT $3
) AS latest ORDER BY created_at, id

-- name: channels_of_reader
SELECT channel_id FROM subscriptions WHERE user_id = $1 AND subscribed

-- What is withdrawn of runs, of what they said, and of what is remembered of them.

-- Runs that were told of an object, and later ones of their users, which may repeat what those said; locked in the order of ids.
-- name: runs_to_redact
SELECT r.*, r.id = ANY ($1::uuid[]) AS is_told FROM pipeline_runs AS r
WHERE r.id = ANY ($1::uuid[])
   OR (r.user_id, r.ordinal) IN (
       SELECT later.user_id, later.ordinal FROM pipeline_runs AS told
       JOIN pipeline_runs AS later ON later.user_id = told.user_id AND later.ordinal > told.ordinal
       WHERE told.id = ANY ($1::uuid[]))
ORDER BY r.id FOR UPDATE OF r

-- $1 runs, $2 sources, $3 answers, $4 the position of the withdrawal, $5 what was withdrawn, for those still at work
-- name: redact_runs
UPDATE pipeline_runs AS r
SET sources = m.sources::jsonb, final_answer = m.answer, caused_by = m.caused_by, redactions = r.redactions + 1,
    draft_context = CASE WHEN m.withdrawn IS NULL THEN NULL ELSE r.draft_context END,
    final_context_payload = CASE WHEN m.withdrawn IS NULL THEN NULL ELSE r.final_context_payload END,
    withdrawn = CASE WHEN m.withdrawn IS NULL THEN NULL ELSE coalesce(r.withdrawn, '[]') || m.withdrawn::jsonb END
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[]) AS m (id, sources, answer, caused_by, withdrawn)
WHERE r.id = m.id

-- $1 runs, $2 what is said instead, of each
-- name: redact_raw_logs
UPDATE raw_logs AS l SET content = m.said
FROM unnest($1::uuid[], $2::text[]) AS m (id, said)
WHERE l.pipeline_run_id = m.id AND l.message_type = 'assistant_response'

-- name: redact_memories
UPDATE lsm_storage AS l SET summary = m.said, tags = ARRAY[]::text[]
FROM unnest($1::uuid[], $2::text[]) AS m (id, said)
WHERE l.pipeline_run_id = m.id

-- name: withdrawn_of_runs
SELECT id::text, withdrawn, final_answer FROM pipeline_runs WHERE id = ANY ($1::uuid[]) AND withdrawn IS NOT NULL

-- Runs that have ended need nothing any more to withdraw by. $1 runs
-- name: forget_contexts
UPDATE pipeline_runs SET draft_context = NULL, final_context_payload = NULL, withdrawn = NULL
WHERE id = ANY ($1::uuid[]) AND withdrawn IS NOT NULL
RETURNING id::text

-- name: copy_tags
INSERT INTO surrogate_keys (document, version, space, numbers)
SELECT 'run:' || n.id, 0, s.space, s.numbers
FROM unnest($1::uuid[], $2::uuid[]) AS n (id, source_id)
JOIN surrogate_keys AS s ON s.document = 'run:' || n.source_id
ON CONFLICT DO NOTHING

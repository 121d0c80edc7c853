-- name: read_active_basis
SELECT basis_id, next_id FROM active_basis

-- An advisory lock and not one on the row: shared ones of many sinks would never let a writer in.
-- name: share_active_basis
SELECT pg_advisory_xact_lock_shared($1, $2)

-- name: hold_active_basis
SELECT pg_advisory_xact_lock($1, $2)

-- name: read_basis
SELECT kind, content FROM bases WHERE basis_id = $1

-- name: corpus_of_basis
SELECT kind, corpus_size FROM bases WHERE basis_id = $1

-- name: insert_basis
INSERT INTO bases (basis_id, kind, content, corpus_size, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING

-- name: newest_own_basis
SELECT basis_id FROM bases WHERE kind <> 'remote' ORDER BY created_at DESC, basis_id LIMIT 1

-- name: set_next_basis
UPDATE active_basis SET next_id = $1

-- name: switch_basis
UPDATE active_basis SET basis_id = $1, next_id = NULL, changed_at = $2

-- name: read_reembedding
SELECT phase, swept_to, reembedded FROM reembedding

-- name: begin_reembedding
INSERT INTO reembedding (phase, swept_to, reembedded) VALUES ($1, '', 0)
ON CONFLICT (one) DO UPDATE SET phase = EXCLUDED.phase, swept_to = '', reembedded = 0

-- name: advance_reembedding
UPDATE reembedding SET swept_to = $1, reembedded = reembedded + $2

-- name: end_reembedding
DELETE FROM reembedding

-- name: corpus_size
SELECT COALESCE(sum(current_seq), 0)::bigint FROM channels

-- Distinct texts in the order of their hashes, which has nothing to do with what they say.
-- name: corpus_sample
SELECT min(left(text, $2)) AS text FROM insights TABLESAMPLE SYSTEM ($3) REPEATABLE (0)
WHERE text <> '' AND excluded_at IS NULL AND (embedding IS NULL OR embedding_model IN (SELECT basis_id FROM bases))
GROUP BY md5(left(text, $2)) ORDER BY md5(left(text, $2)) LIMIT $1

-- name: awaited_insights
SELECT insight_id, text, arrived_at, source_partition, source_offset, embedding IS NULL AS is_vectorless FROM insights
WHERE next_embedding IS NULL AND excluded_at IS NULL AND (embedding IS NULL OR next_model IS NOT NULL)
ORDER BY channel_id, seq LIMIT $1

-- Insights that wait for a vector of the next basis, or for any: new ones, or those the sweep has still to see, new ones among them
-- as a rule; the greater of both, up to $1.
-- name: insights_behind
SELECT greatest(
    (SELECT count(*) FROM (
        SELECT FROM insights
        WHERE next_embedding IS NULL AND excluded_at IS NULL AND (embedding IS NULL OR next_model IS NOT NULL) LIMIT $1) AS a),
    (SELECT count(*) FROM (
        SELECT FROM insights, reembedding AS r WHERE r.phase = 'embed' AND insight_id > r.swept_to LIMIT $1) AS b)) AS behind

-- name: set_embeddings
UPDATE insights AS i SET embedding = e.embedding, embedding_model = $3
FROM unnest($1::text[], $2::bytea[]) AS e (insight_id, embedding)
WHERE i.insight_id = e.insight_id AND i.embedding IS NULL AND i.excluded_at IS NULL

-- name: set_next_embeddings
UPDATE insights AS i SET next_embedding = e.embedding, next_model = $3
FROM unnest($1::text[], $2::bytea[]) AS e (insight_id, embedding)
WHERE i.insight_id = e.insight_id AND i.excluded_at IS NULL

-- name: insights_to_reembed
SELECT insight_id, is_due, CASE WHEN is_due THEN text END AS text FROM (
    SELECT insight_id, text,
           excluded_at IS NULL AND embedding_model IS DISTINCT FROM $3
           AND (next_model IS DISTINCT FROM $3 OR next_embedding IS NULL)
           AND (embedding IS NULL OR embedding_model IN (SELECT basis_id FROM bases)) AS is_due
    FROM insights WHERE insight_id > $1 ORDER BY insight_id LIMIT $2
) AS page ORDER BY insight_id

-- name: insights_to_move
SELECT insight_id, next_model IS NOT NULL AS is_due FROM insights WHERE insight_id > $1 ORDER BY insight_id LIMIT $2

-- What was made in a basis that is not the active one (a roll-out that was given up) is dropped.
-- name: move_embeddings
UPDATE insights
SET embedding = CASE WHEN next_model = $2 THEN COALESCE(next_embedding, embedding) ELSE embedding END,
    embedding_model = CASE WHEN next_model = $2 AND next_embedding IS NOT NULL THEN $2 ELSE embedding_model END,
    next_embedding = NULL, next_model = NULL
WHERE insight_id = ANY ($1::text[])

-- The first three conditions are those of the index insights_awaited.
-- name: forget_awaited
UPDATE insights SET embedding = NULL, embedding_model = NULL, next_model = NULL
WHERE next_embedding IS NULL AND excluded_at IS NULL AND (embedding IS NULL OR next_model IS NOT NULL)
  AND next_model = $1

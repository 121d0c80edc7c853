-- Namespaces that get vectors of another model. $1 is the model that makes them, wherever it is asked for.

-- Namespaces that are to be compared by the model and are not, and the other way round; those with vectors that were sent are not:
-- only the sender can make their like.
-- name: switches_to_change
SELECT n.ns, n.embedding_model, n.embedding_model <> $1 AND NOT s.is_sent AS is_to_begin
FROM (SELECT ns, embedding_model, next_model FROM chunk_namespaces
      WHERE embedding_model <> $1 AND next_model IS DISTINCT FROM $1 OR next_model IS NOT NULL OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM chunks AS c WHERE c.ns = n.ns AND c.embedding_model = 'sent' AND NOT c.to_delete) AS is_sent
) AS s
WHERE n.embedding_model <> $1 AND n.next_model IS DISTINCT FROM $1 AND NOT s.is_sent
   OR n.next_model IS NOT NULL AND (n.embedding_model = $1 OR s.is_sent)
ORDER BY n.ns

-- name: begin_switch
UPDATE chunk_namespaces SET next_model = $1, next_due_at = NULL WHERE ns = $2 AND embedding_model <> $1

-- name: end_switch
UPDATE chunk_namespaces SET next_model = NULL, next_due_at = NULL WHERE ns = $1

-- name: forget_next_vectors
DELETE FROM chunk_next_vectors WHERE ns = $1

-- Namespaces in progress, hot ones first.
-- name: namespaces_to_switch
SELECT ns FROM chunk_namespaces WHERE next_model = $1 ORDER BY is_hot DESC, ns

-- The same, and how many vectors each lacks: counted, so not with each batch.
-- name: switches_in_progress
SELECT n.ns, greatest(0, (SELECT count(*) FROM chunks AS c WHERE c.ns = n.ns AND NOT c.to_delete)
                         - (SELECT count(*) FROM chunk_next_vectors AS v WHERE v.ns = n.ns AND v.model = $1)) AS missing
FROM chunk_namespaces AS n WHERE n.next_model = $1 ORDER BY n.is_hot DESC, n.ns

-- name: note_switch_due
UPDATE chunk_namespaces AS n SET next_due_at = d.due_at
FROM unnest($1::text[], $2::timestamptz[]) AS d (ns, due_at) WHERE n.ns = d.ns AND n.next_model IS NOT NULL

-- Chunks of a namespace that lack a vector of the model, or have one of another text. $2 the namespace, $3 the moment, $4 to $6 the
-- place after which, $7 letters of a text, $8 how many, $9 hashes of chunks that are left aside
-- name: chunks_to_switch
SELECT c.slot, c.source_id, c.chunk_no, c.content_hash, chunk_text_digest(c.title, c.content) AS vector_text,
       left(coalesce(nullif(c.title, '') || E'\n\n', '') || left(c.content, $7), $7) AS text
FROM chunks AS c
JOIN chunk_namespaces AS n ON n.ns = c.ns
LEFT JOIN chunk_next_vectors AS v ON v.ns = c.ns AND v.slot = c.slot AND v.source_id = c.source_id AND v.chunk_no = c.chunk_no
WHERE c.ns = $2 AND NOT c.to_delete AND (c.slot, c.source_id, c.chunk_no) > ($4, $5, $6)
  AND coalesce(c.published_at, c.created_at) >= $3::timestamptz - n.ttl_days * interval '24 hours'
  AND (v.model IS DISTINCT FROM $1 OR v.vector_text <> chunk_text_digest(c.title, c.content))
  AND c.content_hash <> ALL ($9::text[])
ORDER BY c.slot, c.source_id, c.chunk_no LIMIT $8

-- Of chunks that are still there. $2 the namespace, then columns
-- name: store_next_vectors
INSERT INTO chunk_next_vectors (ns, slot, source_id, chunk_no, model, vector_text, embedding)
SELECT c.ns, c.slot, c.source_id, c.chunk_no, $1, t.vector_text, t.embedding
FROM unnest($3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::vector[]) AS t (slot, source_id, chunk_no, vector_text, embedding)
JOIN chunks AS c ON c.ns = $2 AND c.slot = t.slot AND c.source_id = t.source_id AND c.chunk_no = t.chunk_no
FOR KEY SHARE OF c
ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE
SET model = EXCLUDED.model, vector_text = EXCLUDED.vector_text, embedding = EXCLUDED.embedding

-- The index of the vectors that go: with it a change of all vectors would take minutes.
-- name: index_of_namespace
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I', 'chunks_vectors_' || md5(ns || '|' || dimensions)) AS drop_statement
FROM chunk_namespaces
WHERE ns = $1 AND to_regclass(quote_ident('chunks_vectors_' || md5(ns || '|' || dimensions))) IS NOT NULL

-- name: hold_namespace_to_switch
SELECT ns FROM chunk_namespaces WHERE ns = $2 AND next_model = $1 FOR UPDATE

-- name: hold_sources_of_namespace
SELECT FROM chunk_sources WHERE ns = $1 ORDER BY ns, slot, source_id FOR UPDATE

-- name: has_sent_vectors
SELECT EXISTS (SELECT FROM chunks WHERE ns = $1 AND embedding_model = 'sent' AND NOT to_delete)

-- name: take_next_vectors
UPDATE chunks AS c SET embedding = v.embedding, embedding_model = $1, embedding_stale = false
FROM chunk_next_vectors AS v
WHERE c.ns = $2 AND v.ns = c.ns AND v.slot = c.slot AND v.source_id = c.source_id AND v.chunk_no = c.chunk_no
  AND v.model = $1 AND v.vector_text = chunk_text_digest(c.title, c.content)

-- What is left of the model before, in chunks that are marked or too old, or whose text has changed since.
-- name: drop_other_vectors
UPDATE chunks SET embedding = NULL, embedding_model = NULL, embedding_stale = false
WHERE ns = $2 AND embedding IS NOT NULL AND embedding_model IS DISTINCT FROM $1

-- Of texts that are found as of a time.
-- name: drop_former_vectors
UPDATE former_chunks SET embedding = NULL, embedding_model = NULL, embedding_stale = false
WHERE ns = $1 AND embedding IS NOT NULL

-- A namespace of which nothing is left to compare is as one without a vector.
-- name: name_next_model
UPDATE chunk_namespaces AS n
SET embedding_model = CASE WHEN v.dimensions IS NOT NULL THEN $1::text END, dimensions = v.dimensions, next_model = NULL,
    next_due_at = NULL
FROM (SELECT min(vector_dims(embedding)) AS dimensions FROM chunk_next_vectors WHERE ns = $2 AND model = $1) AS v
WHERE n.ns = $2

-- The event that wrote a text of the namespace last.
-- name: last_event_of_namespace
SELECT source_partition, source_offset FROM chunks WHERE ns = $1 ORDER BY source_offset DESC, source_partition DESC LIMIT 1

-- Namespaces in progress whatever the model: how many, how many vectors they lack, and when the last is expected.
-- name: switches_behind
SELECT count(*) AS namespaces, max(n.next_due_at) AS due_at,
       coalesce(sum(greatest(0, (SELECT count(*) FROM chunks AS c WHERE c.ns = n.ns AND NOT c.to_delete)
                                - (SELECT count(*) FROM chunk_next_vectors AS v WHERE v.ns = n.ns AND v.model = n.next_model))), 0)::bigint
           AS missing
FROM chunk_namespaces AS n WHERE n.next_model IS NOT NULL

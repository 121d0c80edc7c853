-- Namespaces that get vectors of another model. $1 is the model that makes them, wherever it is asked for.

-- Namespaces that are to be compared by the model and are not, and the other way round; those with vectors that were sent are not:
-- only the sender can make their like. A namespace whose vectors are still being exchanged is done with that first.
-- name: switches_to_change
SELECT n.ns, n.embedding_model, n.embedding_model <> $1 AND NOT s.is_sent AS is_to_begin
FROM (SELECT ns, embedding_model, next_model FROM chunk_namespaces
      WHERE (embedding_model <> $1 AND next_model IS DISTINCT FROM $1 OR next_model IS NOT NULL) AND NOT vectors_beside OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM chunks AS c WHERE c.ns = n.ns AND c.embedding_model = 'sent') AS is_sent
) AS s
WHERE n.embedding_model <> $1 AND n.next_model IS DISTINCT FROM $1 AND NOT s.is_sent
   OR n.next_model IS NOT NULL AND (n.embedding_model = $1 OR s.is_sent)
ORDER BY n.ns

-- name: begin_switch
UPDATE chunk_namespaces SET next_model = $1, next_due_at = NULL, index_awaited = false
WHERE ns = $2 AND embedding_model <> $1 AND NOT vectors_beside

-- name: end_switch
UPDATE chunk_namespaces SET next_model = NULL, next_due_at = NULL, index_awaited = false WHERE ns = $1

-- By batches: a writer of a chunk waits for a batch at most. $1 the namespace, $2 how many
-- name: forget_next_vectors
WITH gone AS (
    DELETE FROM chunk_next_vectors WHERE ctid = ANY (ARRAY(SELECT ctid FROM chunk_next_vectors WHERE ns = $1 LIMIT $2)) RETURNING 1
)
SELECT count(*) FROM gone

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

-- The namespace, while it gets vectors of the model and until the transaction ends.
-- name: hold_namespace_in_switch
SELECT ns FROM chunk_namespaces WHERE ns = $2 AND next_model = $1 FOR KEY SHARE

-- Of chunks that are still there with their texts; under the locks of their sources nobody changes these. $2 the namespace, then columns
-- name: store_next_vectors
INSERT INTO chunk_next_vectors (ns, slot, source_id, chunk_no, model, vector_text, embedding)
SELECT c.ns, c.slot, c.source_id, c.chunk_no, $1, t.vector_text, t.embedding
FROM unnest($3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::vector[]) AS t (slot, source_id, chunk_no, vector_text, embedding)
JOIN chunks AS c ON c.ns = $2 AND c.slot = t.slot AND c.source_id = t.source_id AND c.chunk_no = t.chunk_no
WHERE chunk_text_digest(c.title, c.content) = t.vector_text
FOR KEY SHARE OF c
ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE
SET model = EXCLUDED.model, vector_text = EXCLUDED.vector_text, embedding = EXCLUDED.embedding

-- Whether the change of a namespace may be made: it has as few vectors as are compared one by one ($3), or vectors too long for an
-- index ($4), or else the index of `chunk_next_vectors`.
-- name: is_indexed_beside
SELECT (SELECT count(*) FROM (SELECT FROM chunk_next_vectors WHERE ns = $2 AND model = $1 LIMIT $3 + 1) AS counted) <= $3
    OR (SELECT vector_dims(embedding) FROM chunk_next_vectors WHERE ns = $2 AND model = $1 LIMIT 1) > $4
    OR EXISTS (SELECT FROM pg_index WHERE indisvalid AND indexrelid = to_regclass('chunks_vectors_next_' || md5($2::text || '|' || $1::text)))

-- Whether it may be ended: the same of `chunks`. $1 the namespace, $2 and $3 as $3 and $4 before
-- name: is_indexed
SELECT n.dimensions IS NULL OR n.dimensions > $3
    OR (SELECT count(*) FROM (SELECT FROM chunks AS c WHERE c.ns = n.ns AND c.embedding IS NOT NULL AND NOT c.to_delete
                              LIMIT $2 + 1) AS counted) <= $2
    OR EXISTS (SELECT FROM pg_index
               WHERE indisvalid AND indexrelid = to_regclass('chunks_vectors_' || md5(n.ns || '|' || n.dimensions)))
FROM chunk_namespaces AS n WHERE n.ns = $1

-- name: await_index
UPDATE chunk_namespaces SET index_awaited = true WHERE ns = $1 AND NOT index_awaited

-- Indexes of a namespace in `chunks`, of vectors of any length up to $2. With the index of vectors that go, each that is exchanged would
-- cost milliseconds, and one of another length would fail ($3: the next model, whose vectors have the length).
-- name: indexes_of_namespace
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I', c.relname) AS drop_statement,
       c.relname = (SELECT 'chunks_vectors_' || md5($1::text || '|' || vector_dims(embedding))
                    FROM chunk_next_vectors WHERE ns = $1 AND model = $3 LIMIT 1) AS takes_next_vectors
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'chunks'::regclass
  AND c.relname IN (SELECT 'chunks_vectors_' || md5($1::text || '|' || length) FROM generate_series(1, $2::int) AS length)

-- name: hold_namespace_to_switch
SELECT ns FROM chunk_namespaces WHERE ns = $2 AND next_model = $1 FOR UPDATE

-- name: has_sent_vectors
SELECT EXISTS (SELECT FROM chunks WHERE ns = $1 AND embedding_model = 'sent')

-- The switch. A namespace of which nothing is left to compare is as one without a vector.
-- name: name_next_model
UPDATE chunk_namespaces AS n
SET embedding_model = CASE WHEN v.dimensions IS NOT NULL THEN $1::text END, dimensions = v.dimensions, next_model = NULL,
    next_due_at = NULL, vectors_beside = true, index_awaited = false
FROM (SELECT (SELECT vector_dims(embedding) FROM chunk_next_vectors WHERE ns = $2 AND model = $1 LIMIT 1) AS dimensions) AS v
WHERE n.ns = $2

-- Namespaces whose vectors are to be exchanged, or that have some left beside after that; hot ones first.
-- name: namespaces_to_exchange
SELECT ns, vectors_beside, index_awaited FROM chunk_namespaces AS n
WHERE vectors_beside OR next_model IS NULL AND EXISTS (SELECT FROM chunk_next_vectors AS v WHERE v.ns = n.ns)
ORDER BY is_hot DESC, ns

-- Chunks whose vectors are another model's, or stand beside. Those that were sent since the switch are the namespace's.
-- $1 the namespace, $2 to $4 the place after which, $5 how many
-- name: chunks_to_exchange
SELECT c.slot, c.source_id, c.chunk_no
FROM chunks AS c JOIN chunk_namespaces AS n ON n.ns = c.ns
WHERE c.ns = $1 AND (c.slot, c.source_id, c.chunk_no) > ($2, $3, $4)
  AND c.embedding_model IS DISTINCT FROM 'sent' AND (c.embedding_model = n.embedding_model) IS NOT TRUE
  AND (c.embedding IS NOT NULL OR EXISTS (
      SELECT FROM chunk_next_vectors AS v
      WHERE v.ns = c.ns AND v.slot = c.slot AND v.source_id = c.source_id AND v.chunk_no = c.chunk_no
        AND v.model = n.embedding_model))
ORDER BY c.slot, c.source_id, c.chunk_no LIMIT $5

-- Chunks take the vectors that stand beside; those without one lose what another model made. What stands beside stays, for searches
-- by its index. $1 the namespace, then columns
-- name: exchange_vectors
UPDATE chunks AS c
SET embedding = b.embedding, embedding_model = CASE WHEN b.embedding IS NOT NULL THEN b.model END, embedding_stale = false
FROM (
    SELECT k.slot, k.source_id, k.chunk_no, v.embedding, n.embedding_model AS model
    FROM unnest($2::text[], $3::text[], $4::bigint[]) AS k (slot, source_id, chunk_no)
    JOIN chunk_namespaces AS n ON n.ns = $1
    LEFT JOIN chunk_next_vectors AS v ON v.ns = $1 AND v.slot = k.slot AND v.source_id = k.source_id AND v.chunk_no = k.chunk_no
                                     AND v.model = n.embedding_model
) AS b
WHERE c.ns = $1 AND c.slot = b.slot AND c.source_id = b.source_id AND c.chunk_no = b.chunk_no
  AND c.embedding_model IS DISTINCT FROM 'sent' AND (c.embedding_model = b.model) IS NOT TRUE

-- name: sort_in_words
SELECT gin_clean_pending_list('chunks_words')

-- Of texts that are found as of a time. $1 the namespace, $2 how many
-- name: drop_former_vectors
WITH dropped AS (
    UPDATE former_chunks AS f SET embedding = NULL, embedding_model = NULL, embedding_stale = false
    WHERE f.ctid = ANY (ARRAY(
        SELECT o.ctid FROM former_chunks AS o JOIN chunk_namespaces AS n ON n.ns = o.ns
        WHERE o.ns = $1 AND o.embedding IS NOT NULL AND (o.embedding_model = n.embedding_model) IS NOT TRUE LIMIT $2))
    RETURNING 1
)
SELECT count(*) FROM dropped

-- name: end_exchange
UPDATE chunk_namespaces SET vectors_beside = false, index_awaited = false WHERE ns = $1

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

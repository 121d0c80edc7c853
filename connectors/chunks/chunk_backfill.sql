-- Chunks that wait for their vectors. $1 the moment, $2 what makes the vectors, $3 their length (null: not known yet), wherever all
-- three are asked for: of a namespace whose vectors are another's, or of another length, none is made.

-- A page of them in the order of their keys, by source, each with how many of it are on the page. $4 only those that are hot,
-- $5 to $7 the place after which, $8 how many, $9 hashes of chunks that are left aside, $10 also of namespaces that have no vectors yet
-- name: sources_to_fill
SELECT ns, slot, source_id, count(*) AS chunks FROM (
    SELECT c.ns, c.slot, c.source_id
    FROM chunks AS c JOIN chunk_namespaces AS n ON n.ns = c.ns
    WHERE (c.embedding IS NULL OR c.embedding_stale) AND NOT c.to_delete AND (c.ns, c.slot, c.source_id) > ($5, $6, $7)
      AND coalesce(c.published_at, c.created_at) >= $1::timestamptz - n.ttl_days * interval '24 hours'
      AND (NOT $4::boolean
           OR n.is_hot AND coalesce(c.published_at, c.created_at) >= $1::timestamptz - n.hot_days * interval '24 hours')
      AND coalesce(n.embedding_model = $2, $10::boolean) AND coalesce(n.dimensions = $3::int, true)
      AND c.content_hash <> ALL ($9::text[])
    ORDER BY c.ns, c.slot, c.source_id LIMIT $8
) AS page
GROUP BY ns, slot, source_id ORDER BY ns, slot, source_id

-- Chunks of sources that are claimed, read after they were. $2 to $4 the sources, $5 letters of a text, $6 how many, $7 left aside
-- One look into the index a source, whatever the planner thinks of reading the whole table.
-- name: chunks_to_fill
SELECT s.ns, s.slot, s.source_id, c.chunk_no, c.content_hash, c.text
FROM unnest($2::text[], $3::text[], $4::text[]) AS s (ns, slot, source_id)
JOIN chunk_namespaces AS n ON n.ns = s.ns
JOIN LATERAL (
    SELECT c.chunk_no, c.content_hash,
           left(coalesce(nullif(c.title, '') || E'\n\n', '') || left(c.content, $5), $5) AS text
    FROM chunks AS c
    WHERE c.ns = s.ns AND c.slot = s.slot AND c.source_id = s.source_id
      AND (c.embedding IS NULL OR c.embedding_stale) AND NOT c.to_delete
      AND coalesce(c.published_at, c.created_at) >= $1::timestamptz - n.ttl_days * interval '24 hours'
      AND c.content_hash <> ALL ($7::text[])
    ORDER BY c.chunk_no LIMIT $6
) AS c ON true
ORDER BY s.ns, s.slot, s.source_id, c.chunk_no LIMIT $6

-- Sources with chunks whose text changed after their vector was made, and the last event that changed one. $1 to $3 the sources
-- name: sources_moved
SELECT s.ns, s.slot, s.source_id, c.source_offset
FROM unnest($1::text[], $2::text[], $3::text[]) AS s (ns, slot, source_id)
JOIN LATERAL (
    SELECT c.source_offset FROM chunks AS c
    WHERE c.ns = s.ns AND c.slot = s.slot AND c.source_id = s.source_id
      AND c.vector_text IS NOT NULL AND c.embedding_stale AND NOT c.to_delete
    ORDER BY c.source_offset DESC LIMIT 1
) AS c ON true

-- Chunks of a source that wait take vectors that the same model made of the same text for another chunk of the source. Those that
-- take from a lower number come first, from the end, then the others from the start: so a vector is taken before its row loses it.
-- $1 the moment, $2 to $4 the source, $5 the model, $6 how many
-- name: reuse_vectors
WITH waiting AS MATERIALIZED (
    SELECT c.chunk_no, chunk_text_digest(c.title, c.content) AS digest
    FROM chunks AS c JOIN chunk_namespaces AS n ON n.ns = c.ns
    WHERE c.ns = $2 AND c.slot = $3 AND c.source_id = $4 AND (c.embedding IS NULL OR c.embedding_stale) AND NOT c.to_delete
      AND coalesce(c.published_at, c.created_at) >= $1::timestamptz - n.ttl_days * interval '24 hours'
      AND n.embedding_model = $5
), made AS MATERIALIZED (
    SELECT coalesce(c.vector_text, chunk_text_digest(c.title, c.content)) AS digest, min(c.chunk_no) AS chunk_no
    FROM chunks AS c
    WHERE c.ns = $2 AND c.slot = $3 AND c.source_id = $4 AND c.embedding IS NOT NULL AND c.embedding_model = $5
      AND (NOT c.embedding_stale OR c.vector_text IS NOT NULL)
    GROUP BY 1
), taken AS MATERIALIZED (
    SELECT w.chunk_no, m.chunk_no AS taken_from
    FROM waiting AS w JOIN made AS m USING (digest)
    ORDER BY m.chunk_no < w.chunk_no DESC, CASE WHEN m.chunk_no < w.chunk_no THEN -w.chunk_no ELSE w.chunk_no END
    LIMIT $6
)
UPDATE chunks AS c
SET embedding = d.embedding, embedding_model = $5, embedding_stale = false, updated_at = $1
FROM taken AS t
JOIN chunks AS d ON d.ns = $2 AND d.slot = $3 AND d.source_id = $4 AND d.chunk_no = t.taken_from
WHERE c.ns = $2 AND c.slot = $3 AND c.source_id = $4 AND c.chunk_no = t.chunk_no
RETURNING c.ns, c.slot, c.source_id, c.chunk_no, c.content_hash, c.source_partition, c.source_offset

-- Namespaces take the first vectors that are made for them for theirs. $1 namespaces, $2 what made them, $3 their length
-- name: name_models
UPDATE chunk_namespaces SET dimensions = $3, embedding_model = $2
WHERE ns IN (SELECT ns FROM chunk_namespaces
             WHERE ns = ANY ($1::text[]) AND embedding_model IS NULL AND coalesce(dimensions = $3, true)
             ORDER BY ns FOR UPDATE)

-- Those of these namespaces whose vectors are of the model; they stay so until the transaction ends.
-- name: namespaces_of_model
SELECT ns FROM chunk_namespaces WHERE ns = ANY ($1::text[]) AND embedding_model = $2 AND dimensions = $3
ORDER BY ns FOR KEY SHARE

-- name: hold_sources_to_fill
SELECT FROM chunk_sources AS h
WHERE (h.ns, h.slot, h.source_id) IN (SELECT DISTINCT * FROM unnest($1::text[], $2::text[], $3::text[]))
ORDER BY h.ns, h.slot, h.source_id FOR UPDATE

-- A vector of a text that has changed meanwhile, or that has got one, comes too late.
-- name: store_vectors
UPDATE chunks AS c
SET embedding = v.embedding, embedding_model = $7, embedding_stale = false, updated_at = $8
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::vector[])
     AS v (ns, slot, source_id, chunk_no, content_hash, embedding)
WHERE c.ns = v.ns AND c.slot = v.slot AND c.source_id = v.source_id AND c.chunk_no = v.chunk_no
  AND c.content_hash = v.content_hash AND NOT c.to_delete AND (c.embedding IS NULL OR c.embedding_stale)
RETURNING c.ns, c.slot, c.source_id, c.chunk_no, c.content_hash, c.source_partition, c.source_offset

-- Chunks that wait, up to $1, those among them that nobody fills.
-- name: chunks_behind
SELECT count(*) FROM (
    SELECT FROM chunks WHERE (embedding IS NULL OR embedding_stale) AND NOT to_delete LIMIT $1) AS waiting

-- Namespaces with chunks that nobody makes vectors for, since theirs are another's. $1 what makes them, $2 their length
-- name: namespaces_not_filled
SELECT ns, embedding_model, dimensions FROM chunk_namespaces AS n
WHERE (n.embedding_model <> $1 OR n.dimensions <> $2::int) AND n.next_model IS DISTINCT FROM $1
  AND EXISTS (SELECT FROM chunks AS c WHERE c.ns = n.ns AND (c.embedding IS NULL OR c.embedding_stale) AND NOT c.to_delete)
ORDER BY ns

-- The server puts these statements together, since it knows how names and texts are quoted.
-- Indexes of namespaces with more than $1 vectors, of at most $2 numbers each, that are not there or were left half made; and those of
-- `chunk_next_vectors` that changes of the model wait for (`model` is set).
-- Of 100,000 chunks a search at `ef_search` 400 finds .974 of its ten where 256 neighbours were weighed for each vector, and .959 where 160
-- were; at 300 it finds .951 and .940.
-- name: vector_indexes_wanted
SELECT wanted.ns, wanted.name, wanted.model, found.indexrelid IS NOT NULL AS is_broken,
       format('DROP INDEX CONCURRENTLY IF EXISTS %1$I', wanted.name) AS drop_statement,
       format('CREATE INDEX CONCURRENTLY %1$I ON %2$I USING hnsw ((l2_normalize(embedding)::halfvec(%3$s)) halfvec_ip_ops) '
              'WITH (ef_construction = 256) WHERE ns = %4$L AND %5$s', wanted.name,
              CASE WHEN wanted.model IS NULL THEN 'chunks' ELSE 'chunk_next_vectors' END, wanted.dimensions, wanted.ns,
              CASE WHEN wanted.model IS NULL THEN 'NOT to_delete' ELSE format('model = %L', wanted.model) END) AS create_statement
FROM (
    SELECT ns, is_hot, dimensions, NULL AS model, 'chunks_vectors_' || md5(ns || '|' || dimensions) AS name
    FROM chunk_namespaces WHERE NOT vectors_beside OR index_awaited
    UNION ALL
    SELECT n.ns, n.is_hot, (SELECT vector_dims(v.embedding) FROM chunk_next_vectors AS v
                            WHERE v.ns = n.ns AND v.model = n.next_model LIMIT 1),
           n.next_model, 'chunks_vectors_next_' || md5(n.ns || '|' || n.next_model)
    FROM chunk_namespaces AS n WHERE n.next_model IS NOT NULL AND n.index_awaited
) AS wanted
LEFT JOIN pg_index AS found ON found.indexrelid = to_regclass(quote_ident(wanted.name))
WHERE wanted.dimensions <= $2 AND (found.indexrelid IS NULL OR NOT found.indisvalid)
  AND CASE
      WHEN wanted.model IS NULL
          THEN (SELECT count(*) FROM (SELECT FROM chunks AS c WHERE c.ns = wanted.ns AND c.embedding IS NOT NULL AND NOT c.to_delete
                                      LIMIT $1 + 1) AS counted)
      ELSE (SELECT count(*) FROM (SELECT FROM chunk_next_vectors AS v WHERE v.ns = wanted.ns AND v.model = wanted.model
                                  LIMIT $1 + 1) AS counted)
  END > $1
ORDER BY wanted.is_hot DESC, wanted.ns

-- What a rebuild that was broken off has left, and indexes of changes of the model that are over.
-- name: vector_indexes_left_over
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I', c.relname) AS drop_statement
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'chunks'::regclass AND NOT i.indisvalid AND c.relname ~ '^chunks_vectors_[0-9a-f]+_cc(new|old)'
   OR i.indrelid = 'chunk_next_vectors'::regclass AND c.relname ~ '^chunks_vectors_next_'
      AND NOT EXISTS (
          SELECT FROM chunk_namespaces AS n
          WHERE c.relname = 'chunks_vectors_next_'
                            || md5(n.ns || '|' || CASE WHEN n.vectors_beside THEN n.embedding_model ELSE n.next_model END))

-- Whole indexes that were not looked at since $1 (hot namespaces) or $2 (others), hot ones first; null: how they were is not known
-- name: vector_indexes_to_look_at
SELECT n.ns, n.is_hot, n.name, held.vectors, held.bytes, pg_relation_size(i.indexrelid) AS bytes_now,
       (SELECT count(*) FROM chunks AS c WHERE c.ns = n.ns AND c.embedding IS NOT NULL AND NOT c.to_delete) AS vectors_now,
       format('REINDEX INDEX CONCURRENTLY %I', n.name) AS rebuild_statement
FROM (SELECT ns, is_hot, 'chunks_vectors_' || md5(ns || '|' || dimensions) AS name FROM chunk_namespaces) AS n
JOIN pg_index AS i ON i.indexrelid = to_regclass(quote_ident(n.name)) AND i.indisvalid
LEFT JOIN chunk_indexes AS held ON held.name = n.name
WHERE held.looked_at IS NULL OR held.looked_at <= CASE WHEN n.is_hot THEN $1::timestamptz ELSE $2 END
ORDER BY n.is_hot DESC, n.ns

-- How an index is now that it is dense. $1 its name, $2 the namespace, $3 the moment
-- name: note_vector_index
INSERT INTO chunk_indexes (name, ns, vectors, bytes, looked_at)
SELECT $1, $2, (SELECT count(*) FROM chunks AS c WHERE c.ns = $2 AND c.embedding IS NOT NULL AND NOT c.to_delete),
       pg_relation_size(quote_ident($1)::regclass), $3
ON CONFLICT (name) DO UPDATE SET vectors = excluded.vectors, bytes = excluded.bytes, looked_at = excluded.looked_at

-- name: vector_index_is_dense
UPDATE chunk_indexes SET looked_at = $2 WHERE name = $1

-- name: set_build_memory
SELECT set_config('maintenance_work_mem', $1, false)

-- Namespaces whose sums of words are in at least $1 parts: each statement that changed chunks has left one.
-- name: namespaces_to_fold
SELECT ns FROM chunk_words WHERE word = '' GROUP BY ns HAVING count(*) >= $1 ORDER BY ns

-- The parts of a namespace that are seen become one a word. What another transaction adds meanwhile stays beside it. $1 namespace
-- name: fold_chunk_words
WITH parts AS (
    DELETE FROM chunk_words WHERE ns = $1 RETURNING ns, word, chunks, octets
)
INSERT INTO chunk_words (ns, word, chunks, octets)
SELECT ns, word, sum(chunks), sum(octets) FROM parts GROUP BY ns, word HAVING sum(chunks) <> 0 OR sum(octets) <> 0

-- What the sinks of chunks read and store. Locked in this order: namespaces, sources, ingests; each in the order of their names.

-- name: chunk_namespaces_of
SELECT ns, dimensions, is_hot, hot_days, is_lasting, is_opened FROM chunk_namespaces WHERE ns = ANY ($1::text[])

-- A namespace without a length of vectors is given one by whoever holds it.
-- name: hold_namespaces_without_dimensions
SELECT ns FROM chunk_namespaces WHERE ns = ANY ($1::text[]) AND dimensions IS NULL ORDER BY ns FOR UPDATE

-- name: set_namespace_dimensions
UPDATE chunk_namespaces SET dimensions = $2 WHERE ns = $1 AND dimensions IS NULL

-- name: ensure_chunk_sources
INSERT INTO chunk_sources (ns, slot, source_id)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS s (ns, slot, source_id) ORDER BY ns, slot, source_id
ON CONFLICT DO NOTHING

-- name: lock_chunk_sources
SELECT s.*
FROM chunk_sources AS s JOIN unnest($1::text[], $2::text[], $3::text[]) AS w (ns, slot, source_id) USING (ns, slot, source_id)
ORDER BY s.ns, s.slot, s.source_id
FOR UPDATE OF s

-- name: store_chunk_sources
UPDATE chunk_sources AS s
SET ingest_id = w.ingest_id, began_ms = w.began_ms, is_emptied = w.is_emptied
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[])
    AS w (ns, slot, source_id, ingest_id, began_ms, is_emptied)
WHERE (s.ns, s.slot, s.source_id) = (w.ns, w.slot, w.source_id)

-- name: chunk_ingests_of
SELECT i.*
FROM chunk_ingests AS i
JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS w (ns, slot, source_id, ingest_id)
    USING (ns, slot, source_id, ingest_id)

-- Nothing but the counters: what became of an ingest is decided elsewhere.
-- name: store_chunk_ingests
INSERT INTO chunk_ingests AS i (
    ns, slot, source_id, ingest_id, is_full, is_forced, is_truncated, is_superseded, pagination, expected, seen, inserted,
    updated, unchanged, failures, revision, dealt, position, created_at, updated_at
)
SELECT ns, slot, source_id, ingest_id, is_full, is_forced, is_truncated, is_superseded, pagination::jsonb, expected,
       seen::int8multirange, inserted, updated, unchanged, failures, revision, dealt::jsonb, position, $19, $19
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[], $7::boolean[], $8::boolean[], $9::text[],
    $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::text[],
    $18::text[]
) AS w (
    ns, slot, source_id, ingest_id, is_full, is_forced, is_truncated, is_superseded, pagination, expected, seen, inserted,
    updated, unchanged, failures, revision, dealt, position
)
ON CONFLICT (ingest_id, ns, slot, source_id) DO UPDATE
SET is_full = EXCLUDED.is_full, is_forced = EXCLUDED.is_forced, is_truncated = EXCLUDED.is_truncated,
    is_superseded = EXCLUDED.is_superseded, pagination = EXCLUDED.pagination, expected = EXCLUDED.expected,
    seen = EXCLUDED.seen, inserted = EXCLUDED.inserted, updated = EXCLUDED.updated, unchanged = EXCLUDED.unchanged,
    failures = EXCLUDED.failures, revision = EXCLUDED.revision, dealt = EXCLUDED.dealt, position = EXCLUDED.position,
    updated_at = EXCLUDED.updated_at

-- $4 numbers of chunks, joined by commas. One look into the index a chunk, whatever the planner thinks of reading the whole table.
-- name: chunks_of
SELECT s.place, c.*
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS s (ns, slot, source_id, numbers, place)
CROSS JOIN unnest(string_to_array(s.numbers, ',')::bigint[]) AS w (chunk_no)
JOIN LATERAL (
    SELECT c.chunk_no, c.content_hash, c.title, c.url, c.published_at, c.embedding IS NOT NULL, c.embedding_stale,
           c.to_delete, c.source_partition, c.source_offset
    FROM chunks AS c
    WHERE c.ns = s.ns AND c.slot = s.slot AND c.source_id = s.source_id AND c.chunk_no = w.chunk_no
    OFFSET 0
) AS c ON true

-- A stored vector is kept where none came (R3.7); it is stale where the text changed without one (R3.11). That is said of the
-- vector that is there when the row is written: one may have been made since the row was read.
-- name: store_chunks
INSERT INTO chunks AS c (
    ns, slot, source_id, chunk_no, content, title, url, content_hash, embedding, embedding_model, embedding_stale,
    published_at, created_at, updated_at, ingest_id, source_partition, source_offset, content_since, language
)
SELECT ($1::text[])[w.place], ($2::text[])[w.place], ($3::text[])[w.place], w.chunk_no, w.content, w.title, w.url,
       w.content_hash, w.embedding, CASE WHEN w.embedding IS NOT NULL THEN 'sent' END, w.embedding_stale, w.published_at,
       $15, $15, w.ingest_id, w.source_partition, w.source_offset, w.content_since, w.language
FROM unnest(
    $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::vector[], $11::boolean[],
    $12::timestamptz[], $13::text[], $14::int[], $16::bigint[], $17::timestamptz[], $18::text[]
) AS w (
    place, chunk_no, content, title, url, content_hash, embedding, embedding_stale, published_at, ingest_id,
    source_partition, source_offset, content_since, language
)
ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE
SET content = EXCLUDED.content, title = EXCLUDED.title, url = EXCLUDED.url, content_hash = EXCLUDED.content_hash,
    embedding = COALESCE(EXCLUDED.embedding, c.embedding),
    embedding_model = COALESCE(EXCLUDED.embedding_model, c.embedding_model),
    embedding_stale = CASE WHEN EXCLUDED.embedding_stale THEN COALESCE(EXCLUDED.embedding, c.embedding) IS NOT NULL
                           ELSE EXCLUDED.embedding IS NULL AND c.embedding_stale END,
    published_at = COALESCE(EXCLUDED.published_at, c.published_at), updated_at = EXCLUDED.updated_at, to_delete = false,
    marked_at = NULL, ingest_id = EXCLUDED.ingest_id, source_partition = EXCLUDED.source_partition,
    source_offset = EXCLUDED.source_offset, language = EXCLUDED.language,
    content_since = CASE WHEN (c.content_hash, c.title, c.url, c.published_at, c.to_delete) IS DISTINCT FROM
                              (EXCLUDED.content_hash, EXCLUDED.title, EXCLUDED.url, COALESCE(EXCLUDED.published_at, c.published_at), false)
                         THEN EXCLUDED.content_since ELSE c.content_since END

-- name: chunk_failures_of
SELECT f.ns, f.slot, f.source_id, f.ingest_id, f.chunk_no, f.content_hash
FROM chunk_failures AS f
JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS w (ns, slot, source_id, ingest_id, chunk_no)
    USING (ns, slot, source_id, ingest_id, chunk_no)

-- name: store_chunk_failures
INSERT INTO chunk_failures (ns, slot, source_id, ingest_id, chunk_no, content_hash, reason, detail, position, failed_at)
SELECT w.*, $10
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[]) AS w

-- One statement for all sources: what is not among the chunks of its ingest is marked (R3.20).
-- name: mark_orphans
UPDATE chunks AS c
SET to_delete = true, marked_at = $5, updated_at = $5, content_since = w.arrived_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $6::timestamptz[]) AS w (ns, slot, source_id, ingest_id, arrived_at)
JOIN chunk_ingests AS i USING (ns, slot, source_id, ingest_id)
WHERE (c.ns, c.slot, c.source_id) = (w.ns, w.slot, w.source_id) AND NOT c.to_delete AND NOT i.seen @> c.chunk_no
RETURNING w.ns, w.slot, w.source_id, w.ingest_id, c.chunk_no, c.content_hash

-- name: end_chunk_ingests
UPDATE chunk_ingests AS i
SET status = w.status, orphaned = w.orphaned, position = w.position, decided_at = $8, updated_at = $8
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[])
    AS w (ns, slot, source_id, ingest_id, status, orphaned, position)
WHERE (i.ns, i.slot, i.source_id, i.ingest_id) = (w.ns, w.slot, w.source_id, w.ingest_id)

-- Sources of an ingest may be decided at the same moment; each report must hold those before it.
-- name: hold_ingest
SELECT pg_advisory_xact_lock($1::int, hashtext($2))

-- name: ingest_totals
SELECT ingest_id, min(ns) AS ns, count(*) AS sources, count(*) FILTER (WHERE status <> 'running') AS sources_done,
       sum(inserted)::bigint AS inserted, sum(updated)::bigint AS updated, sum(unchanged)::bigint AS unchanged,
       sum(failures)::bigint AS failures, sum(orphaned)::bigint AS orphaned,
       array_agg(status ORDER BY status) FILTER (WHERE status <> 'running') AS outcomes,
       (array_agg(pagination::text ORDER BY updated_at DESC) FILTER (WHERE pagination IS NOT NULL))[1] AS pagination
FROM chunk_ingests
WHERE ingest_id = ANY ($1::text[])
GROUP BY ingest_id

-- Chunks that some document holds, with as much of their texts as was told of them anywhere.
-- name: withdrawn_chunks
SELECT c.ns, c.slot, c.source_id, c.chunk_no, left(coalesce(c.title || E'\n', '') || c.content, 8192) AS text
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS w (ns, slot, source_id, chunk_no)
JOIN chunks AS c USING (ns, slot, source_id, chunk_no)
WHERE EXISTS (SELECT FROM surrogate_keys AS s
              WHERE s.space = 'source:' || w.ns || '|' || w.slot || '|' || w.source_id AND s.numbers @> w.chunk_no)

-- name: make_namespaces
-- A namespace that nobody has asked is hot only where no searches at all are needed for it.
INSERT INTO chunk_namespaces (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, removal,
                              grace_days, archives_cold, is_open, text_share, is_lasting, is_opened, is_hot, created_at)
SELECT p.*, p.hot_queries_per_day <= 0, $14
FROM unnest($1::text[], $2::float8[], $3::float8[], $4::text[], $5::float8[], $6::float8[], $7::float8[], $8::float8[],
            $9::text[], $10::float8[], $11::boolean[], $12::boolean[], $13::float8[], $15::boolean[], $16::boolean[])
     AS p (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, removal, grace_days,
           archives_cold, is_open, text_share, is_lasting, is_opened)
ON CONFLICT (ns) DO NOTHING
RETURNING ns

-- name: lock_namespaces
SELECT ns, is_lasting, is_opened FROM chunk_namespaces ORDER BY ns FOR UPDATE

-- name: hold_namespaces
SELECT ns, is_lasting, is_opened FROM chunk_namespaces WHERE ns = ANY ($1::text[]) ORDER BY ns FOR UPDATE

-- What events gave to held namespaces: $1 their names, $2 whether they hold documents, $3 whether they were opened, $4 the ages in
-- days at which their chunks are cold from now on, $5 whether answers may quote them.
-- name: give_namespaces
UPDATE chunk_namespaces AS n SET is_lasting = g.is_lasting, is_opened = g.is_opened, ttl_days = g.ttl_days, is_open = g.is_open
FROM unnest($1::text[], $2::boolean[], $3::boolean[], $4::float8[], $5::boolean[])
    AS g (ns, is_lasting, is_opened, ttl_days, is_open)
WHERE n.ns = g.ns

-- name: align_namespaces
UPDATE chunk_namespaces AS n
SET half_life_days = p.half_life_days, ttl_days = p.ttl_days, ttl_mode = p.ttl_mode, alpha = p.alpha, beta = p.beta,
    hot_days = p.hot_days, hot_queries_per_day = p.hot_queries_per_day, removal = p.removal, grace_days = p.grace_days,
    archives_cold = p.archives_cold, is_open = p.is_open, text_share = p.text_share,
    is_hot = n.queries_per_day >= p.hot_queries_per_day,
    history_since = CASE WHEN n.removal = p.removal THEN n.history_since ELSE $14::timestamptz END
FROM unnest($1::text[], $2::float8[], $3::float8[], $4::text[], $5::float8[], $6::float8[], $7::float8[], $8::float8[],
            $9::text[], $10::float8[], $11::boolean[], $12::boolean[], $13::float8[])
     AS p (ns, half_life_days, ttl_days, ttl_mode, alpha, beta, hot_days, hot_queries_per_day, removal, grace_days,
           archives_cold, is_open, text_share)
WHERE n.ns = p.ns
  AND (n.half_life_days, n.ttl_days, n.ttl_mode, n.alpha, n.beta, n.hot_days, n.hot_queries_per_day, n.removal,
       n.grace_days, n.archives_cold, n.is_open, n.text_share)
      IS DISTINCT FROM
      (p.half_life_days, p.ttl_days, p.ttl_mode, p.alpha, p.beta, p.hot_days, p.hot_queries_per_day, p.removal,
       p.grace_days, p.archives_cold, p.is_open, p.text_share)
RETURNING n.ns

-- name: rate_namespaces
-- The temperature of a namespace's chunks changes only with is_hot.
WITH told AS MATERIALIZED (
    SELECT r.*, n.is_hot AS was_hot
    FROM unnest($1::text[], $2::boolean[], $3::float8[], $4::timestamptz[]) AS r (ns, is_hot, queries_per_day, rated_at)
    JOIN chunk_namespaces AS n ON n.ns = r.ns AND (n.rated_at IS NULL OR n.rated_at < r.rated_at)
    ORDER BY n.ns
    FOR UPDATE OF n
)
UPDATE chunk_namespaces AS n
SET is_hot = told.is_hot, queries_per_day = told.queries_per_day, rated_at = told.rated_at
FROM told
WHERE n.ns = told.ns
RETURNING n.ns, n.is_hot, told.was_hot

-- name: namespaces_to_sweep
-- Those with orphans whose grace is over, or with cold chunks.
SELECT n.ns, n.removal, n.archives_cold,
       $1::timestamptz - n.grace_days * interval '24 hours' AS marked_until,
       $1::timestamptz - n.ttl_days * interval '24 hours' AS cold_before
FROM chunk_namespaces AS n
WHERE EXISTS (SELECT FROM chunks AS c
              WHERE c.ns = n.ns AND c.to_delete AND c.marked_at <= $1::timestamptz - n.grace_days * interval '24 hours')
   OR EXISTS (SELECT FROM chunks AS c
              WHERE c.ns = n.ns AND NOT c.to_delete
                AND coalesce(c.published_at, c.created_at) < $1::timestamptz - n.ttl_days * interval '24 hours')
ORDER BY n.ns

-- name: orphans_to_remove
SELECT slot, source_id, chunk_no FROM chunks WHERE ns = $1 AND to_delete AND marked_at <= $2 ORDER BY marked_at LIMIT $3

-- name: cold_to_remove
SELECT slot, source_id, chunk_no FROM chunks
WHERE ns = $1 AND NOT to_delete AND coalesce(published_at, created_at) < $2
ORDER BY coalesce(published_at, created_at)
LIMIT $3

-- name: cold_count
SELECT count(*) FROM (
    SELECT FROM chunks WHERE ns = $1 AND NOT to_delete AND coalesce(published_at, created_at) < $2 LIMIT $3
) AS cold

-- name: lock_sources_to_sweep
SELECT FROM chunk_sources
WHERE ns = $1 AND (slot, source_id) IN (SELECT DISTINCT * FROM unnest($2::text[], $3::text[]))
ORDER BY ns, slot, source_id
FOR UPDATE

-- name: remove_chunks
-- Under the locks, what was revived, marked or published anew meanwhile stays. What goes into the archive ($8) was found until now, if
-- it was not marked: then its text was kept when it was. Of what is not kept no former text stays either.
WITH gone AS (
    DELETE FROM chunks AS c
    USING unnest($2::text[], $3::text[], $4::bigint[]) AS k (slot, source_id, chunk_no)
    WHERE c.ns = $1 AND c.slot = k.slot AND c.source_id = k.source_id AND c.chunk_no = k.chunk_no
      AND CASE $5::text
              WHEN 'orphaned' THEN c.to_delete AND c.marked_at <= $6::timestamptz
              ELSE NOT c.to_delete AND coalesce(c.published_at, c.created_at) < $6::timestamptz
          END
    RETURNING c.*
), kept AS (
    INSERT INTO chunks_archive (ns, slot, source_id, chunk_no, content, title, url, content_hash, embedding, embedding_model,
                                embedding_stale, published_at, created_at, updated_at, to_delete, marked_at, ingest_id,
                                source_partition, source_offset, archived_at, reason)
    SELECT ns, slot, source_id, chunk_no, content, title, url, content_hash, embedding, embedding_model, embedding_stale,
           published_at, created_at, updated_at, to_delete, marked_at, ingest_id, source_partition, source_offset, $7, $5
    FROM gone
    WHERE $8::boolean
), former AS (
    INSERT INTO former_chunks (ns, slot, source_id, chunk_no, content, title, url, content_hash, embedding, embedding_model,
                               embedding_stale, published_at, created_at, updated_at, ingest_id, source_partition, source_offset,
                               content_since, valid_until, language)
    SELECT ns, slot, source_id, chunk_no, content, title, url, content_hash, embedding, embedding_model, embedding_stale,
           published_at, created_at, updated_at, ingest_id, source_partition, source_offset, coalesce(content_since, created_at), $7,
           language
    FROM gone
    WHERE $8 AND NOT to_delete AND coalesce(content_since, created_at) < $7
), erased AS (
    DELETE FROM former_chunks AS f USING gone AS g
    WHERE NOT $8 AND f.ns = g.ns AND f.slot = g.slot AND f.source_id = g.source_id AND f.chunk_no = g.chunk_no
)
SELECT slot, source_id, chunk_no, content_hash FROM gone ORDER BY slot, source_id, chunk_no

-- Some former texts that were replaced or taken out by $1, or stand in namespaces that keep none. $2 how many
-- name: remove_former_chunks
DELETE FROM former_chunks WHERE ctid = ANY (ARRAY(
    SELECT f.ctid FROM chunk_namespaces AS n JOIN former_chunks AS f USING (ns)
    WHERE f.valid_until <= CASE WHEN n.removal = 'hard' THEN 'infinity' ELSE $1::timestamptz END
    LIMIT $2
))

-- What the API asks of chunks: the version and passport of a namespace, ingests, and how much of what a namespace holds.

-- A namespace with its version; one row also where there is none, since whoever asks first must get a version too.
-- name: chunk_namespace_read
SELECT floor.value AS floor, held.version, held.etag, held.position, n.*
FROM version_floor AS floor
LEFT JOIN resource_versions AS held ON held.key = 'ns:' || $1::text
LEFT JOIN chunk_namespaces AS n ON n.ns = $1::text

-- An ingest over all its sources. The version only grows: each change of a source raises its revision or decides it.
-- name: chunk_ingest_read
SELECT count(*) AS sources, count(decided_at) AS sources_done, coalesce(sum(inserted), 0)::bigint AS inserted,
       coalesce(sum(updated), 0)::bigint AS updated, coalesce(sum(unchanged), 0)::bigint AS unchanged,
       coalesce(sum(failures), 0)::bigint AS failures, coalesce(sum(orphaned), 0)::bigint AS orphaned,
       coalesce(sum(revision + 1), 0)::bigint + count(decided_at) AS version,
       (array_agg(pagination::text ORDER BY updated_at DESC) FILTER (WHERE pagination IS NOT NULL))[1] AS pagination,
       (array_agg(position ORDER BY updated_at DESC))[1] AS position, min(created_at) AS created_at, max(updated_at) AS updated_at,
       max(decided_at) AS decided_at
FROM chunk_ingests WHERE ingest_id = $1

-- How many of its sources stand how.
-- name: chunk_ingest_statuses_read
SELECT status, count(*) AS sources FROM chunk_ingests WHERE ingest_id = $1 GROUP BY status ORDER BY status

-- The namespaces of its sources: who may not read one of them does not read the ingest.
-- name: chunk_ingest_namespaces_read
SELECT DISTINCT ns FROM chunk_ingests WHERE ingest_id = $1 ORDER BY ns

-- Its sources in order. $2 to $4 the place after which the page begins, $5 how many
-- name: chunk_ingest_sources_read
SELECT ns, slot, source_id, status, is_full, is_forced, is_truncated, pagination::text AS pagination, expected, inserted, updated,
       unchanged, failures, orphaned, position, created_at, updated_at, decided_at
FROM chunk_ingests
WHERE ingest_id = $1 AND (ns, slot, source_id) > ($2, $3, $4)
ORDER BY ns, slot, source_id LIMIT $5

-- The first source that ended as the first of these outcomes ($2) that any ended as.
-- name: chunk_ingest_worst_read
SELECT ns, slot, source_id, status, is_full, is_forced, is_truncated, pagination::text AS pagination, expected, inserted, updated,
       unchanged, failures, orphaned, position, created_at, updated_at, decided_at
FROM chunk_ingests
WHERE ingest_id = $1 AND status = ANY ($2::text[])
ORDER BY array_position($2::text[], status), ns, slot, source_id LIMIT 1

-- Chunks of it that were refused, in order. $2 how many
-- name: chunk_ingest_failures_read
SELECT ns, slot, source_id, chunk_no, reason, detail, position, failed_at
FROM chunk_failures WHERE ingest_id = $1
ORDER BY ns, slot, source_id, chunk_no, content_hash LIMIT $2

-- What a namespace, or each, holds at a moment. $1 namespace (null: all), $2 the moment. Seconds are compared, which are exact: a
-- chunk as old as the limit to the microsecond is not beyond it (R3.18).
-- name: chunk_lifecycle_read
SELECT n.*, held.*,
       (SELECT count(*) FROM chunk_sources AS s WHERE s.ns = n.ns) AS sources,
       (SELECT count(*) FROM chunks_archive AS a WHERE a.ns = n.ns) AS archived,
       (SELECT count(*) FROM chunk_next_vectors AS v WHERE v.ns = n.ns AND v.model = n.next_model) AS next_made
FROM chunk_namespaces AS n CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE NOT to_delete) AS chunks,
           count(*) FILTER (WHERE NOT to_delete AND seconds <= n.ttl_days * 86400 AND n.is_hot AND seconds <= n.hot_days * 86400)
               AS hot,
           count(*) FILTER (WHERE NOT to_delete AND seconds > n.ttl_days * 86400) AS cold,
           count(*) FILTER (WHERE NOT to_delete AND has_no_vector) AS without_embedding,
           count(*) FILTER (WHERE NOT to_delete AND embedding_stale) AS stale_embedding,
           count(*) FILTER (WHERE to_delete) AS to_delete
    FROM (SELECT to_delete, embedding_stale, embedding IS NULL AS has_no_vector,
                 greatest(0, extract(epoch FROM $2::timestamptz - coalesce(published_at, created_at)))::double precision AS seconds
          FROM chunks AS c WHERE c.ns = n.ns) AS aged
) AS held
WHERE $1::text IS NULL OR n.ns = $1
ORDER BY n.ns

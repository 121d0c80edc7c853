-- The way of runs, as the log tells it.

-- Events of runs that are there. Their rows are held against being erased meanwhile; whoever changes a run is not kept from it.
-- name: timeline_store
WITH held AS MATERIALIZED (
    SELECT id FROM pipeline_runs WHERE id = ANY($1::uuid[]) ORDER BY id FOR KEY SHARE
)
INSERT INTO run_events (run_id, position, status, archive_status, operation, attempt, revision, error, at)
SELECT e.* FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::bigint[], $8::text[], $9::timestamptz[]
) AS e (run_id, position, status, archive_status, operation, attempt, revision, error, at)
JOIN held ON held.id = e.run_id
ON CONFLICT DO NOTHING

-- Events that a log lost, recreated from the rows that they left (connectors/remaking.py). $1 lost positions; to move rows, $1 their
-- former positions, $2 the new ones, $3 the broker's times there in ms since 1970.

-- name: remade_queries
SELECT position, id::text AS request_id, coalesce(user_text_id, user_id::text) AS user_id, user_query AS query,
       (extract(epoch FROM created_at) * 1000)::bigint AS ts, organization_id
FROM pipeline_runs WHERE position = ANY ($1::text[]) AND restarted_from IS NULL ORDER BY split_part(position, '/', 3)::bigint

-- name: move_queries
UPDATE pipeline_runs SET position = moved.now, arrived_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

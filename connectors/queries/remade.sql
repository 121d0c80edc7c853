-- Events that a log lost, made again from the rows that they left (connectors/remaking.py). $1 lost positions; to move rows, $1 their
-- former positions and $2 the new ones.

-- name: remade_queries
SELECT position, id::text AS request_id, user_id::text AS user_id, user_query AS query,
       (extract(epoch FROM created_at) * 1000)::bigint AS ts, organization_id
FROM pipeline_runs WHERE position = ANY ($1::text[]) AND restarted_from IS NULL ORDER BY split_part(position, '/', 3)::bigint

-- name: move_queries
UPDATE pipeline_runs SET position = moved.now
FROM unnest($1::text[], $2::text[]) AS moved (before, now) WHERE position = moved.before

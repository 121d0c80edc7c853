-- Events that a log lost, recreated from the rows that they left (connectors/remaking.py). $1 lost positions; to move rows, $1 their
-- former positions, $2 the new ones, $3 the broker's times there in ms since 1970.

-- name: remade_jobs
SELECT position, job_id::text AS job_id, kind, organization_id, user_id, args::text AS args,
       (extract(epoch FROM created_at) * 1000)::bigint AS ts, expires_ms AS expires_at
FROM jobs WHERE position = ANY ($1::text[]) ORDER BY split_part(position, '/', 3)::bigint

-- name: move_jobs
UPDATE jobs SET position = moved.now, arrived_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

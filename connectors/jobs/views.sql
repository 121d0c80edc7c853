-- One row a deck; the arrays name each deck once, in the order of ids, so that two batches never wait for each other in a circle.
-- name: store_views
INSERT INTO presentation_shares AS held (presentation_id, view_count)
SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (presentation_id) DO UPDATE SET view_count = held.view_count + excluded.view_count
RETURNING presentation_id, view_count

-- name: presentation_owner
SELECT p.organization_id, p.user_id, coalesce(s.view_count, 0) AS view_count
FROM presentations AS p LEFT JOIN presentation_shares AS s ON s.presentation_id = p.presentation_id::text
WHERE p.presentation_id = $1::uuid

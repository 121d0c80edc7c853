-- Organizations: their plans, what they used of a month, and the roles of users.

-- Who decides on jobs of an organization, and who changes its plan, holds its bucket; $2 in ascending order.
-- name: lock_organizations
SELECT pg_advisory_xact_lock($1, bucket) FROM unnest($2::int[]) AS b (bucket)

-- name: organizations_of
SELECT organization_id, plan, subscription_status, period_end, arrived_ms, position
FROM organizations WHERE organization_id = ANY ($1::text[])

-- name: store_organizations
INSERT INTO organizations (organization_id, plan, subscription_status, period_end, arrived_ms, position, changed_at)
SELECT *, $7 FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::bigint[], $6::text[])
ON CONFLICT (organization_id) DO UPDATE
SET plan = excluded.plan, subscription_status = excluded.subscription_status, period_end = excluded.period_end,
    arrived_ms = excluded.arrived_ms, position = excluded.position, changed_at = excluded.changed_at

-- Decks made in a month or being made, and tokens of it; what was flushed counts although its jobs were erased since.
-- $1 organizations, $2 beginning of the month, $3 its name. A job that is older than a month at its end has long expired.
-- name: usage_of_month
SELECT o.organization_id,
       GREATEST(COALESCE(j.presentations, 0), COALESCE(r.presentations, 0)) AS presentations,
       GREATEST(COALESCE(j.tokens, 0), COALESCE(r.tokens, 0))::bigint AS tokens
FROM unnest($1::text[]) AS o (organization_id)
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE kind = 'generation' AND (status IN ('pending', 'running')
                                                           OR status = 'completed' AND completed_at >= $2)) AS presentations,
           sum(tokens) FILTER (WHERE COALESCE(completed_at, updated_at) >= $2) AS tokens
    FROM jobs WHERE organization_id = o.organization_id AND created_at >= $2::timestamptz - interval '31 days'
) AS j ON true
LEFT JOIN usage_records AS r ON r.organization_id = o.organization_id AND r.period = $3

-- name: sizes_of_blobs
SELECT sha256, size_bytes FROM blobs WHERE sha256 = ANY ($1::text[])

-- name: lock_sessions
SELECT pg_advisory_xact_lock(hashtextextended('sessions:' || user_id, 0)) FROM unnest($1::text[]) AS u (user_id)

-- name: roles_of_users
SELECT u.user_id, r.arrived_ms, r.position, s.revoked_at
FROM unnest($1::text[]) AS u (user_id)
LEFT JOIN user_roles AS r ON r.user_id = u.user_id
LEFT JOIN session_revocations AS s ON s.user_id = u.user_id

-- name: store_roles
INSERT INTO user_roles (user_id, role, arrived_ms, position, changed_at)
SELECT *, $5 FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
ON CONFLICT (user_id) DO UPDATE SET role = excluded.role, arrived_ms = excluded.arrived_ms, position = excluded.position,
                                    changed_at = excluded.changed_at

-- name: store_revocations
INSERT INTO session_revocations AS held (user_id, revoked_at) SELECT user_id, $2 FROM unnest($1::text[]) AS u (user_id)
ON CONFLICT (user_id) DO UPDATE SET revoked_at = greatest(held.revoked_at, excluded.revoked_at)

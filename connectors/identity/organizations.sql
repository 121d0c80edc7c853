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

-- What was counted of a month, and decks that are being made: what limits are judged by and what `/usage` shows. What was flushed
-- is never taken back, although a database was restored since. $1 organizations, $2 the month.
-- name: usage_of_month
SELECT o.organization_id,
       GREATEST(COALESCE(s.presentations, 0), COALESCE(r.presentations, 0)) AS presentations,
       GREATEST(COALESCE(s.slides, 0), COALESCE(r.slides, 0)) AS slides,
       GREATEST(COALESCE(s.tokens, 0), COALESCE(r.tokens, 0)) AS tokens,
       GREATEST(COALESCE(s.cost_cents, 0), COALESCE(r.cost_cents, 0)) AS cost_cents,
       GREATEST(COALESCE(s.last_seq, 0), COALESCE(r.upto_seq, 0)) AS upto_seq,
       COALESCE(s.built_in_tokens, 0) AS built_in_tokens,
       GREATEST(s.counted_at, r.flushed_at) AS upto,
       (SELECT count(*) FROM jobs AS j
        WHERE j.organization_id = o.organization_id AND j.status IN ('pending', 'running') AND j.kind = 'generation') AS being_made
FROM unnest($1::text[]) AS o (organization_id)
LEFT JOIN usage_sequences AS s ON s.organization_id = o.organization_id AND s.period = $2
LEFT JOIN usage_records AS r ON r.organization_id = o.organization_id AND r.period = $2

-- What work was counted with before: what it uses later is counted on top of it.
-- name: counted_of_work
SELECT job_id::text AS work_id, sum(tokens)::bigint AS tokens, sum(cost_cents)::bigint AS cost_cents
FROM usage_entries WHERE job_id = ANY ($1::uuid[]) GROUP BY job_id

-- A usage at the next place of its organization and period, whose row orders them and holds their sums. Of its tokens those of
-- the built-in model, which the calls of the work name, are also counted apart.
-- name: count_usage
WITH built_in AS (
    SELECT least($6::bigint, greatest(0, c.tokens - e.tokens)) AS tokens
    FROM (SELECT coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0)::bigint AS tokens
          FROM llm_calls WHERE run_id = $3::uuid AND model = 'built-in') AS c,
         (SELECT coalesce(sum(built_in_tokens), 0)::bigint AS tokens FROM usage_entries WHERE job_id = $3::uuid) AS e
), place AS (
    INSERT INTO usage_sequences AS s (organization_id, period, last_seq, presentations, slides, tokens, cost_cents, counted_at,
                                      built_in_tokens)
    SELECT $1, $2, 1, $4::bigint, $5::bigint, $6, $7::bigint, $8::timestamptz, tokens FROM built_in
    ON CONFLICT (organization_id, period) DO UPDATE
    SET last_seq = s.last_seq + 1, presentations = s.presentations + excluded.presentations,
        slides = s.slides + excluded.slides, tokens = s.tokens + excluded.tokens,
        cost_cents = s.cost_cents + excluded.cost_cents, counted_at = greatest(s.counted_at, excluded.counted_at),
        built_in_tokens = s.built_in_tokens + excluded.built_in_tokens
    RETURNING last_seq
)
INSERT INTO usage_entries (organization_id, period, seq, job_id, presentations, slides, tokens, cost_cents, counted_at,
                           built_in_tokens)
SELECT $1, $2, last_seq, $3::uuid, $4, $5, $6, $7, $8, tokens FROM place, built_in RETURNING seq, built_in_tokens

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

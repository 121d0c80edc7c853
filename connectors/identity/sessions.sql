-- Creating a session takes the lock shared and revoking takes it alone, so a session is made wholly before a revocation,
-- and dies of it, or wholly after it, and has the new role (R2.10).
-- name: session_lock_shared
SELECT pg_advisory_xact_lock_shared(hashtextextended('sessions:' || $1::text, 0))

-- name: session_lock
SELECT pg_advisory_xact_lock(hashtextextended('sessions:' || $1::text, 0))

-- name: read_session_rules
SELECT (SELECT role FROM user_roles WHERE user_id = $1::text) AS role,
       (SELECT revoked_at FROM session_revocations WHERE user_id = $1::text) AS revoked_at

-- name: store_revocation
INSERT INTO session_revocations AS held (user_id, revoked_at) VALUES ($1, $2)
ON CONFLICT (user_id) DO UPDATE SET revoked_at = greatest(held.revoked_at, excluded.revoked_at)

-- name: read_revocations_since
SELECT user_id, revoked_at FROM session_revocations WHERE revoked_at > $1

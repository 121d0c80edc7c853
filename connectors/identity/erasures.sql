-- Users who were erased, known by the hash of their ids.

-- name: share_erasures
SELECT pg_advisory_xact_lock_shared($1, $2)

-- name: hold_erasures
SELECT pg_advisory_xact_lock($1, $2)

-- name: user_erasures
SELECT user_hash, erased_ms FROM user_erasures WHERE user_hash = ANY ($1::bytea[])

-- $1 hashes of users' ids, $2 broker times of their erasures: what they said up to then is void.
-- name: remember_user_erasures
INSERT INTO user_erasures AS held (user_hash, erased_ms) SELECT * FROM unnest($1::bytea[], $2::bigint[])
ON CONFLICT (user_hash) DO UPDATE SET erased_ms = GREATEST(held.erased_ms, excluded.erased_ms)

-- Users who were erased, known by the hash of their ids.

-- name: share_erasures
SELECT pg_advisory_xact_lock_shared($1, $2)

-- name: hold_erasures
SELECT pg_advisory_xact_lock($1, $2)

-- name: user_erasures
SELECT user_hash, erased_ms FROM user_erasures WHERE user_hash = ANY ($1::bytea[])

-- The last erasure of a user, null where it is from before positions were kept.
-- name: erasure_of_user
SELECT erased_ms, position FROM user_erasures WHERE user_hash = $1

-- $1 hashes of users' ids, $2 broker times of their erasures: what they said up to then is void. $3 their positions.
-- name: remember_user_erasures
INSERT INTO user_erasures AS held (user_hash, erased_ms, position) SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::text[])
ON CONFLICT (user_hash) DO UPDATE SET erased_ms = excluded.erased_ms, position = excluded.position
WHERE excluded.erased_ms >= held.erased_ms

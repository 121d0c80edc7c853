-- Who of the engines lives: each worker holds an advisory lock as long as its connection.

-- name: try_worker_lock
SELECT pg_try_advisory_lock($1, $2)

-- name: release_worker_lock
SELECT pg_advisory_unlock($1, $2)

-- name: take_worker_lock
SELECT pg_advisory_lock($1, $2)

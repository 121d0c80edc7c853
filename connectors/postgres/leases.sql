-- Leases by the server's clock. Each statement is a transaction of its own, so that no stopped process keeps a row locked.

-- Those of the names that are free now, or the owner's own of a connection before, with their new epochs. $1 kind, $2 names, $3 owner,
-- $4 seconds, $5 whether they end with this session too. An epoch is above each before it, also after a restore of an older
-- database: it begins at the clock.
-- name: take_leases
INSERT INTO leases AS l (kind, name, owner, epoch, expires_at, session_pid, session_start)
SELECT $1, t.name, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, clock_timestamp() + make_interval(secs => $4),
       s.pid, s.backend_start
FROM unnest($2::text[]) AS t (name)
LEFT JOIN pg_stat_get_activity(pg_backend_pid()) AS s ON $5::boolean
ORDER BY t.name
ON CONFLICT (kind, name) DO UPDATE SET
    owner = excluded.owner, epoch = greatest(l.epoch + 1, excluded.epoch), expires_at = excluded.expires_at,
    session_pid = excluded.session_pid, session_start = excluded.session_start
WHERE l.owner = excluded.owner OR NOT lease_is_live(l.expires_at, l.session_pid, l.session_start)
RETURNING name, epoch

-- Those that are still the owner's, for longer now. $1 kind, $2 names, $3 epochs, $4 owner, $5 seconds
-- name: renew_leases
UPDATE leases AS l SET expires_at = clock_timestamp() + make_interval(secs => $5)
FROM (SELECT h.name, h.epoch FROM unnest($2::text[], $3::bigint[]) AS h (name, epoch) ORDER BY h.name) AS held
WHERE l.kind = $1 AND l.name = held.name AND l.epoch = held.epoch AND l.owner = $4
RETURNING l.name

-- The rows stay: what comes after has a higher epoch.
-- name: release_leases
UPDATE leases AS l SET expires_at = '-infinity', session_pid = NULL, session_start = NULL
FROM unnest($2::text[], $3::bigint[]) AS held (name, epoch)
WHERE l.kind = $1 AND l.name = held.name AND l.epoch = held.epoch AND l.owner = $4

-- Of leases whose names come and go the rows go as well.
-- name: drop_leases
DELETE FROM leases AS l USING unnest($2::text[], $3::bigint[]) AS held (name, epoch)
WHERE l.kind = $1 AND l.name = held.name AND l.epoch = held.epoch AND l.owner = $4

-- What owners that ended without a word have left, long after anything could ask for it.
-- name: drop_ended_leases
DELETE FROM leases WHERE kind = $1 AND expires_at < clock_timestamp() - interval '10 minutes'

-- name: live_leases
SELECT name, owner, epoch FROM leases WHERE kind = $1 AND lease_is_live(expires_at, session_pid, session_start)

-- Held until the transaction ends, so that nobody takes the lease before its effects are there. $1 kind, $2 name, $3 epoch, $4 owner
-- name: hold_lease
SELECT 1 FROM leases WHERE kind = $1 AND name = $2 AND epoch = $3 AND owner = $4 FOR SHARE

-- name: owner_of_lease
SELECT owner FROM leases WHERE kind = $1 AND name = $2

-- What an owner that has ended still holds.
-- name: drop_lease_of
DELETE FROM leases WHERE kind = $1 AND name = $2 AND owner = $3

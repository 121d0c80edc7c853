-- Named statements for the machinery of work on the log; loaded by connectors/postgres/statements.py.

-- Who shares out the slots of a kind of work does it alone, so that two never give one organization more than its share.
-- name: hold_slots
SELECT pg_advisory_xact_lock($1, $2)

-- name: server_time_ms
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- Whether the database is being restored, or was left half restored.

-- A database of before there were restores has no such table.
-- name: knows_restores
SELECT to_regclass('restore_progress') IS NOT NULL

-- name: restore_in_progress
SELECT source FROM restore_progress

-- When the database last caught up with the log; no row: this start of the server was not compared with the log yet
-- (`connectors/backup/comparing.py`).
-- name: compared_server
SELECT caught_up_ms FROM compared_servers WHERE started_at = pg_postmaster_start_time()

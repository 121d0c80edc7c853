-- Whether the database is being restored, or was left half restored.

-- A database of before there were restores has no such table.
-- name: knows_restores
SELECT to_regclass('restore_progress') IS NOT NULL

-- name: restore_in_progress
SELECT source FROM restore_progress

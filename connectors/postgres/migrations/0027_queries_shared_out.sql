-- Queries wait in the table once they were asked for, so that slots are shared out between organizations, as those of jobs are.

-- The command that asked for a run that waits; null: none was read yet, so nobody takes it.
ALTER TABLE pipeline_runs ADD COLUMN command text;
CREATE INDEX pipeline_runs_asked ON pipeline_runs (coalesce(organization_id, ''), created_at, id)
WHERE command IS NOT NULL AND worker IS NULL AND due_ms IS NULL AND NOT released;
-- What may have been forgotten has no command.
CREATE INDEX pipeline_runs_unasked ON pipeline_runs (updated_at)
WHERE NOT released AND worker IS NULL AND due_ms IS NULL AND command IS NULL;
DROP INDEX pipeline_runs_waiting;

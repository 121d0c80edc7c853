-- Whether somebody cancelled a run: it has ended as FAILED, and is no failure of the pipeline.
ALTER TABLE pipeline_runs ADD COLUMN is_cancelled boolean NOT NULL DEFAULT false;
UPDATE pipeline_runs SET is_cancelled = true WHERE status = 'FAILED' AND error = 'cancelled by the user';

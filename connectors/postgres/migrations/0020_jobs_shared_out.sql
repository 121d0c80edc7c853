-- Jobs wait in the table once they were asked for, so that slots are shared out between organizations (R2.39); they can be
-- restarted; what they use is counted at each of their ends, whatever it was.

-- The command that asked for a job that waits; null: none was read yet, so nobody takes it.
ALTER TABLE jobs ADD COLUMN command text;
-- Calls of the present step that were made before the job was restarted.
ALTER TABLE jobs ADD COLUMN attempts_before int NOT NULL DEFAULT 0;
CREATE INDEX jobs_asked ON jobs (kind, organization_id, created_at, job_id) WHERE status = 'pending' AND command IS NOT NULL;
CREATE INDEX jobs_in_progress ON jobs (kind, organization_id) WHERE status = 'running';
CREATE INDEX jobs_unended ON jobs (organization_id) WHERE status IN ('pending', 'running');

-- How a document is called when it is read; null: by what it is.
ALTER TABLE blob_owners ADD COLUMN file_name text;

-- One entry a count, in the order in which they are told. `job_id` null: what was counted before there were entries.
CREATE TABLE usage_entries (
    organization_id text        NOT NULL,
    period          text        NOT NULL,
    seq             bigint      NOT NULL,
    job_id          uuid,
    presentations   bigint      NOT NULL,
    slides          bigint      NOT NULL,
    tokens          bigint      NOT NULL,
    cost_cents      bigint      NOT NULL,
    counted_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, period, seq)
);
CREATE INDEX usage_entries_of_job ON usage_entries (job_id);
-- The sums of the entries: what limits are judged by and what is shown.
ALTER TABLE usage_sequences
    ADD COLUMN presentations bigint NOT NULL DEFAULT 0,
    ADD COLUMN slides        bigint NOT NULL DEFAULT 0,
    ADD COLUMN tokens        bigint NOT NULL DEFAULT 0,
    ADD COLUMN cost_cents    bigint NOT NULL DEFAULT 0,
    ADD COLUMN counted_at    timestamptz;

INSERT INTO usage_entries (organization_id, period, seq, job_id, presentations, slides, tokens, cost_cents, counted_at)
SELECT s.organization_id, s.period, s.last_seq, NULL,
       greatest(coalesce(c.presentations, 0), coalesce(f.presentations, 0)), greatest(coalesce(c.slides, 0), coalesce(f.slides, 0)),
       greatest(coalesce(c.tokens, 0), coalesce(f.tokens, 0)), greatest(coalesce(c.cost_cents, 0), coalesce(f.cost_cents, 0)),
       coalesce(c.last_at, f.flushed_at, to_timestamp(s.period, 'YYYY-MM'))
FROM usage_sequences AS s
LEFT JOIN (
    SELECT j.organization_id, to_char(j.completed_at AT TIME ZONE 'UTC', 'YYYY-MM') AS period, count(*) AS presentations,
           sum(jsonb_array_length(p.slides)) AS slides, sum(j.tokens) AS tokens, sum(j.cost_cents) AS cost_cents,
           max(j.completed_at) AS last_at
    FROM generation_jobs AS j LEFT JOIN presentations AS p ON p.presentation_id = j.job_id
    WHERE j.status = 'completed' AND j.cost_cents IS NOT NULL GROUP BY 1, 2
) AS c ON c.organization_id = s.organization_id AND c.period = s.period
LEFT JOIN usage_records AS f ON f.organization_id = s.organization_id AND f.period = s.period;
UPDATE usage_sequences AS s
SET presentations = e.presentations, slides = e.slides, tokens = e.tokens, cost_cents = e.cost_cents, counted_at = e.counted_at
FROM usage_entries AS e WHERE e.organization_id = s.organization_id AND e.period = s.period AND e.seq = s.last_seq;

-- The samples of figures (migration 0044). Times are given, so that a test moves them.

-- $1 when the minute began, in ms; $2 the figures. A minute that another recorder has stored stays as it is.
-- name: add_history_sample
INSERT INTO history_samples (at_ms, figures) VALUES ($1, $2::jsonb) ON CONFLICT DO NOTHING

-- $1 before this time
-- name: drop_history_samples
DELETE FROM history_samples WHERE at_ms < $1

-- A metric that a sample lacks was not measured then. $1 metric, $2 from, $3 before
-- name: history_samples
SELECT at_ms, (figures -> $1::text)::text AS figures FROM history_samples
WHERE at_ms >= $2 AND at_ms < $3 AND figures ? $1::text ORDER BY at_ms

-- The samples of one group or topic. $1 metric, $2 its name, $3 from, $4 before
-- name: history_samples_of
SELECT at_ms, (figures -> $1::text -> $2::text)::text AS figures FROM history_samples
WHERE at_ms >= $3 AND at_ms < $4 AND figures -> $1::text ? $2::text ORDER BY at_ms

-- Somebody looks at a group or topic of another application; more often than once a minute is no news. $1 kind, $2 name, $3 now
-- name: watch
INSERT INTO history_watched AS known (kind, name, looked_at_ms) VALUES ($1, $2, $3)
ON CONFLICT (kind, name) DO UPDATE SET looked_at_ms = EXCLUDED.looked_at_ms
WHERE known.looked_at_ms < EXCLUDED.looked_at_ms - 60000

-- $1 before this time, $2 how many of a kind are kept: those that were looked at last
-- name: drop_watched
DELETE FROM history_watched AS old USING (
    SELECT kind, name, row_number() OVER (PARTITION BY kind ORDER BY looked_at_ms DESC, name) AS place FROM history_watched
) AS ranked
WHERE ranked.kind = old.kind AND ranked.name = old.name AND (old.looked_at_ms < $1 OR ranked.place > $2)

-- name: watched
SELECT kind, name FROM history_watched ORDER BY kind, name

-- Stages of queries that ended after $1 and until $2: how long each took from its capture, as the log reports it.
-- name: ended_stage_seconds
WITH ended AS (
    SELECT run_id, at, CASE
               WHEN archive_status = 'STORED' THEN 'archivist'
               WHEN archive_status IS NOT NULL THEN NULL
               WHEN status = 'ANALYZED' THEN 'analyzer'
               WHEN status = 'READY' THEN 'assembler'
               WHEN status = 'COMPLETED' THEN 'responder'
           END AS stage
    FROM run_events WHERE at > $1 AND at <= $2
)
SELECT e.stage, avg(extract(epoch FROM e.at - begun.at))::float8 AS seconds
FROM ended AS e CROSS JOIN LATERAL (
    SELECT max(b.at) AS at FROM run_events AS b
    WHERE b.run_id = e.run_id AND b.at <= e.at AND CASE e.stage
        WHEN 'analyzer' THEN b.status = 'ANALYZING'
        WHEN 'assembler' THEN b.status = 'ASSEMBLING'
        WHEN 'responder' THEN b.status = 'RESPONDING'
        ELSE b.status = 'COMPLETED' AND b.archive_status IS NULL
    END
) AS begun
WHERE e.stage IS NOT NULL AND begun.at IS NOT NULL GROUP BY e.stage

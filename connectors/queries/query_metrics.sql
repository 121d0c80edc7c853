-- How the pipeline of queries does (R1.38 to R1.41). $1 and $2: from when until when.

-- Runs that were asked in that time, and what became of them; those that nobody has begun are counted whenever they were asked.
-- name: query_pipeline_metrics
SELECT count(*) AS requests,
       count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE status = 'FAILED' AND NOT is_cancelled) AS failed,
       count(*) FILTER (WHERE is_cancelled) AS cancelled,
       (SELECT count(*) FROM pipeline_runs WHERE status = 'NEW' AND NOT released) AS backlog,
       (1000 * avg(extract(epoch FROM completed_at - created_at)) FILTER (WHERE status = 'COMPLETED'))::float8 AS mean_ms,
       (1000 * percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM completed_at - created_at)::float8)
           FILTER (WHERE status = 'COMPLETED')) AS p95_ms,
       count(*) FILTER (WHERE analysis_result IS NOT NULL) AS analyzed,
       -- As `finds_context` of `streams/queries/analysis.py`: a list of ids that is empty names nothing.
       count(*) FILTER (WHERE jsonb_path_exists(analysis_result -> 'context_found',
           '$.** ? (@.type() == "number" || @ == true || (@.type() == "string" && @ like_regex "[^ \\t\\r\\n]"))')) AS with_context
FROM pipeline_runs WHERE created_at >= $1 AND created_at <= $2

-- How long stages took, from their capture to their end; both of them fell into the time. As the log tells it.
-- name: query_stage_metrics
WITH marks AS (
    SELECT min(at) FILTER (WHERE status = 'ANALYZING') AS analyzing, min(at) FILTER (WHERE status = 'ANALYZED') AS analyzed,
           min(at) FILTER (WHERE status = 'ASSEMBLING') AS assembling, min(at) FILTER (WHERE status = 'READY') AS ready,
           min(at) FILTER (WHERE status = 'RESPONDING') AS responding,
           min(at) FILTER (WHERE status = 'COMPLETED' AND archive_status IS NULL) AS completed,
           min(at) FILTER (WHERE archive_status = 'STORED') AS stored,
           min(at) FILTER (WHERE archive_status = 'FAILED') AS not_stored
    FROM run_events WHERE at >= $1 AND at <= $2 GROUP BY run_id
)
SELECT (1000 * avg(extract(epoch FROM analyzed - analyzing)))::float8 AS analyzer_ms,
       (1000 * avg(extract(epoch FROM ready - assembling)))::float8 AS assembler_ms,
       (1000 * avg(extract(epoch FROM completed - responding)))::float8 AS responder_ms,
       (1000 * avg(extract(epoch FROM stored - completed)))::float8 AS archivist_ms,
       count(stored) AS stored, count(not_stored) AS not_stored
FROM marks

-- The size of contexts, of the newest $3 runs that have one: longer texts are stored apart, and each has to be read.
-- name: query_context_metrics
SELECT avg(length(payload))::float8 AS characters
FROM (SELECT final_context_payload AS payload FROM pipeline_runs
      WHERE created_at >= $1 AND created_at <= $2 AND final_context_payload IS NOT NULL
      ORDER BY created_at DESC LIMIT $3) AS newest

-- Calls by stage and model; those of jobs have no user. A call is one key; it is sent more than once where a worker ended during it.
-- name: query_call_metrics
SELECT stage, model, count(*) AS calls, sum(sends) AS sends, count(*) FILTER (WHERE attempt > 1) AS repeats,
       count(*) FILTER (WHERE outcome = 'answered') AS answered,
       count(*) FILTER (WHERE outcome = 'rate_limited') AS rate_limit_hits,
       count(*) FILTER (WHERE outcome = 'timeout') AS timeouts,
       coalesce(sum(prompt_tokens), 0) AS prompt_tokens, coalesce(sum(completion_tokens), 0) AS completion_tokens,
       sum(cost_usd)::float8 AS cost_usd,
       coalesce(1000 * sum(extract(epoch FROM ended_at - started_at)) FILTER (WHERE outcome = 'answered'), 0)::float8
           AS answered_ms
FROM llm_calls WHERE started_at >= $1 AND started_at <= $2 AND user_id IS NOT NULL
GROUP BY stage, model ORDER BY stage, model

-- Rows as PostgreSQL estimates them (what it counts of inserts and deletes; nothing is scanned), bytes with indexes and texts
-- stored apart, exact.
-- name: query_store_sizes
SELECT relname AS "table", n_live_tup AS rows, pg_total_relation_size(relid) AS bytes
FROM pg_stat_user_tables
WHERE relid IN ('pipeline_runs'::regclass, 'raw_logs'::regclass, 'lsm_storage'::regclass, 'llm_calls'::regclass,
                'run_events'::regclass)
ORDER BY relname

-- name: query_backlog
SELECT count(*) FROM pipeline_runs WHERE status = 'NEW' AND NOT released

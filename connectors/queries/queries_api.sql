-- What the API asks of the pipeline of queries: where runs stand, how they went, the prompts.

-- name: run_read
SELECT id::text AS request_id, coalesce(user_text_id, user_id::text) AS user_id, organization_id, user_query, status, archive_status,
       revision, redactions, final_answer, sources, error, position, caused_by,
       analysis_result IS NOT NULL AS has_analysis, final_context_payload IS NOT NULL AS has_context
FROM pipeline_runs WHERE id = $1

-- A run with its events and its calls of the language model, in one snapshot. Times in ms since 1970.
-- name: run_timeline_read
SELECT r.id::text AS request_id, coalesce(r.user_text_id, r.user_id::text) AS user_id, r.user_query, r.status, r.archive_status, r.revision,
       r.redactions, r.error, r.sources, r.position, r.caused_by, r.restarted_from::text AS restarted_from, r.created_at, r.updated_at, r.completed_at,
       (SELECT json_agg(json_build_object(
            'position', e.position, 'status', e.status, 'archive_status', e.archive_status, 'operation', e.operation,
            'attempt', e.attempt, 'revision', e.revision, 'error', e.error,
            'at_ms', (extract(epoch FROM e.at) * 1000)::bigint))
        FROM run_events AS e WHERE e.run_id = r.id) AS events,
       (SELECT json_agg(json_build_object(
            'stage', c.stage, 'attempt', c.attempt, 'model', c.model, 'sends', c.sends, 'outcome', c.outcome, 'error', c.error,
            'started_ms', (extract(epoch FROM c.started_at) * 1000)::bigint,
            'ended_ms', (extract(epoch FROM c.ended_at) * 1000)::bigint,
            'prompt_tokens', c.prompt_tokens, 'completion_tokens', c.completion_tokens, 'cost_usd', c.cost_usd))
        FROM llm_calls AS c WHERE c.run_id = r.id) AS calls
FROM pipeline_runs AS r WHERE r.id = $1

-- $1 the key of the user, $2 the place before which the page begins, $3 how many
-- name: runs_of_user_read
SELECT id::text AS request_id, ordinal, user_query, status, archive_status, error, restarted_from::text AS restarted_from,
       position, created_at, completed_at
FROM pipeline_runs WHERE user_id = $1 AND ordinal < $2 ORDER BY ordinal DESC LIMIT $3

-- Failed runs, the last to fail first, that nobody cancelled and of which no other was made: a restarted one comes behind it in its
-- user's order. $1 of this organization and $2 of the user with this key only (null: of all), failed from $3 and before $4; $5 how many;
-- $6 these runs alone (null: all).
-- name: failed_runs_read
SELECT r.id::text AS request_id, coalesce(r.user_text_id, r.user_id::text) AS user_id, r.organization_id, r.user_query, r.error,
       r.analysis_result IS NOT NULL AS has_analysis, r.final_context_payload IS NOT NULL AS has_context,
       coalesce(r.completed_at, r.updated_at) AS failed_at
FROM pipeline_runs AS r
WHERE r.status = 'FAILED' AND NOT r.is_cancelled
  AND ($1::text IS NULL OR r.organization_id = $1) AND ($2::uuid IS NULL OR r.user_id = $2)
  AND coalesce(r.completed_at, r.updated_at) >= $3 AND coalesce(r.completed_at, r.updated_at) < $4
  AND ($6::uuid[] IS NULL OR r.id = ANY($6))
  AND NOT EXISTS (SELECT 1 FROM pipeline_runs AS n
                  WHERE n.user_id = r.user_id AND n.ordinal > r.ordinal AND n.restarted_from = r.id)
ORDER BY coalesce(r.completed_at, r.updated_at) DESC, r.id LIMIT $5

-- What answered calls of queries took on average from $1 on, by stage; those of jobs have no user. A model without a price has no cost.
-- name: stage_costs_read
SELECT stage, avg(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0))::float8 AS tokens,
       CASE WHEN bool_and(cost_usd IS NOT NULL) THEN avg(cost_usd)::float8 END AS cost_usd
FROM llm_calls WHERE started_at >= $1 AND user_id IS NOT NULL AND outcome = 'answered' GROUP BY stage

-- What came of runs that have ended.
-- name: run_answers_read
SELECT id::text AS request_id, coalesce(user_text_id, user_id::text) AS user_id, final_answer FROM pipeline_runs
WHERE id = ANY($1::uuid[]) AND status = 'COMPLETED'

-- The prompts in force.
-- name: prompts_read
SELECT id, role_name, prompt_template, is_active, position, changed_at FROM system_prompts WHERE is_active ORDER BY role_name

-- Every prompt that a role ever had, the newest first. $2 the id before which the page begins, $3 how many
-- name: prompt_history_read
SELECT id, role_name, prompt_template, is_active, position, changed_at
FROM system_prompts WHERE role_name = $1 AND id < $2 ORDER BY id DESC LIMIT $3

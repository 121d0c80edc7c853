-- What a backtest of prompts replays.

-- Queries that were answered from $1 on, the newest $2 of them, with what their last two stages were given and took; `recorded`: how
-- many there are in all. Those of which something was withdrawn, or whose context is no longer kept, have no input to repeat.
-- name: recorded_queries
SELECT r.id::text AS request_id, r.created_at, r.user_query, r.sources, r.draft_context, r.final_context_payload, r.final_answer,
       a.prompt_ids || m.prompt_ids AS prompt_ids, a.model AS assembler_model, m.model AS responder_model,
       coalesce(a.prompt_tokens, 0) + coalesce(a.completion_tokens, 0) AS assembler_tokens, a.cost_usd AS assembler_cost_usd,
       coalesce(m.prompt_tokens, 0) + coalesce(m.completion_tokens, 0) AS responder_tokens, m.cost_usd AS responder_cost_usd,
       count(*) OVER () AS recorded
FROM pipeline_runs AS r
CROSS JOIN LATERAL (SELECT * FROM llm_calls WHERE run_id = r.id AND stage = 'assembler' AND outcome = 'answered'
                    ORDER BY attempt DESC LIMIT 1) AS a
CROSS JOIN LATERAL (SELECT * FROM llm_calls WHERE run_id = r.id AND stage = 'responder' AND outcome = 'answered'
                    ORDER BY attempt DESC LIMIT 1) AS m
WHERE r.created_at >= $1 AND r.status = 'COMPLETED' AND r.redactions = 0 AND r.final_answer IS NOT NULL
  AND r.draft_context IS NOT NULL AND r.final_context_payload IS NOT NULL
ORDER BY r.created_at DESC, r.id LIMIT $2

-- name: prompts_of_ids
SELECT id, role_name, prompt_template FROM system_prompts WHERE id = ANY ($1::bigint[])

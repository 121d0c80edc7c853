-- Calls of the language model, written down for whoever makes them.

-- Before a call. One that is there without an outcome was under way when its worker ended: it is sent again under the same key.
-- name: begin_calls
INSERT INTO llm_calls (run_id, stage, attempt, user_id, model, prompt_ids, started_at)
SELECT run_id, stage, attempt, user_id, model, string_to_array(prompt_ids, ',')::bigint[], started_at
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::uuid[], $5::text[], $6::text[], $7::timestamptz[])
    AS b (run_id, stage, attempt, user_id, model, prompt_ids, started_at)
ON CONFLICT (run_id, stage, attempt) DO UPDATE SET sends = llm_calls.sends + 1 WHERE llm_calls.outcome IS NULL

-- After a call, before anything follows from it. The first outcome stays.
-- name: end_calls
UPDATE llm_calls AS c
SET ended_at = e.ended_at, outcome = e.outcome, answer = e.answer, error = e.error, model = e.model,
    prompt_tokens = e.prompt_tokens, completion_tokens = e.completion_tokens, cost_usd = e.cost_usd
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], $8::text[], $9::int[],
            $10::int[], $11::numeric[])
    AS e (run_id, stage, attempt, ended_at, outcome, answer, error, model, prompt_tokens, completion_tokens, cost_usd)
WHERE c.run_id = e.run_id AND c.stage = e.stage AND c.attempt = e.attempt AND c.outcome IS NULL
RETURNING c.run_id::text, c.stage, c.attempt

-- Vectors made for a run or job: one call whose tokens add up.
-- name: count_embedding
INSERT INTO llm_calls AS c (run_id, stage, attempt, user_id, model, prompt_ids, started_at, ended_at, outcome, answer, prompt_tokens,
                            completion_tokens, cost_usd)
VALUES ($1, 'embedding', 1, $2, $3, ARRAY[]::bigint[], $4, $4, 'answered', '', $5, 0, $6)
ON CONFLICT (run_id, stage, attempt) DO UPDATE
SET sends = c.sends + 1, prompt_tokens = c.prompt_tokens + excluded.prompt_tokens, cost_usd = c.cost_usd + excluded.cost_usd,
    ended_at = excluded.ended_at

-- name: find_call
SELECT outcome, answer, error FROM llm_calls WHERE run_id = $1 AND stage = $2 AND attempt = $3

-- What calls were made is still told. $1 runs or jobs
-- name: erase_answers
UPDATE llm_calls SET answer = '' WHERE run_id = ANY ($1::uuid[]) AND answer <> ''

-- name: erase_calls
DELETE FROM llm_calls WHERE run_id = ANY ($1::uuid[])

-- What calls used, those that failed and those that a worker that ended had made too: they were paid.
-- name: totals_of_calls
SELECT run_id::text AS run_id, sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0))::bigint AS tokens,
       coalesce(sum(cost_usd), 0) AS cost_usd
FROM llm_calls WHERE run_id = ANY ($1::uuid[]) GROUP BY run_id

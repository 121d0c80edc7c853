-- What organizations used in a month: as it was flushed, and counted anew from the jobs.

-- Absolute totals, one an organization and period; what is stored is never lowered, so a repeat changes nothing (R2.37).
-- name: raise_usage
INSERT INTO usage_records AS held (organization_id, period, presentations, slides, tokens, cost_cents, upto_seq, flushed_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::timestamptz[]) AS told (organization_id, period)
ORDER BY told.organization_id, told.period
ON CONFLICT (organization_id, period) DO UPDATE SET
    presentations = GREATEST(held.presentations, excluded.presentations),
    slides = GREATEST(held.slides, excluded.slides),
    tokens = GREATEST(held.tokens, excluded.tokens),
    cost_cents = GREATEST(held.cost_cents, excluded.cost_cents),
    upto_seq = GREATEST(held.upto_seq, excluded.upto_seq),
    flushed_at = GREATEST(held.flushed_at, excluded.flushed_at)

-- Counted anew from the jobs that were counted, beside what was flushed. $1 an organization (null: all), $2 a period (null: all)
-- and $3, $4 from when and until when its jobs ended.
-- name: usage_of_jobs
WITH counted AS (
    SELECT j.organization_id, to_char(j.completed_at AT TIME ZONE 'UTC', 'YYYY-MM') AS period, j.tokens, j.cost_cents,
           j.completed_at, jsonb_array_length(p.slides) AS slides
    FROM generation_jobs AS j LEFT JOIN presentations AS p ON p.presentation_id = j.job_id
    WHERE j.status = 'completed' AND j.cost_cents IS NOT NULL AND ($1::text IS NULL OR j.organization_id = $1)
      AND ($3::timestamptz IS NULL OR j.completed_at >= $3) AND ($4::timestamptz IS NULL OR j.completed_at < $4)
), recomputed AS (
    SELECT organization_id, period, count(*) AS presentations, coalesce(sum(slides), 0)::bigint AS slides,
           sum(tokens)::bigint AS tokens, sum(cost_cents)::bigint AS cost_cents, max(completed_at) AS last_at
    FROM counted GROUP BY organization_id, period
), flushed AS (
    SELECT * FROM usage_records WHERE ($1::text IS NULL OR organization_id = $1) AND ($2::text IS NULL OR period = $2)
)
SELECT organization_id, period,
       coalesce(r.presentations, 0) AS presentations, coalesce(r.slides, 0) AS slides, coalesce(r.tokens, 0) AS tokens,
       coalesce(r.cost_cents, 0) AS cost_cents, r.last_at,
       coalesce(f.presentations, 0) AS flushed_presentations, coalesce(f.slides, 0) AS flushed_slides,
       coalesce(f.tokens, 0) AS flushed_tokens, coalesce(f.cost_cents, 0) AS flushed_cost_cents,
       greatest(coalesce(s.last_seq, 0), coalesce(f.upto_seq, 0)) AS upto_seq, f.flushed_at
FROM recomputed AS r FULL JOIN flushed AS f USING (organization_id, period)
     LEFT JOIN usage_sequences AS s USING (organization_id, period)
ORDER BY organization_id, period

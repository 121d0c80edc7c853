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

-- What was counted, what was flushed, and the entries summed up to the position of the flush. $1 an organization (null: all),
-- $2 a period (null: all).
-- name: usage_recounted
WITH flushed AS (
    SELECT * FROM usage_records WHERE ($1::text IS NULL OR organization_id = $1) AND ($2::text IS NULL OR period = $2)
), entries AS (
    SELECT e.organization_id, e.period, sum(e.presentations)::bigint AS presentations, sum(e.slides)::bigint AS slides,
           sum(e.tokens)::bigint AS tokens, sum(e.cost_cents)::bigint AS cost_cents, max(e.seq) AS last_seq,
           coalesce(sum(e.presentations) FILTER (WHERE e.seq <= f.upto_seq), 0)::bigint AS then_presentations,
           coalesce(sum(e.slides) FILTER (WHERE e.seq <= f.upto_seq), 0)::bigint AS then_slides,
           coalesce(sum(e.tokens) FILTER (WHERE e.seq <= f.upto_seq), 0)::bigint AS then_tokens,
           coalesce(sum(e.cost_cents) FILTER (WHERE e.seq <= f.upto_seq), 0)::bigint AS then_cost_cents
    FROM usage_entries AS e LEFT JOIN flushed AS f USING (organization_id, period)
    WHERE ($1::text IS NULL OR e.organization_id = $1) AND ($2::text IS NULL OR e.period = $2)
    GROUP BY e.organization_id, e.period
)
SELECT organization_id, period,
       coalesce(e.presentations, 0) AS presentations, coalesce(e.slides, 0) AS slides, coalesce(e.tokens, 0) AS tokens,
       coalesce(e.cost_cents, 0) AS cost_cents, coalesce(e.last_seq, 0) AS last_seq,
       coalesce(e.then_presentations, 0) AS then_presentations, coalesce(e.then_slides, 0) AS then_slides,
       coalesce(e.then_tokens, 0) AS then_tokens, coalesce(e.then_cost_cents, 0) AS then_cost_cents,
       coalesce(f.presentations, 0) AS flushed_presentations, coalesce(f.slides, 0) AS flushed_slides,
       coalesce(f.tokens, 0) AS flushed_tokens, coalesce(f.cost_cents, 0) AS flushed_cost_cents,
       coalesce(f.upto_seq, 0) AS flushed_seq,
       coalesce(s.presentations, 0) AS summed_presentations, coalesce(s.slides, 0) AS summed_slides,
       coalesce(s.tokens, 0) AS summed_tokens, coalesce(s.cost_cents, 0) AS summed_cost_cents
FROM entries AS e FULL JOIN flushed AS f USING (organization_id, period)
     LEFT JOIN usage_sequences AS s USING (organization_id, period)
ORDER BY organization_id, period
